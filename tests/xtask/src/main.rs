//! Tools for work on mkernel itself: `cargo run -p xtask -- --help`.

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
}

fn main() -> ExitCode {
    let Command::Soak(flags) = Cli::parse().command;
    match soak::run(&flags) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}
