//! The command line. Each subcommand has a file of its own and fails with a [`Failure`].

mod bench;
mod build;
mod bundle;
mod check;
mod color;
mod combinations;
mod completions;
mod crate_kernels;
mod doctor;
mod environment;
mod error_line;
mod fabric_test;
mod failure;
mod fetch;
mod files;
mod flags;
mod format;
mod input;
mod launch;
mod machine;
mod nic_check;
mod output;
mod palette;
mod parallel;
mod plan;
mod plot;
mod progress;
mod render;
mod run;
mod schema;
mod signals;
mod simulate;
mod store;
mod timed_kernels;
mod toml_defaults;
mod toml_entries;
mod toml_file;
mod topology;
mod trace;
mod tune;
mod unused_sizes;

use clap::error::ErrorKind;
use clap::{ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand};
use error_line::ErrorLine;
use failure::{Failure, chain};
use mkernel_declare::SpannedDiagnostic;
use output::{ERROR, print_stderr};
use std::ffi::OsString;
use std::io;

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
    /// Print neither progress nor notes and warnings to standard error, only errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Colour the output; auto colours a terminal unless NO_COLOR is set
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    color: ColorChoice,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check that kernels are valid, that there is a plan for them, and that a bundle has them
    #[command(after_help = "Example:\n  mkernel-gen check examples/llama.toml")]
    Check(check::Check),
    /// Show the plans of kernels: roles, memory, bytes moved, and what bounds the time
    #[command(
        after_help = "Example:\n  mkernel-gen plan --op ag_gemm --world 8 --m 8192 --n 1024 --k 8192"
    )]
    Plan(plan::Plan),
    /// Simulate kernels on up to 1024 nodes without GPUs: the time of a call, what travels, and which resource limits the time
    ///
    /// The messages of a kernel's plan pass through a model of NVLink, NICs, switches and proxies, in the order in which the
    /// kernel sends them. Times of computation are those of the cost model. Every node has equal numbers of GPUs.
    #[command(
        after_help = "Example:\n  mkernel-gen simulate --op ag_gemm --m 65536 --n 1024 --k 8192 --nodes 2,4,8,16 --plot times.svg"
    )]
    Simulate(Box<simulate::Simulate>),
    /// Render the CUDA source of kernels
    #[command(after_help = "Example:\n  mkernel-gen render examples/small.toml --out cuda")]
    Render(render::Render),
    /// Compile kernels into the cache, or into a bundle that the runtime loads
    #[command(
        after_help = "Example:\n  mkernel-gen build examples/llama.toml --out kernels --fetch"
    )]
    Build(build::Build),
    /// Run kernels on random input, on GPUs or simulated GPUs, and check every element of the result
    ///
    /// Without a kernel it runs a small one. Simulated GPUs work on any machine that has a C++ compiler.
    /// The seed determines the data and, on simulated GPUs, the order of concurrent events.
    #[command(
        after_help = "Example:\n  mkernel-gen run kernels.toml --kernel up --ranks 4 --m 256 --seeds 0..100 --fail-fast"
    )]
    Run(Box<run::Run>),
    /// Start a program once for each rank on this host, as torchrun does
    ///
    /// The program makes its rank by `Communicator::from_env`. Each line of its output begins with the rank. If a rank fails,
    /// the others are ended, and the exit code is the code of the first rank that failed. SIGINT, SIGTERM and SIGHUP are
    /// forwarded.
    #[command(
        after_help = "Example:\n  mkernel-gen launch --nproc 8 target/release/examples/ag_gemm"
    )]
    Launch(launch::Launch),
    /// Time kernels on the GPUs of this host, beside their bound, cuBLAS and NCCL
    ///
    /// Each kernel runs on random data, and its result is checked as mkernel-gen run does. Then CUDA graphs of calls are timed, in
    /// rounds that take the kernel and its rivals in a random order. A time is the median over rounds, on the slowest rank.
    /// The calls of a graph take copies of the operands in turn, so that L2 does not hold operands of more than some MiB.
    #[command(
        after_help = "Example:\n  mkernel-gen bench --op gemm_ar --world 4 --m 1,256,4096 --n 8192 --k 2048 --b-layout nk --out results"
    )]
    Bench(Box<bench::Bench>),
    /// Show where the time of a kernel goes: the steps of each role on each SM, and the waits for other roles and ranks
    ///
    /// Runs the kernel on random data, writes the last call as a timeline for ui.perfetto.dev, and prints the busy time and the
    /// waits of each role. The kernel is compiled once more for this, with the option `traced`. Results are not checked.
    #[command(
        after_help = "Example:\n  mkernel-gen trace --op gemm_rs --world 4 --m 4096 --n 8192 --k 2048 --b-layout nk --out trace.json"
    )]
    Trace(Box<trace::TraceKernel>),
    /// Measure which choices of the planner are fastest for kernels on the GPUs of this host
    ///
    /// The cost model ranks combinations of choices. The best combinations are timed together on all ranks, as bench times a
    /// kernel, and then changes of the fastest combination. The fastest kernels are timed again beside the planner's own choice. A
    /// kernel that is still faster is checked as mkernel-gen run does, and its choices are kept. Programs use the choices if
    /// MKERNEL_TUNED names the file.
    #[command(
        after_help = "Example:\n  mkernel-gen tune --op gemm_rs --world 4 --m 256,1024 --n 4096 --k 8192 --b-layout nk --out tuned.toml"
    )]
    Tune(Box<tune::Tune>),
    /// Send messages between GPUs of different nodes, check every word that arrives, and measure
    ///
    /// Use it to test the network of a cluster: --from-env with --transport rc or efa sends messages between hosts.
    /// Without --from-env, the ranks of this host are divided into nodes, by default with an emulated network between
    /// them.
    #[command(
        after_help = "Example:\n  mkernel-gen fabric-test --ranks 4 --nodes 2 --jitter-us 100 --loss 0.05"
    )]
    FabricTest(Box<fabric_test::FabricTest>),
    /// Test NICs and networks: bytes, rates, latencies, limits of processes, and a peer that is killed
    ///
    /// Puts go between host memory of all ranks, without a kernel. Each check prints pass, fail with a remedy, or not checked
    /// with the reason. Steps that need hands are listed with their commands. Use it on new machines: --from-env with
    /// --transport rc or efa, on two or more hosts. Without --from-env, the ranks are threads of this process.
    #[command(
        after_help = "Example:\n  mkernel-gen nic-check --ranks 3 --checks rails,poison,forks"
    )]
    NicCheck(Box<nic_check::NicCheck>),
    /// Add kernels to bundles, merge bundles, and check and list their kernels
    #[command(
        after_help = "Example:\n  mkernel-gen bundle merge kernels-8 kernels-16 --out kernels"
    )]
    Bundle(bundle::Bundles),
    /// List the kernels in the cache or in a bundle
    #[command(after_help = "Example:\n  mkernel-gen list kernels")]
    List(store::List),
    /// Remove the kernels in the cache
    #[command(after_help = "Example:\n  mkernel-gen clean --dry-run")]
    Clean(store::Clean),
    /// Install the version of NVRTC that mkernel is tested with, from its Python wheel
    #[command(after_help = "Example:\n  mkernel-gen fetch-nvrtc")]
    FetchNvrtc(fetch::Fetch),
    /// Examine this machine (compilers, cache, bundles, GPUs, NICs, PCIe, limits), and name a remedy for each fault
    #[command(after_help = "Example:\n  mkernel-gen doctor --json")]
    Doctor,
    /// Print a script that completes commands and flags in a shell
    #[command(
        after_help = "Example:\n  mkernel-gen completions bash > ~/.local/share/bash-completion/completions/mkernel-gen"
    )]
    Completions(completions::Completions),
    /// Write manual pages
    #[command(after_help = "Example:\n  mkernel-gen man --out ~/.local/share/man/man1")]
    Man(completions::Man),
    /// Print the JSON Schema of lines of --json, or of TOML files
    #[command(after_help = "Example:\n  mkernel-gen schema kernels > kernels.schema.json")]
    Schema(schema::ShowSchema),
    /// Show the GPUs and NICs of a host, which NICs serve which GPU, and why
    #[command(after_help = "Example:\n  mkernel-gen topology")]
    Topology(topology::ShowTopology),
}

