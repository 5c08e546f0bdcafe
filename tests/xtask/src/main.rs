//! Tools for work on mkernel itself: `cargo run -p xtask -- --help`.

mod lanes;
mod machine_code;
mod soak;

use clap::{Parser, Subcommand};
use std::error::Error;
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Tools for work on mkernel itself")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Lane(lanes::Flags),
    /// Runs every test program many times on few busy cores, to find tests that fail now and then
    Soak(soak::Flags),
    /// Compiles every golden kernel, prints what it uses of an SM, and compares with another revision
    MachineCode(machine_code::Flags),
    /// Prints the device headers whose content host code declares
    Headers,
    /// Prints the tables of options in README.md
    Readme,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Lane(flags) => lanes::run(flags),
        Command::Soak(flags) => soak::run(&flags),
        Command::MachineCode(flags) => machine_code::run(&flags),
        Command::Headers => print_headers(),
        Command::Readme => print_tables(),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn print_headers() -> Result<bool, Box<dyn Error>> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../templates/device/mk/codes.cuh"
    );
    std::fs::write(path, mkernel_spec::abi::codes_header()).map_err(|e| format!("{path}: {e}"))?;
    Ok(true)
}

fn print_tables() -> Result<bool, Box<dyn Error>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let readme = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    std::fs::write(path, mkernel_testing::readme::with_tables(&readme)?)
        .map_err(|e| format!("{path}: {e}"))?;
    Ok(true)
}
