//! Every golden kernel on simulated GPUs: right for every seed, and never a finding.
use mkernel::{Dim, GemmConfig, GemmOp, GemmShape, Tuning};
use mkernel_testing::golden::Golden;
use mkernel_testing::jobs::attention::{self, AttentionJob, Pace};
use mkernel_testing::jobs::{Job, Simulated, agreed, all_are_right, all_are_right_when_old};

/// Seeds per kernel and world …
const SEEDS: u64 = 100;
/// … and those of each time. Mistakes that are planted show within few, and kernels as they are have the same bits on
/// several seeds: see `mutations`.
const SEEDS_EACH_TIME: u64 = 1;

/// Worlds of each time. Two ranks make old calls, the first of which are new ones.
const WORLDS_EACH_TIME: &[u32] = &[1, 4];

/// A size that a CPU can do, with the same tail of tiles.
fn small(size: u64, limit: u64) -> u64 {
    if size <= limit {
        size
    } else {
        limit + size % 128
    }
}

/// The golden kernel with few rows and columns, on `world` ranks.
fn job(golden: &Golden, world: u32) -> Job {
    let shape = golden.gemm().shape;
    // Shards of whole tiles, where the golden kernel's are.
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
    // A world of one has nothing to transfer.
    let tuning = if world == 1 {
        Tuning {
            tile_m: given.tuning.tile_m,
            tile_n: given.tuning.tile_n,
            ..Tuning::default()
        }
    } else {
        given.tuning
    };
    let config = GemmConfig {
        m: Dim::Static(shape.m),
        n: Dim::Static(shape.n),
        k: Dim::Static(shape.k),
        tuning,
        ..given
    };
    Job::new(world, config, shape, comm_ctas + 3)
}

/// Runs the golden kernels of `op` on so many ranks.
fn goldens_are_right(op: GemmOp, worlds: &[u32], seeds: u64) {
    let goldens = Golden::all();
    let all: Vec<(String, Job)> = goldens
        .iter()
        .filter(|golden| golden.plan.network.is_none())
        .filter(|golden| golden.plan.gemm().is_some_and(|gemm| gemm.config.op == op))
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

/// Every kernel goes on when the count of its calls passes 2^31 and 2^32. Those of `dispatch_gemm` and `combine`: see
/// `experts` and `multinode`.
#[test]
fn gemms_are_right_after_many_calls() {
    let goldens = Golden::all();
    let all: Vec<(String, Job)> = goldens
        .iter()
        .filter(|golden| golden.plan.network.is_none() && golden.plan.gemm().is_some())
        .map(|golden| (golden.name.clone(), job(golden, 2)))
        .collect();
    all_are_right_when_old(&all);
}

#[test]
fn attention_is_right_after_many_calls() {
    all_are_right_when_old(&attention::small(2));
}

#[test]
fn ag_gemm_is_right_on_every_seed() {
    goldens_are_right(GemmOp::AgGemm, WORLDS_EACH_TIME, SEEDS_EACH_TIME);
}

#[test]
fn gemm_rs_is_right_on_every_seed() {
    goldens_are_right(GemmOp::GemmRs, WORLDS_EACH_TIME, SEEDS_EACH_TIME);
}

#[test]
fn gemm_ar_is_right_on_every_seed() {
    goldens_are_right(GemmOp::GemmAr, WORLDS_EACH_TIME, SEEDS_EACH_TIME);
}

/// After a change of the simulator or of what the operators share.
#[test]
#[ignore = "takes an hour"]
fn every_operator_is_right_on_all_seeds() {
    for op in [GemmOp::AgGemm, GemmOp::GemmRs, GemmOp::GemmAr] {
        goldens_are_right(op, &[1, 2, 4], SEEDS);
    }
}

/// Tiles of attention take a simulated GPU long.
#[test]
fn attention_is_right_on_every_seed() {
    let all: Vec<(String, AttentionJob)> =
        [1, 2, 4].into_iter().flat_map(attention::small).collect();
    all_are_right(&all, SEEDS_EACH_TIME);
}

/// Waits for keys, and for room at a peer. (With fewer slots, what is sent after an abort meets what was there: then the
/// simulator says so.)
#[test]
fn a_missing_rank_of_attention_is_named() {
    use mkernel::Placement::Contiguous;
    let job = |heads| AttentionJob::new(2, [1, 200, heads, heads, 64], 2);
    for (job, missing, awaited) in [
        (job(2), 1, "a chunk of a peer's shard"),
        (job(2).causal(Contiguous), 1, "a free K/V slot at a peer"),
    ] {
        let failure = job.at(Pace::Without { rank: missing }).run(0);
        let failure = failure.expect_err("a rank is missing");
        assert!(
            failure.contains(&format!("rank {} was waiting", 1 - missing)),
            "{failure}"
        );
        assert!(failure.contains(&format!("rank {missing};")), "{failure}");
        assert!(failure.contains(awaited), "{failure}");
    }
}

/// The same jobs on GPUs: `tests/gpu/simulator.rs`.
#[test]
fn jobs_that_gpus_do_too_have_the_expected_bits() {
    let all: Vec<(String, Job)> = [1, 2].into_iter().flat_map(agreed).collect();
    all_are_right(&all, 1);
}
