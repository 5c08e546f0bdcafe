//! Tests of the golden GEMM kernels of one node and of attention, on simulated GPUs at small sizes.
//!
//! The results must be right with every seed and have the same bits, and the simulator must find no defect.

use mkernel::spec::{Dim, GemmConfig, GemmOp, GemmShape, Tuning};
use mkernel_testing::golden::Golden;
use mkernel_testing::jobs::attention::{AttentionJob, CallPattern, cases};
use mkernel_testing::jobs::gemm::cases::symmetric;
use mkernel_testing::jobs::{
    GemmJob, SimulatedJob, all_are_right, all_are_right_when_counters_wrap, common_jobs,
};

/// The number of seeds per kernel and world in the ignored tests.
const SEEDS: u64 = 100;
/// The number of seeds per kernel and world in the other tests. One suffices here, since the tests of `mutations` run
/// kernels with several seeds and show that defects are found with few.
const DEFAULT_SEEDS: u64 = 1;

/// The worlds in the tests that are not ignored. The tests with a high call count run on two ranks.
const DEFAULT_WORLDS: &[u32] = &[1, 4];

/// Returns a size that is small enough for a CPU and has the same remainder as `size` after whole tiles.
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
    // The shards have whole tiles if those of the golden configuration have.
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
    // One rank transfers nothing, so options of the transfer are refused.
    let tuning = if world == 1 {
        Tuning {
            tile_m: given.tuning.tile_m,
            tile_n: given.tuning.tile_n,
            ..Tuning::default()
        }
    } else {
        Tuning {
            buckets: None, // these calls have one number of rows
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
    // A cluster has all of its CTAs at once, and every tile has one.
    let sms = if tuning.cluster == Some(true) { 16 } else { 3 };
    GemmJob::new(world, config, shape, comm_ctas + sms)
}

/// Returns the golden GEMM kernels of one node. Those that normalise rows are tests of `collectives`, which compare norms
/// with a reference in fp64.
fn goldens() -> Vec<Golden> {
    let mut goldens = Golden::all();
    goldens.retain(|golden| {
        let gemm = golden.plan.gemm();
        golden.plan.body().network.is_none()
            && gemm.is_some_and(|gemm| !gemm.config.epilogue.normalises())
    });
    goldens
}

/// Runs the golden kernels of `op` in these worlds.
fn goldens_are_right(op: GemmOp, worlds: &[u32], seeds: u64) {
    let goldens = goldens();
    let all: Vec<(String, GemmJob)> = goldens
        .iter()
        .filter(|golden| golden.gemm().config.op == op)
        .flat_map(|golden| {
            worlds.iter().map(|world| {
                (
                    format!("{} on {world} ranks", golden.name),
                    job(golden, *world),
                )
            })
        })
        .collect();
    all_are_right(&all, seeds);
}

/// The results stay right while the call count passes 2^31 and 2^32. The tests `experts` and `multinode` check the same
/// for `dispatch_gemm` and `combine`.
#[test]
fn gemms_are_right_after_many_calls() {
    let all: Vec<(String, GemmJob)> = goldens()
        .iter()
        .map(|golden| (golden.name.clone(), job(golden, 2)))
        .collect();
    all_are_right_when_counters_wrap(&all);
}

#[test]
fn attention_is_right_after_many_calls() {
    all_are_right_when_counters_wrap(&cases::small(2));
}

#[test]
fn ag_gemm_is_right_on_every_seed() {
    goldens_are_right(GemmOp::AgGemm, DEFAULT_WORLDS, DEFAULT_SEEDS);
}

#[test]
fn gemm_rs_is_right_on_every_seed() {
    goldens_are_right(GemmOp::GemmRs, DEFAULT_WORLDS, DEFAULT_SEEDS);
}

#[test]
fn gemm_ar_is_right_on_every_seed() {
    goldens_are_right(GemmOp::GemmAr, DEFAULT_WORLDS, DEFAULT_SEEDS);
}

#[test]
fn gemm_is_right_on_every_seed() {
    goldens_are_right(GemmOp::Gemm, DEFAULT_WORLDS, DEFAULT_SEEDS);
}

/// This test is for changes of the simulator and of code that the operators share.
#[test]
#[ignore = "takes an hour"]
fn every_operator_is_right_on_all_seeds() {
    for op in GemmOp::ALL {
        goldens_are_right(op, &[1, 2, 4], SEEDS);
    }
}

#[test]
fn attention_is_right_on_every_seed() {
    let all: Vec<(String, AttentionJob)> = [1, 2, 4].into_iter().flat_map(cases::small).collect();
    all_are_right(&all, DEFAULT_SEEDS);
}

/// One job waits for keys, and one for a free slot at a peer.
///
/// The jobs do not have few slots. With few slots, the data that is sent after an abort would overwrite data in use,
/// and the simulator would report that.
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

/// `tests/gpu/simulator.rs` runs the same jobs on GPUs.
#[test]
fn jobs_that_also_run_on_gpus_have_the_expected_bits() {
    let all: Vec<(String, GemmJob)> = [1, 2].into_iter().flat_map(common_jobs).collect();
    all_are_right(&all, 1);
}

/// Owners store straight to C of all ranks.
#[test]
fn results_in_symmetric_memory_are_right() {
    let jobs: Vec<_> = [1, 2, 4].into_iter().flat_map(symmetric).collect();
    all_are_right(&jobs, 2);
}

#[test]
fn results_in_symmetric_memory_are_right_when_counters_wrap() {
    all_are_right_when_counters_wrap(&symmetric(2));
}
