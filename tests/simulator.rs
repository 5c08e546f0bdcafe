//! Tests of the golden GEMM kernels of one node and of attention, on simulated GPUs at small sizes.
//!
//! The results must be right, also when counters wrap, and the simulator must find no defect.

use mkernel::spec::{Dim, GemmConfig, GemmOp, GemmShape, Tuning};
use mkernel_testing::golden::Golden;
use mkernel_testing::jobs::attention::{AttentionJob, CallPattern, cases};
use mkernel_testing::jobs::gemm::cases::symmetric;
use mkernel_testing::jobs::gemm::quantised::quantised;
use mkernel_testing::jobs::{
    GemmJob, SimulatedJob, all_are_right, all_are_right_now_or_after_many_calls, common_jobs,
    each_in_one, share,
};
use std::collections::BTreeSet;

/// The number of seeds per kernel and world in the ignored test.
const SEEDS: u64 = 100;

/// Returns a size that is small enough for a CPU and ends inside a tile like `size`.
fn small(size: u64, limit: u64) -> u64 {
    if size <= limit {
        size
    } else {
        limit + size % 128
    }
}

/// Returns a job with the golden configuration at a small size, on `world` ranks.
fn job(golden: &Golden, world: u32) -> GemmJob {
    let shape = golden.gemm().shape;
    // Shards have whole tiles if those of the golden configuration have whole tiles.
    let rows = if shape.m.is_multiple_of(1024) {
        128 * u64::from(world.max(2))
    } else {
        256
    };
    let shape = GemmShape {
        m: small(shape.m, rows),
        n: small(shape.n, 256),
        k: small(shape.k, 256),
    };
    let given = golden.gemm().config;
    let comm_ctas = given.tuning.comm_ctas.unwrap_or(0);
    // Specs of one rank refuse options of the transfer.
    let tuning = if world == 1 {
        Tuning {
            tile_m: given.tuning.tile_m,
            tile_n: given.tuning.tile_n,
            ..Tuning::default()
        }
    } else {
        Tuning {
            buckets: None, // all calls have one number of rows
            ..given.tuning
        }
    };
    let config = GemmConfig {
        m: Dim::Static(shape.m),
        n: Dim::Static(shape.n),
        k: Dim::Static(shape.k),
        tuning,
        ..given
    };
    // Every tile has a cluster, whose CTAs run at the same time.
    let sms = if tuning.cluster == Some(true) { 16 } else { 3 };
    GemmJob::new(world, config, shape, comm_ctas + sms)
}

/// Returns the golden GEMM kernels of one node without a norm and without scales of results. Tests of `collectives` compare norms
/// with a reference in fp64.
fn goldens() -> Vec<Golden> {
    let mut goldens = Golden::all();
    goldens.retain(|golden| {
        let gemm = golden.plan.gemm();
        golden.plan.body().network.is_none()
            && gemm.is_some_and(|gemm| {
                !gemm.config.epilogue.normalises() && !gemm.config.epilogue.quantises()
            })
    });
    goldens
}

/// Returns jobs of the golden kernels of `op` in these worlds.
fn jobs_of(op: GemmOp, worlds: &[u32]) -> Vec<(String, GemmJob)> {
    let goldens = goldens().into_iter();
    let of_op = goldens.filter(|golden| golden.gemm().config.op == op);
    let in_worlds = |golden: Golden| {
        let in_world = |world: &u32| {
            let name = format!("{} on {world} ranks", golden.name);
            (name, job(&golden, *world))
        };
        worlds.iter().map(in_world).collect::<Vec<_>>()
    };
    // On one rank, configurations that differ only in options of the transfer are equal.
    let mut seen = BTreeSet::new();
    let mut is_new =
        |job: &GemmJob| seen.insert(format!("{:?}", (job.world, job.config, job.shape, job.sms)));
    let jobs = of_op.flat_map(in_worlds);
    jobs.filter(|(_, job)| is_new(job)).collect()
}

/// Runs each golden kernel of `op` on four ranks, and a third of these kernels on one rank. The tests of `mutants` and `rows`
/// run on two ranks. One seed suffices, since the tests of `mutants` find most defects with any seed.
fn goldens_are_right(op: GemmOp) {
    let jobs = [jobs_of(op, &[4]), share(jobs_of(op, &[1]), "", (0, 3))].concat();
    all_are_right_now_or_after_many_calls(&jobs);
}

#[test]
fn ag_gemm_is_right() {
    goldens_are_right(GemmOp::AgGemm);
}

#[test]
fn gemm_rs_is_right() {
    goldens_are_right(GemmOp::GemmRs);
}

#[test]
fn gemm_ar_is_right() {
    goldens_are_right(GemmOp::GemmAr);
}

/// Ranks do not wait for each other, so most kernels run on one rank.
#[test]
fn gemm_is_right() {
    let several = share(jobs_of(GemmOp::Gemm, &[4]), "", (0, 3));
    let jobs = [jobs_of(GemmOp::Gemm, &[1]), several].concat();
    all_are_right_now_or_after_many_calls(&jobs);
}

#[test]
fn products_become_e4m3() {
    all_are_right_now_or_after_many_calls(&each_in_one(&[1, 2, 4], quantised));
}

/// A long run for changes of the simulator and of code that operators share.
#[test]
#[ignore = "takes an hour"]
fn every_operator_is_right_on_all_seeds() {
    for op in GemmOp::ALL {
        all_are_right(&jobs_of(op, &[1, 2, 4]), SEEDS);
    }
}

#[test]
fn attention_is_right() {
    let one = share(cases::small(1), "", (0, 3));
    let jobs = [one, each_in_one(&[2, 4], cases::small)].concat();
    all_are_right_now_or_after_many_calls(&jobs);
}

/// One job waits for keys, and one for a free slot at a peer.
///
/// The jobs have many slots. With few slots, data that is sent after an abort would overwrite data in use, which the
/// simulator would report.
#[test]
fn a_missing_rank_of_attention_is_named() {
    use mkernel::spec::Placement::Contiguous;
    let job = |heads| AttentionJob::new(2, [1, 200, heads, heads, 64], 2);
    for (job, missing, awaited) in [
        (job(2), 1, "a chunk of a peer's shard"),
        (job(2).causal(Contiguous), 1, "a free K/V slot at a peer"),
    ] {
        let failure = job
            .pattern(CallPattern::AbsentRank { rank: missing })
            .run(0);
        let failure = failure.expect_err("a rank is missing");
        assert!(
            failure.contains(&format!("rank {} was waiting", 1 - missing)),
            "{failure}"
        );
        assert!(failure.contains(&format!("rank {missing};")), "{failure}");
        assert!(failure.contains(awaited), "{failure}");
    }
}

/// `tests/gpu/simulator.rs` runs these jobs on GPUs.
#[test]
fn jobs_that_also_run_on_gpus_have_the_expected_bits() {
    all_are_right(&share(common_jobs(2), "", (0, 3)), 1);
}

/// Owners store straight to C of all ranks.
#[test]
fn results_in_symmetric_memory_are_right() {
    let jobs = [symmetric(1), each_in_one(&[2, 4], symmetric)].concat();
    all_are_right_now_or_after_many_calls(&jobs);
}
