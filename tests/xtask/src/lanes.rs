//! Lanes: lists of commands that check a change. They differ in thoroughness and in the machine that they need.

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// A list of commands. Each command is a line of a shell without quotes or variables.
struct Lane(&'static [&'static str]);

/// The checks that take a few minutes, of which few run operators on simulated GPUs.
const CHECK: Lane = Lane(&[
    "cargo fmt --all --check",
    "cargo clippy --locked --workspace --all-targets -- -D warnings",
    "cargo clippy --locked -p mkernel --lib --no-default-features --features cuda-13000 -- -D warnings",
    "cargo doc --locked --workspace --no-deps",
    "cargo test --locked -p mkernel-spec -p mkernel-declare -p mkernel-topology",
    "cargo test --locked -p mkernel-compile --lib",
    "cargo test --locked -p mkernel-macros --lib",
    "cargo test --locked -p mkernel --lib -- --skip bootstrap",
    "cargo test --locked -p mkernel-fabric",
    "cargo test --locked -p mkernel-suite --test golden --test coverage --test templates --test imports --test lengths --test readme --test attribute",
    "cargo test --locked -p mkernel-testing --doc",
    "cargo test --locked -p mkernel-suite --test collectives one_node",
]);
/// All checks that need no GPU. The script installs the tools that it uses.
const FULL: Lane = Lane(&[".ci/run"]);
/// Dependencies, the oldest compiler, features, documentation and packages.
const PACKAGES: Lane = Lane(&[".ci/packages"]);
/// Programs that use mkernel beside other crates for CUDA.
const COEXIST: Lane = Lane(&[".ci/coexist"]);
/// The wheel of the Python package.
const PYTHON: Lane = Lane(&[".ci/python"]);
/// Tests of verbs, on virtual machines and with a NIC in software.
const RDMA: Lane = Lane(&[".ci/rdma"]);
/// Tests of correctness on the GPUs of this host.
const GPU: Lane = Lane(&[
    "cargo test --locked --release -p mkernel-suite --test gpu -- --ignored --test-threads=1",
    "cargo test --locked --release -p mkernel-gen --test cli -- --ignored --nocapture on_gpus",
]);
/// Benchmarks on the GPUs of this host.
const BENCH: Lane = Lane(&[
    "cargo bench --locked --bench operators",
    "cargo bench --locked --bench attention",
    "cargo bench --locked --bench dispatch",
    "cargo bench --locked --bench collectives",
]);

/// The lane to run.
#[derive(Clone, Copy, Debug, clap::Subcommand)]
pub enum Flags {
    /// Format, lints, documentation and the fast tests, about 90 s on two cores if everything is built
    Check,
    /// Everything that needs no GPU, as CI runs it
    Full,
    /// Dependencies, the oldest compiler, features, documentation and packages
    Packages,
    /// Programs that use mkernel beside candle and burn
    Coexist,
    /// The wheel of the Python package, with PyTorch of PyPI
    Python,
    /// Tests of verbs without hardware
    Rdma,
    /// Tests on the GPUs of this host
    Gpu,
    /// Benchmarks on the GPUs of this host
    Bench,
}

/// Runs every command of a lane, even after a failure, and prints the time of each. Returns whether all have passed.
pub fn run(flags: Flags) -> Result<bool, Box<dyn Error>> {
    let Lane(commands) = match flags {
        Flags::Check => CHECK,
        Flags::Full => FULL,
        Flags::Packages => PACKAGES,
        Flags::Coexist => COEXIST,
        Flags::Python => PYTHON,
        Flags::Rdma => RDMA,
        Flags::Gpu => GPU,
        Flags::Bench => BENCH,
    };
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let start = Instant::now();
    let mut lines = Vec::new();
    let mut all_passed = true;
    for command in commands {
        let mut words = command.split_whitespace();
        let program = words.next().ok_or("a lane has an empty command")?;
        eprintln!("+ {command}");
        let started = Instant::now();
        let status = Command::new(program)
            .args(words)
            .current_dir(&workspace)
            .status()
            .map_err(|e| format!("{program}: {e}"))?;
        let verdict = if status.success() { "passed" } else { "FAILED" };
        all_passed &= status.success();
        lines.push(format!(
            "{verdict} {:>6.1} s  {command}",
            started.elapsed().as_secs_f64()
        ));
    }
    println!("{}", lines.join("\n"));
    println!("{:.1} s in total", start.elapsed().as_secs_f64());
    Ok(all_passed)
}
