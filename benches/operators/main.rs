//! Benchmark of the GEMM operators. Needs GPUs, and cuBLAS for the comparison.
//!
//! `cargo bench --bench operators -- --help` lists the options, which are the fields of [`flags::Flags`].

mod bench;
mod flags;
mod operands;
mod report;

use bench::Bench;
use clap::Parser;
use flags::{Flags, default_shapes, largest_world};
use mkernel::Communicator;
use mkernel_testing::blocks::Blocks;
use mkernel_testing::cublas::Cublas;
use mkernel_testing::lab::{Failure, Lab, TimeLimit, seed_from_clock};
use mkernel_testing::ranks::{exit_code, on_gpus};
use report::Baseline;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    exit_code(run(&Flags::parse()))
}

fn run(flags: &Flags) -> Result<(), Failure> {
    let _limit = TimeLimit::start("the benchmark", Duration::from_secs(flags.limit_s));
    let baselines = flags
        .baselines
        .as_deref()
        .map_or(Ok(Vec::new()), report::read_baselines)?;
    let gpus = mkernel::device_count()?;
    let world = flags
        .world
        .or_else(|| largest_world(gpus))
        .ok_or("this host has no visible GPU")?;
    let seed = seed_from_clock();
    let nodes = flags.network.nodes;
    println!("{world} of {gpus} GPUs in {nodes} nodes, seed {seed}");
    report::print_heading();
    on_gpus(world, |ranks| one_rank(flags, ranks, seed, &baselines)).map(drop)
}

fn one_rank(
    flags: &Flags,
    ranks: &Communicator,
    seed: u64,
    baselines: &[Baseline],
) -> Result<(), Failure> {
    let alone = Communicator::local(&[ranks.context().ordinal()])?;
    let alone = alone
        .first()
        .ok_or("there is no communicator of one rank")?;
    ranks.set_transport(flags.network.transport());
    let lab = Lab::new(&ranks.default_stream())?;
    let bench = Bench {
        flags,
        ranks,
        alone,
        cublas: Cublas::new(flags.cublas_dir.as_deref(), &lab.stream)?,
        blocks: Blocks::new(ranks, &lab.stream)?,
        lab: &lab,
        baselines,
        seed,
    };
    for op in &flags.op {
        let shapes = match flags.shapes.as_slice() {
            [] => default_shapes(*op, u64::from(ranks.world())),
            given => given.to_vec(),
        };
        for shape in shapes {
            for layout in &flags.b_layout {
                bench.shape(*op, shape, *layout)?;
            }
        }
    }
    Ok(())
}
