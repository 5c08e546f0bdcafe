//! Tools for work on mkernel itself: `cargo run -p xtask -- --help`.

#[path = "../../configs/mod.rs"]
mod configs;
mod machine_code;
mod soak;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Tools for work on mkernel itself")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs every test program many times on few busy cores, to find tests that fail now and then
    Soak(soak::Flags),
    /// Compiles every golden kernel, prints what it uses of an SM, and compares with another revision
    MachineCode(machine_code::Flags),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Soak(flags) => soak::run(&flags),
        Command::MachineCode(flags) => machine_code::run(&flags),
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
