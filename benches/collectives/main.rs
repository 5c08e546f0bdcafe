//! Benchmark of `all_reduce`, `all_gather`, `reduce_scatter`, `broadcast` and `all_to_all`. Needs GPUs.
//!
//! `cargo bench --bench collectives -- --help` lists the options, which are the fields of [`Flags`].

mod case;

use case::Case;
use clap::Parser;
use mkernel::{
    Communicator, KernelConfig,
    spec::{CollectiveConfig, CollectiveOp, Dim, Norm, Scales, SumEpilogue},
};
use mkernel_testing::blocks::{Blocks, in_turns, median};
use mkernel_testing::lab::{Failure, Lab, TimeLimit};
use mkernel_testing::options::Nodes;
use mkernel_testing::ranks::{exit_code, on_gpus};
use std::process::ExitCode;
use std::time::Duration;

/// The columns of a tensor with more than one row.
const COLS: u64 = 8192;

/// Times `all_reduce`, `all_gather`, `reduce_scatter`, `broadcast` and `all_to_all` on random bf16, and checks the first row of each result.
///
/// A time is the median over blocks of the time of one call, on the slowest rank. Blocks of all plans of a size take turns.
/// Tensors of up to 1 MiB are timed in a graph of 20 dependent calls. The rate is the bus bandwidth of NCCL's tests: the bytes of
/// the tensor times (W-1)/W, for `all_reduce` 2 (W-1)/W and for `broadcast` 1, divided by the time. `benches/baselines.py --op
/// all_reduce` measures the baselines.
#[derive(Clone, Debug, Parser)]
struct Flags {
    /// Number of GPUs: 1, 2, 4 or 8
    #[arg(long, default_value_t = 2)]
    world: u32,
    #[command(flatten)]
    network: Nodes,
    /// Operators [default: all]
    #[arg(long, value_delimiter = ',', value_parser = op)]
    op: Vec<CollectiveOp>,
    /// Sizes of the whole tensor in KiB, separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,4,16,64,256,1024,4096,16384,65536,262144"
    )]
    kib: Vec<u64>,
    /// Measure all protocols and numbers of shots instead of the planner's choice
    #[arg(long)]
    all: bool,
    /// Measure each plan of all_reduce, all_gather and all_to_all also with Y in symmetric memory
    #[arg(long)]
    symmetric: bool,
    /// Measure each plan of all_reduce also with a residual and a norm of its rows
    #[arg(long)]
    norm: bool,
    /// With --norm, measure each plan also with results of e4m3, with these scales: row, block or both
    #[arg(long, value_delimiter = ',', value_parser = scales, requires = "norm")]
    result_scales: Vec<Scales>,
    /// Measure each size also with rows at run time, prepared for at most this number; may be repeated
    #[arg(long)]
    max_rows: Vec<u64>,
    /// Number of blocks of each size
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Seconds after which the process ends, even if it hangs
    #[arg(long, default_value_t = 300)]
    limit_s: u64,
    /// Ignored. Cargo passes this option.
    #[arg(long, hide = true)]
    bench: bool,
}

fn op(name: &str) -> Result<CollectiveOp, String> {
    let found = CollectiveOp::ALL
        .into_iter()
        .find(|op| op.op().name() == name);
    let names = CollectiveOp::ALL.map(|op| op.op().name()).join(", ");
    found.ok_or_else(|| format!("unknown operator; use one of {names}"))
}

fn scales(name: &str) -> Result<Scales, String> {
    let found = Scales::OF_ROWS.into_iter().find(|of| of.name() == name);
    let names = Scales::OF_ROWS.map(Scales::name).join(", ");
    found.ok_or_else(|| format!("unknown scales; use one of {names}"))
}

fn main() -> ExitCode {
    exit_code(run(&Flags::parse()))
}

fn run(flags: &Flags) -> Result<(), Failure> {
    let _limit = TimeLimit::start("the benchmark", Duration::from_secs(flags.limit_s));
    println!("operator             KiB        µs   bound µs   GB/s  plan");
    on_gpus(flags.world, |ranks| one_rank(flags, ranks)).map(drop)
}

