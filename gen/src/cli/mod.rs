//! The command line. Each subcommand has a file; what goes wrong in any of them is a [`Failure`].

mod build;
mod check;
mod doctor;
mod environment;
mod fabric_test;
mod failure;
mod fetch;
mod files;
mod flags;
mod format;
mod input;
mod machine;
mod output;
mod plan;
mod render;
mod run;
mod store;
mod toml_file;
mod topology;

use clap::{CommandFactory, Parser, Subcommand};
use failure::{Failure, chain};
use mkernel_declare::Mistake;
use output::say;
use serde::Serialize;
use std::io::{self, IsTerminal};
use std::process::ExitCode;

/// Checks, plans, renders, compiles and runs mkernel kernels
///
/// Kernels come from TOML files, from the #[fused_kernel]s of a crate, or from flags.
/// Exit codes: 0 done, 1 mistakes in a kernel's configuration or a run that went wrong, 2 wrong usage,
/// 3 a kernel does not compile, 4 the environment (no NVRTC, a file that cannot be read or written).
#[derive(Parser)]
#[command(name = "mkernel-gen", version, verbatim_doc_comment)]
struct Cli {
    /// Print JSON, one object per line
    #[arg(long, global = true)]
    json: bool,
    /// Say on standard error what is done
    #[arg(short, long, global = true)]
    verbose: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check kernels: are they valid, is there a plan for them?
    Check(input::Input),
    /// Show how kernels work: roles, memory, bytes moved, the bound and its reason
    Plan(plan::Plan),
    /// Render the CUDA source of kernels
    Render(render::Render),
    /// Compile kernels into the cache, or into a bundle that the runtime loads
    Build(build::Build),
    /// Run kernels on random input, on GPUs or simulated ones, and check every element of the result
    ///
    /// Without a kernel it runs a small one. On any machine: simulated GPUs need a C++ compiler and nothing else.
    /// What differs from seed to seed is the data and, on simulated GPUs, the order of all that can happen in several.
    Run(Box<run::Run>),
    /// Send messages between GPUs of different nodes, check every word that arrives, and measure
    ///
    /// To prove a cluster before a kernel is blamed: by --from-env and --transport rc or efa between its hosts. Without,
    /// ranks of this host are put into nodes, by default with an emulated network between them.
    FabricTest(Box<fabric_test::FabricTest>),
    /// List the kernels in the cache or in a bundle
    List(store::List),
    /// Remove the kernels in the cache
    Clean(store::Clean),
    /// Install the NVRTC that this version is tested with, from its Python wheel
    FetchNvrtc(fetch::Fetch),
    /// Show what was found on this machine: NVRTC, C++ compiler, cache, driver
    Doctor,
    /// Show the GPUs and NICs of a host, which NICs serve which GPU, and why
    Topology(topology::ShowTopology),
}

/// Parses, runs, reports.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let level = if cli.verbose {
        tracing::Level::DEBUG
    } else {
        tracing::Level::WARN
    };
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
        .with_max_level(level)
        .with_target(false)
        .without_time()
        .init();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has seen enough, as `head` does.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(failure) => {
            report(&failure, cli.json);
            ExitCode::from(failure.exit_code())
        }
    }
}

fn run(cli: &Cli) -> Result<(), Failure> {
    match &cli.command {
        Command::Check(input) => check::run(input, cli.json),
        Command::Plan(input) => plan::run(input, cli.json),
        Command::Render(render) => render.run(cli.json),
        Command::Build(build) => build.run(cli.json),
        Command::Run(run) => run.run(cli.json),
        Command::FabricTest(test) => test.run(cli.json),
        Command::List(list) => list.run(cli.json),
        Command::Clean(clean) => clean.run(cli.json),
        Command::FetchNvrtc(fetch) => fetch.run(cli.json),
        Command::Doctor => doctor::run(cli.json),
        Command::Topology(show) => show.run(cli.json),
    }
}

/// What is wrong, in JSON: with a configuration, with a kernel, or with all else.
#[derive(Default, Serialize)]
struct ProblemLine<'a> {
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<&'a str>,
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    help: Option<&'a str>,
}

/// To standard error, the causes below; as JSON lines too, if those are wanted.
fn report(failure: &Failure, json: bool) {
    let problem = |line: ProblemLine| {
        if json {
            // If standard output is closed, the text on standard error must do.
            let _ = output::print_json(&line);
        }
    };
    match failure {
        Failure::Usage(message) => {
            let error = Cli::command().error(clap::error::ErrorKind::ArgumentConflict, message);
            let _ = error.print();
            return;
        }
        Failure::Mistakes(mistakes) => {
            for Mistake {
                place,
                reason,
                help,
            } in mistakes
            {
                say(&format!("{place}: error: {reason}\n    help: {help}"));
                let (place, help) = (Some(place.as_str()), Some(help.as_str()));
                problem(ProblemLine {
                    place,
                    reason,
                    help,
                    ..ProblemLine::default()
                });
            }
        }
        Failure::Compile(failed) => {
            for (label, error) in failed {
                let reason = chain(error);
                say(&format!("{label}: error: {reason}"));
                let label = Some(label.as_str());
                problem(ProblemLine {
                    label,
                    reason: &reason,
                    ..ProblemLine::default()
                });
            }
        }
        _ => problem(ProblemLine {
            reason: &chain(failure),
            ..ProblemLine::default()
        }),
    }
    say(&format!("error: {}", chain(failure)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
