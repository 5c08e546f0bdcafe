//! Lanes: which commands check a change, how thoroughly, and on which machine.

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// A list of commands, each a line of a shell without quotes or variables.
struct Lane(&'static [&'static str]);

/// What takes minutes: everything that needs no simulated kernel of an operator but a few.
const CHECK: Lane = Lane(&[
    "cargo fmt --all --check",
    "cargo clippy --locked --workspace --all-targets -- -D warnings",
    "cargo test --locked -p mkernel-spec -p mkernel-declare -p mkernel-topology",
    "cargo test --locked -p mkernel-compile --lib",
    "cargo test --locked -p mkernel-macros --lib",
    "cargo test --locked -p mkernel --lib -- --skip bootstrap",
    "cargo test --locked -p mkernel-fabric",
    "cargo test --locked -p mkernel-suite --test golden --test templates --test imports --test readme --test attribute",
    "cargo test --locked -p mkernel-suite --test collectives one_node",
]);
/// All that needs no GPU. It installs what it uses.
const FULL: Lane = Lane(&[".ci/run"]);
/// Verbs on virtual machines and on a NIC in software.
const RDMA: Lane = Lane(&[".ci/rdma"]);
/// Correctness on the GPUs of this host.
const GPU: Lane = Lane(&[
    "cargo test --locked --release -p mkernel-suite --test gpu -- --ignored --test-threads=1",
]);
/// Times on the GPUs of this host.
const BENCH: Lane = Lane(&[
    "cargo bench --locked --bench operators",
    "cargo bench --locked --bench attention",
    "cargo bench --locked --bench dispatch",
    "cargo bench --locked --bench collectives",
]);

/// Which lane.
#[derive(Clone, Copy, Debug, clap::Subcommand)]
pub enum Flags {
    /// Format, lints and the fast tests: some three minutes on two cores if everything is built
    Check,
    /// Everything that needs no GPU, as CI runs it
    Full,
    /// Verbs without hardware
    Rdma,
    /// Tests on the GPUs of this host
    Gpu,
    /// Benchmarks on the GPUs of this host
    Bench,
}

/// Runs every command of a lane, also after one has failed. Prints the time of each; false if some failed.
pub fn run(flags: Flags) -> Result<bool, Box<dyn Error>> {
    let Lane(commands) = match flags {
        Flags::Check => CHECK,
        Flags::Full => FULL,
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
        let program = words.next().ok_or("an empty command")?;
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
    println!("{:.1} s in all", start.elapsed().as_secs_f64());
    Ok(all_passed)
}