fn one_rank(flags: &Flags, ranks: &Communicator) -> Result<(), Failure> {
    ranks.set_transport(flags.network.transport());
    let lab = Lab::new(&ranks.default_stream())?;
    let blocks = Blocks::new(ranks, &lab.stream)?;
    let ops = match flags.op.as_slice() {
        [] => CollectiveOp::ALL.to_vec(),
        given => given.to_vec(),
    };
    for op in ops {
        for kib in &flags.kib {
            let rows = rows_of(flags, op, *kib);
            let case = |config| Case::new((flags, ranks), (&lab, &blocks), config, rows);
            let configs = configs(flags, op, *kib).into_iter();
            let cases: Result<Vec<_>, _> = configs.map(case).collect();
            let cases = cases?;
            measure(flags, &cases)?;
            // Memory may be freed only while no kernel of any rank runs.
            ranks.barrier()?;
        }
    }
    Ok(())
}

/// Checks all cases, then times the cases in turn, so that all cases run at equal clocks.
fn measure(flags: &Flags, cases: &[Case<'_>]) -> Result<(), Failure> {
    for case in cases {
        case.check()?;
    }
    let times = in_turns(flags.rounds, cases.len(), |index| cases[index].times())?;
    for (case, times) in cases.iter().zip(&times) {
        case.print(median(times));
    }
    Ok(())
}

/// Returns the rows of a tensor of this size, at least one row per rank for an all-to-all.
fn rows_of(flags: &Flags, op: CollectiveOp, kib: u64) -> u64 {
    let least = match op {
        CollectiveOp::AllToAll => flags.world.into(),
        _ => 1,
    };
    (kib * 512 / COLS).max(least)
}

/// Returns the configurations to measure: with constant rows, and the planner's choice with rows at run time.
fn configs(flags: &Flags, op: CollectiveOp, kib: u64) -> Vec<CollectiveConfig> {
    let rows = rows_of(flags, op, kib);
    let planned = CollectiveConfig {
        m: Dim::Static(rows),
        n: Dim::Static(kib * 512 / rows),
        ..CollectiveConfig::new(op)
    };
    let most = flags.max_rows.iter().filter(|most| **most >= rows);
    let up_to = most.map(|most| CollectiveConfig {
        m: Dim::UpTo(*most),
        ..planned
    });
    let constant = of_constant_rows(flags, planned);
    constant.into_iter().chain(up_to).collect()
}

fn of_constant_rows(flags: &Flags, planned: CollectiveConfig) -> Vec<CollectiveConfig> {
    use mkernel::spec::Protocol::{Ll, Simple};
    let op = planned.op;
    let kernel = |config: &CollectiveConfig| KernelConfig::new(flags.world, *config);
    let is_possible =
        |config: &CollectiveConfig| mkernel::spec::KernelSpec::validate(kernel(config)).is_ok();
    let (symmetric, normalises) = (flags.symmetric, flags.norm && op == CollectiveOp::AllReduce);
    let of_results = |config: CollectiveConfig| {
        let symmetric = symmetric.then_some(CollectiveConfig {
            symmetric_result: true,
            ..config
        });
        let scales = [Scales::None]
            .into_iter()
            .chain(flags.result_scales.iter().copied());
        let normalised = scales
            .filter(|_| normalises)
            .map(|result_scales| CollectiveConfig {
                epilogue: SumEpilogue {
                    residual: true,
                    norm: Norm::Rms,
                    result_scales,
                    ..SumEpilogue::default()
                },
                ..config
            });
        let normalised: Vec<_> = normalised.collect();
        [Some(config), symmetric]
            .into_iter()
            .flatten()
            .chain(normalised)
    };
    if !flags.all || flags.world == 1 || flags.network.nodes > 1 {
        return of_results(planned).filter(is_possible).collect();
    }
    let variants = match op {
        CollectiveOp::AllReduce => vec![(Ll, Some(1)), (Ll, Some(2)), (Simple, None)],
        _ => vec![(Ll, None), (Simple, None)],
    };
    let variants = variants
        .into_iter()
        .map(|(protocol, shots)| CollectiveConfig {
            protocol: Some(protocol),
            shots,
            ..planned
        });
    variants.flat_map(of_results).filter(is_possible).collect()
}