/// Runs a command, reports its errors, and returns the exit code. The first of `args` is the name of the program.
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    let args: Vec<_> = args.into_iter().collect();
    let command = Cli::command().color(color::choice(&args));
    let matches = command.get_matches_from(args);
    let cli = Cli::from_arg_matches(&matches);
    let cli = cli.unwrap_or_else(|error| error.exit());
    color::choose(cli.color);
    if cli.quiet {
        output::set_quiet();
    }
    let level = match (cli.quiet, cli.verbose) {
        (true, _) => tracing::Level::ERROR,
        (_, true) => tracing::Level::DEBUG,
        _ => tracing::Level::WARN,
    };
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(color::on_stderr())
        .with_max_level(level)
        .with_target(false)
        .without_time()
        .init();
    match run_command(&cli) {
        Ok(()) => 0,
        // A reader such as `head` has closed standard output early, which is not an error.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => 0,
        Err(failure) => {
            report(&failure, &cli, matches.subcommand_name());
            failure.exit_code()
        }
    }
}

fn run_command(cli: &Cli) -> Result<(), Failure> {
    match &cli.command {
        Command::Check(check) => check.run(cli.json),
        Command::Plan(input) => plan::run(input, cli.json),
        Command::Simulate(simulate) => simulate.run(cli.json),
        Command::Render(render) => render.run(cli.json),
        Command::Build(build) => build.run(cli.json),
        Command::Run(run) => run.run(cli.json),
        Command::Launch(launch) => launch.run(cli.json),
        Command::Bench(bench) => bench.run(cli.json),
        Command::Trace(trace) => trace.run(cli.json),
        Command::Tune(tune) => tune.run(cli.json),
        Command::FabricTest(test) => test.run(cli.json),
        Command::NicCheck(check) => check.run(cli.json),
        Command::Bundle(bundles) => bundles.run(cli.json),
        Command::List(list) => list.run(cli.json),
        Command::Clean(clean) => clean.run(cli.json),
        Command::FetchNvrtc(fetch) => fetch.run(cli.json),
        Command::Doctor => doctor::run(cli.json),
        Command::Completions(shell) => shell.run::<Cli>(),
        Command::Man(man) => man.run::<Cli>(cli.json),
        Command::Schema(schema) => schema.run(),
        Command::Topology(show) => show.run(cli.json),
    }
}

