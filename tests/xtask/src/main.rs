//! Tools for the development of mkernel: `cargo run -p xtask -- --help`.

mod lanes;
mod machine_code;
mod soak;

use clap::{Parser, Subcommand};
use mkernel_testing::documents::{self, Document};
use std::error::Error;
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Tools for the development of mkernel")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Lane(lanes::Flags),
    /// Runs every test program many times on a few busy cores, to find tests that sometimes fail
    Soak(soak::Flags),
    /// Compiles every golden kernel, prints its registers and its size, and compares it with another revision
    MachineCode(machine_code::Flags),
    /// Writes the device headers whose content host code declares
    Headers,
    /// Writes the tables of options in the book
    Readme,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Lane(flags) => lanes::run(flags),
        Command::Soak(flags) => soak::run(&flags),
        Command::MachineCode(flags) => machine_code::run(&flags),
        Command::Headers => write_headers(),
        Command::Readme => write_tables(),
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

/// Writes the header of the codes of roles and waits.
fn write_headers() -> Result<bool, Box<dyn Error>> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../templates/device/mk/codes.cuh"
    );
    std::fs::write(path, mkernel_spec::abi::codes_header()).map_err(|e| format!("{path}: {e}"))?;
    Ok(true)
}

/// Replaces the tables of options in the documents for users.
fn write_tables() -> Result<bool, Box<dyn Error>> {
    let old = documents::for_users()?;
    let new = documents::with_tables(old.clone())?;
    let mut changed = new.iter().filter(|document| !old.contains(document));
    changed.try_for_each(Document::write)?;
    Ok(true)
}
