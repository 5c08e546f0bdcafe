//! Tests of tensors in symmetric memory.

use crate::nodes::topologies;
use crate::ranks::{on_ranks, worlds};
use crate::rows;
use mkernel::half::bf16;
use mkernel::spec::{
    CollectiveConfig, CollectiveOp, CollectiveShape, Dim, Dtype, Epilogue, GemmConfig, GemmOp,
    GemmShape, Tuning,
};
use mkernel::{Communicator, KernelConfig, Operand, network::Faults};
use mkernel_testing::jobs::GemmJob;
use mkernel_testing::jobs::gemm::cases::symmetric;
use mkernel_testing::lab::{Failure, TimeLimit};
use std::time::Duration;

const SHAPE: CollectiveShape = CollectiveShape { m: 64, n: 4096 };

/// Adds up tensors in symmetric memory while other tensors are allocated and freed. Reused space is zero, and the heap does not
/// grow with the number of tensors.
#[test]
#[ignore = "needs GPUs"]
fn tensors_in_symmetric_memory_are_allocated_and_freed_between_calls() {
    let _limit = TimeLimit::start("symmetric memory", Duration::from_secs(120));
    for world in worlds(1) {
        on_ranks(world, come_and_go);
    }
}

/// Owners of tiles store straight to C of all ranks.
#[test]
#[ignore = "needs GPUs"]
fn gemms_with_symmetric_results_are_right() {
    let _limit = TimeLimit::start("symmetric GEMMs", Duration::from_secs(300));
    for world in worlds(1) {
        let jobs = [symmetric(world), large(world)].concat();
        rows::run(&jobs);
        println!("world {world}: {} jobs", jobs.len());
    }
}

/// NICs send A directly from symmetric memory.
#[test]
#[ignore = "needs GPUs"]
fn shards_sent_in_place_are_right() {
    let _limit = TimeLimit::start("shards in place", Duration::from_secs(300));
    for (world, nodes) in topologies() {
        let jobs = in_place(world, nodes);
        rows::run(&jobs);
        println!("{world} ranks, {nodes} nodes: {} jobs", jobs.len());
    }
}

/// Returns jobs of `ag_gemm` with A in symmetric memory, with constant rows and with rows at run time.
fn in_place(world: u32, nodes: u32) -> Vec<(String, GemmJob)> {
    let job = |(m, n, k): (u64, u64, u64)| {
        let config = GemmConfig {
            m: Dim::Static(m),
            n: Dim::Static(n),
            k: Dim::Static(k),
            ..GemmConfig::new(GemmOp::AgGemm)
        };
        GemmJob::new(world, config, GemmShape { m, n, k }, 0)
            .across(nodes, Faults::default())
            .with_symmetric_a()
    };
    let rows: Vec<u64> = vec![2000, 1, 700, 0, 1999, 64, 2000];
    let name = |name: &str| format!("{name} on {world} ranks, {nodes} nodes");
    vec![
        (name("one row"), job((1, 264, 136))),
        (name("whole tiles"), job((2048, 1032, 264))),
        (name("tiles that straddle shards"), job((1000, 520, 1032))),
        (name("rows"), job((2000, 1032, 128)).with_rows(&rows)),
        (
            name("rows in a graph"),
            job((2000, 520, 264)).with_rows(&rows).in_graph(),
        ),
    ]
}

/// Returns jobs that are too large for simulated GPUs.
fn large(world: u32) -> Vec<(String, GemmJob)> {
    let job = |(m, n, k): (u64, u64, u64), output| {
        let config = GemmConfig {
            m: Dim::Static(m),
            n: Dim::Static(n),
            k: Dim::Static(k),
            epilogue: Epilogue {
                output,
                ..Epilogue::default()
            },
            tuning: Tuning {
                shots: (world > 1).then_some(2),
                ..Tuning::default()
            },
            ..GemmConfig::new(GemmOp::GemmAr)
        };
        GemmJob::new(world, config, GemmShape { m, n, k }, 0).symmetric()
    };
    let rows: Vec<u64> = vec![2000, 1, 700, 0, 1999, 64, 2000];
    vec![
        ("whole tiles".to_owned(), job((1024, 2048, 256), None)),
        (
            "parts of tiles".to_owned(),
            job((1000, 1544, 264), Some(Dtype::Fp32)),
        ),
        (
            "rows".to_owned(),
            job((2000, 1032, 128), None).with_rows(&rows),
        ),
    ]
}

/// Checks without a GPU that all jobs are possible, that large jobs store to C of peers, and that jobs on several nodes send A in
/// place.
#[test]
fn every_job_with_a_symmetric_result_has_a_plan() {
    use mkernel::{KernelPlan, spec::Device};
    for world in mkernel::spec::spec::WORLDS {
        let plan = |(name, job): &(String, GemmJob)| {
            let plan = KernelPlan::new(&rows::spec(job), &Device::h200());
            plan.unwrap_or_else(|error| panic!("{name}: {error}"))
        };
        symmetric(world).iter().for_each(|job| drop(plan(job)));
        for job in large(world) {
            assert_eq!(plan(&job).id.contains("_symmetric"), world > 1, "{}", job.0);
        }
        for job in in_place(2 * world, 2) {
            assert!(plan(&job).id.contains("_symmetric"), "{}", job.0);
        }
    }
}

fn come_and_go(ranks: &Communicator) -> Result<(), Failure> {
    let config = CollectiveConfig {
        m: Dim::Static(SHAPE.m),
        n: Dim::Static(SHAPE.n),
        ..CollectiveConfig::new(CollectiveOp::AllReduce)
    };
    let config = KernelConfig::new(ranks.world(), config);
    let operator = ranks.prepare(&config, SHAPE)?;
    // Two streams, so that cudarc orders uses by events.
    let (stream, other) = (ranks.context().new_stream()?, ranks.context().new_stream()?);
    let elems = (SHAPE.m * SHAPE.n) as usize;
    let mut kept = Vec::new();
    let mut extents = 0;
    for round in 0..60_usize {
        let mut x = ranks.alloc::<bf16>(&other, elems)?;
        let mut y = ranks.alloc::<bf16>(&stream, elems)?;
        let before = other.clone_dtoh(&x)?;
        if before.iter().any(|elem| elem.to_bits() != 0) {
            return Err(format!("round {round}: a new tensor is not zero").into());
        }
        let own = bf16::from_f32((round + ranks.rank() as usize) as f32);
        other.memcpy_htod(&vec![own; elems], &mut x)?;
        let call = operator.call(&stream).read(Operand::X, &x);
        call.write(Operand::Y, &mut y).launch()?;
        // The call may still read the tensor.
        drop(x);
        // Each rank keeps another number of tensors, of other sizes.
        kept.push(ranks.alloc::<f32>(&other, 1 << (18 + (round * 5 + 3) % 5))?);
        let most = 1 + (ranks.rank() as usize + round) % 3;
        while kept.len() > most {
            kept.remove(round % kept.len());
        }
        ranks.synchronize(&stream)?;
        let world = ranks.world() as usize;
        let sum = (world * round + world * (world - 1) / 2) as f32;
        let sums = stream.clone_dtoh(&y)?;
        if sums.iter().any(|found| *found != bf16::from_f32(sum)) {
            return Err(format!("round {round}: a sum is not {sum}").into());
        }
        if round == 20 {
            extents = ranks.stats().heap.extents;
        }
    }
    let heap = ranks.stats().heap;
    match heap.extents == extents {
        true => Ok(()),
        false => Err(format!("the heap has grown from {extents} extents: {heap}").into()),
    }
}