/// Prints an error of a command with its causes to standard error, and with `--json` also to standard output as JSON lines.
fn report(failure: &Failure, cli: &Cli, command: Option<&str>) {
    let problem = |line: ErrorLine| {
        if cli.json {
            // If standard output is closed, standard error still has the text.
            let _ = output::print_json(&line);
        }
    };
    match failure {
        Failure::Usage(message) => {
            let mut whole = Cli::command().color(cli.color);
            whole.build();
            let of = command.and_then(|name| whole.find_subcommand_mut(name));
            let error = match of {
                Some(of) => of.error(ErrorKind::ArgumentConflict, message),
                None => whole.error(ErrorKind::ArgumentConflict, message),
            };
            let _ = error.print();
            return;
        }
        Failure::Diagnostics(diagnostics) | Failure::Results(diagnostics) => {
            for SpannedDiagnostic { span, reason, help } in diagnostics {
                print_stderr(&format!(
                    "{span}: {ERROR}error:{ERROR:#} {reason}\n    help: {help}"
                ));
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
                print_stderr(&format!("{label}: {ERROR}error:{ERROR:#} {reason}"));
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
    print_stderr(&format!("{ERROR}error:{ERROR:#} {}", chain(failure)));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of each example are arguments of its command. A redirection is left to the shell.
    #[test]
    fn each_command_has_an_example_that_parses() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string);
            let help = help.unwrap_or_default();
            let example = help.strip_prefix("Example:\n  ").unwrap_or_default();
            let words = example.split(" > ").next().unwrap_or_default();
            let words: Vec<_> = words.split(' ').collect();
            assert_eq!(words.get(1), Some(&command.get_name()), "{help}");
            if let Err(error) = Cli::try_parse_from(&words) {
                panic!("{example}: {error}");
            }
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
