//! Benchmark of the GEMM operators as in decoding: calls that depend on each other, in one CUDA graph. Needs GPUs, cuBLAS,
//! and PyTorch for the rivals.
//!
//! `cargo bench --bench chain -- --help` lists the options, which are the fields of [`Flags`].

mod chain;
mod flags;
mod rivals;

use chain::Bench;
use clap::Parser;
use flags::{Flags, default_shapes};
use mkernel::Communicator;
use mkernel::spec::{GemmOp, GemmShape};
use mkernel_testing::blocks::Blocks;
use mkernel_testing::cublas::Cublas;
use mkernel_testing::lab::{Failure, Lab, TimeLimit, seed_from_clock};
use mkernel_testing::ranks::{exit_code, on_gpus};
use rivals::Rivals;
use std::process::ExitCode;
use std::time::Duration;

/// An operator and a size.
type Case = (GemmOp, GemmShape);

/// The times of one case in µs per call.
struct Row {
    case: Case,
    /// The plans, by their identifiers.
    ours: Vec<(String, f64)>,
    cublas_us: f64,
    /// The time of the NICs alone, with several nodes.
    nics_us: Option<f64>,
}

fn main() -> ExitCode {
    exit_code(run(&Flags::parse()))
}

fn run(flags: &Flags) -> Result<(), Failure> {
    let _limit = TimeLimit::start("the benchmark", Duration::from_secs(flags.limit_s));
    let world = flags.world as usize;
    let cases = cases(flags);
    let seed = seed_from_clock();
    println!("{world} GPUs in {} nodes, seed {seed}", flags.network.nodes);
    // The rivals run before and after the plans, since the speed of GPUs depends on heat.
    let mut rivals = Rivals::default();
    rivals.measure(flags, &cases)?;
    let rows = on_gpus(flags.world, |ranks| one_rank(flags, ranks, &cases, seed))?;
    rivals.measure(flags, &cases)?;
    let rows = rows.first().map_or(&[][..], Vec::as_slice);
    for row in rows {
        rivals.add_measured(row.case, row.cublas_us, row.nics_us);
    }
    print(rows, &rivals);
    Ok(())
}

fn cases(flags: &Flags) -> Vec<Case> {
    let of = |op: GemmOp| match flags.shapes.as_slice() {
        [] => default_shapes(op),
        given => given.to_vec(),
    };
    let ops = flags.op.iter();
    ops.flat_map(|op| of(*op).into_iter().map(|shape| (*op, shape)))
        .collect()
}

/// Measures all cases, and returns their times on the slowest rank.
fn one_rank(
    flags: &Flags,
    ranks: &Communicator,
    cases: &[Case],
    seed: u64,
) -> Result<Vec<Row>, Failure> {
    ranks.set_transport(flags.network.transport());
    let lab = Lab::new(&ranks.default_stream())?;
    // The default stream cannot be captured.
    let captured = ranks.context().new_stream()?;
    let bench = Bench {
        flags,
        ranks,
        lab: &lab,
        cublas: Cublas::new(flags.cublas_dir.as_deref(), &captured)?,
        captured,
        blocks: Blocks::new(ranks, &lab.stream)?,
        seed,
    };
    cases.iter().map(|case| bench.case(*case)).collect()
}

/// Prints a line per case and plan. The last columns are the plan's time divided by the time of the fastest rival, and
/// the plan's identifier.
fn print(rows: &[Row], rivals: &Rivals) {
    let names = rivals.names();
    let widths = names.iter().map(|name| format!("{name:>18}"));
    let heading = widths.collect::<Vec<_>>().concat();
    println!("operator       M      N      K    ours µs  cuBLAS µs{heading}  ours ÷ best  plan");
    for Row {
        case,
        ours,
        cublas_us,
        ..
    } in rows
    {
        let (op, GemmShape { m, n, k }) = case;
        let times = names.iter().map(|name| rivals.time(*case, name));
        let cells: String = times
            .map(|us| us.map_or(format!("{:>18}", "-"), |us| format!("{us:>18.1}")))
            .collect();
        let best = rivals.best(*case);
        for (id, us) in ours {
            let ratio = best.map_or(f64::NAN, |best| us / best);
            println!(
                "{:<8} {m:>7} {n:>6} {k:>6} {us:>10.1} {cublas_us:>10.1}{cells} {ratio:>12.2}  {id}",
                op.op().name()
            );
        }
    }
}
