//! The command line. Each subcommand has a file of its own and fails with a [`Failure`].

mod bench;
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
use mkernel_declare::SpannedDiagnostic;
use output::print_stderr;
use serde::Serialize;
use std::ffi::OsString;
use std::io::{self, IsTerminal};

/// Checks, plans, renders, compiles and runs mkernel kernels
///
/// Kernels come from TOML files, from the #[fused_kernel]s of a crate, or from flags.
/// Exit codes: 0 success; 1 errors in a kernel's configuration, a bundle without a kernel, or a run that failed; 2 wrong usage;
/// 3 a kernel does not compile; 4 the environment (no NVRTC, a file that cannot be read or written).
#[derive(Parser)]
#[command(name = "mkernel-gen", version, verbatim_doc_comment)]
struct Cli {
    /// Print JSON, one object per line
    #[arg(long, global = true)]
    json: bool,
    /// Print progress to standard error
    #[arg(short, long, global = true)]
    verbose: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check that kernels are valid, that there is a plan for them, and that a bundle has them
    Check(check::Check),
    /// Show the plans of kernels: roles, memory, bytes moved, and what bounds the time
    Plan(plan::Plan),
    /// Render the CUDA source of kernels
    Render(render::Render),
    /// Compile kernels into the cache, or into a bundle that the runtime loads
    Build(build::Build),
    /// Run kernels on random input, on GPUs or simulated GPUs, and check every element of the result
    ///
    /// Without a kernel it runs a small one. Simulated GPUs work on any machine that has a C++ compiler.
    /// The seed determines the data and, on simulated GPUs, the order of concurrent events.
    Run(Box<run::Run>),
    /// Time kernels on the GPUs of this host, beside their bound, cuBLAS and NCCL
    ///
    /// Each kernel runs on random data, and its result is checked as mkernel-gen run does. Then CUDA graphs of calls are timed, in
    /// rounds that take the kernel and its rivals in a random order. A time is the median over rounds, on the slowest rank.
    /// The calls of a graph take copies of the operands in turn, so that L2 does not hold operands of more than some MiB.
    Bench(Box<bench::Bench>),
    /// Send messages between GPUs of different nodes, check every word that arrives, and measure
    ///
    /// Use it to test the network of a cluster: --from-env with --transport rc or efa sends messages between hosts.
    /// Without --from-env, the ranks of this host are divided into nodes, by default with an emulated network between
    /// them.
    FabricTest(Box<fabric_test::FabricTest>),
    /// List the kernels in the cache or in a bundle
    List(store::List),
    /// Remove the kernels in the cache
    Clean(store::Clean),
    /// Install the version of NVRTC that mkernel is tested with, from its Python wheel
    FetchNvrtc(fetch::Fetch),
    /// Show what was found on this machine: NVRTC, C++ compiler, cache, driver, transports, NICs
    Doctor,
    /// Show the GPUs and NICs of a host, which NICs serve which GPU, and why
    Topology(topology::ShowTopology),
}

/// Runs a command, reports its errors, and returns the exit code. The first of `args` is the name of the program.
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = Cli::parse_from(args);
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
    match run_command(&cli) {
        Ok(()) => 0,
        // A reader such as `head` has closed standard output early, which is not an error.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => 0,
        Err(failure) => {
            report(&failure, cli.json);
            failure.exit_code()
        }
    }
}

fn run_command(cli: &Cli) -> Result<(), Failure> {
    match &cli.command {
        Command::Check(check) => check.run(cli.json),
        Command::Plan(input) => plan::run(input, cli.json),
        Command::Render(render) => render.run(cli.json),
        Command::Build(build) => build.run(cli.json),
        Command::Run(run) => run.run(cli.json),
        Command::Bench(bench) => bench.run(cli.json),
        Command::FabricTest(test) => test.run(cli.json),
        Command::List(list) => list.run(cli.json),
        Command::Clean(clean) => clean.run(cli.json),
        Command::FetchNvrtc(fetch) => fetch.run(cli.json),
        Command::Doctor => doctor::run(cli.json),
        Command::Topology(show) => show.run(cli.json),
    }
}

/// An error as a JSON object. Errors in a configuration have a place and help, and errors of one kernel have its label.
#[derive(Default, Serialize)]
struct ErrorLine<'a> {
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<&'a str>,
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    help: Option<&'a str>,
}

/// Prints an error with its causes to standard error, and with `json` also to standard output as JSON lines.
fn report(failure: &Failure, json: bool) {
    let problem = |line: ErrorLine| {
        if json {
            // If standard output is closed, standard error still has the text.
            let _ = output::print_json(&line);
        }
    };
    match failure {
        Failure::Usage(message) => {
            let error = Cli::command().error(clap::error::ErrorKind::ArgumentConflict, message);
            let _ = error.print();
            return;
        }
        Failure::Diagnostics(diagnostics) | Failure::Results(diagnostics) => {
            for SpannedDiagnostic { span, reason, help } in diagnostics {
                print_stderr(&format!("{span}: error: {reason}\n    help: {help}"));
                let (place, help) = (Some(span.as_str()), Some(help.as_str()));
                problem(ErrorLine {
                    place,
                    reason,
                    help,
                    ..ErrorLine::default()
                });
            }
        }
        Failure::Compile(failed) => {
            for (label, error) in failed {
                let reason = chain(error);
                print_stderr(&format!("{label}: error: {reason}"));
                let label = Some(label.as_str());
                problem(ErrorLine {
                    label,
                    reason: &reason,
                    ..ErrorLine::default()
                });
            }
        }
        _ => problem(ErrorLine {
            reason: &chain(failure),
            ..ErrorLine::default()
        }),
    }
    print_stderr(&format!("error: {}", chain(failure)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
