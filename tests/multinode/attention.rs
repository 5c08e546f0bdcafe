//! Tests of `ring_attention` on several nodes: masks, both placements, ranks without rows, calls out of step, graphs, a
//! node that makes no call, and mutations.

use mkernel::spec::Placement::{Contiguous, Zigzag};
use mkernel_testing::jobs::attention::{AttentionJob, CallPattern};
use mkernel_testing::jobs::{
    Mutation, SimulatedJob, all_are_right, all_are_right_when_counters_wrap,
    all_mutations_are_found, bad_network,
};

/// The number of seeds with which a mutation must be found. One mutation, in which the keys of another put are awaited,
/// is found by about one seed in 25.
const SEEDS_TO_FIND: u64 = 300;
/// The number of seeds with which one node makes no call.
const SEEDS_WITHOUT_A_RANK: u64 = 2;
/// The number of seeds per job, so that their bits can be compared.
const SEEDS: u64 = 2;

/// Returns a job on `nodes` nodes of `local_world` ranks. `sizes` are the batch, the length of the sequence, the heads
/// of Q, the heads of K and V, and the dimension of a head.
///
/// Two CTAs communicate. They forward parts soon, since the edit of `LAG` shortens the distance between a put and the
/// forwarding of its parts. A put has at most 4 parts.
fn job((nodes, local_world): (u32, u32), sizes: [u64; 5]) -> AttentionJob {
    let job = AttentionJob::new(nodes * local_world, sizes, 3);
    let mut job = job.across(nodes, bad_network()).pushed_by(2);
    job.edit(vec![(LAG.into(), "kForwardLag = 4;".into())]);
    job
}

/// The line that sets the number of parts after which a part is forwarded.
const LAG: &str = "kForwardLag = 512;";

fn named(jobs: Vec<AttentionJob>) -> Vec<(String, AttentionJob)> {
    let name = |job: &AttentionJob| {
        let (nodes, world) = (job.nodes, job.machine.world);
        format!("{:?} on {world} ranks of {nodes} nodes", job.config)
    };
    jobs.into_iter().map(|job| (name(&job), job)).collect()
}

#[test]
fn queries_attend_to_the_keys_of_all_nodes() {
    all_are_right(
        &named(vec![
            job((2, 2), [1, 70, 6, 6, 64]),
            job((3, 1), [1, 150, 2, 2, 128]),
            job((3, 2), [1, 5, 2, 2, 64]),
            job((2, 2), [1, 270, 1, 1, 64]).zigzag(),
        ]),
        SEEDS,
    );
}

#[test]
fn masks_hold_across_nodes() {
    all_are_right(
        &named(vec![
            job((2, 1), [1, 301, 2, 1, 64]).causal(Contiguous),
            job((2, 2), [2, 301, 2, 1, 64]).causal(Zigzag),
            job((2, 3), [1, 200, 2, 2, 128]).causal(Contiguous),
        ]),
        SEEDS,
    );
}

/// The call count passes 2^31 and 2^32, and the number of puts passes 2^32 too.
#[test]
fn attention_is_right_after_many_calls() {
    all_are_right_when_counters_wrap(&named(vec![
        job((2, 1), [1, 260, 4, 4, 64]),
        job((2, 2), [2, 259, 2, 1, 64]).bhsd(),
        job((3, 2), [1, 7, 2, 2, 64]).causal(Zigzag),
        job((2, 2), [1, 300, 2, 2, 64]).causal(Contiguous),
    ]));
}

#[test]
fn calls_out_of_step_and_in_graphs_are_right() {
    let patterns = [CallPattern::OutOfStep, CallPattern::Graph];
    let jobs = patterns.map(|pattern| job((2, 2), [1, 140, 2, 2, 64]).pattern(pattern));
    let masked = patterns.map(|pattern| {
        let job = job((2, 2), [1, 140, 2, 1, 64]).pattern(pattern);
        job.causal(Contiguous)
    });
    all_are_right(&named([jobs, masked].concat()), SEEDS);
}

/// Rank 0 gets an error that names rank 1, whether its own deadline passes first or the close message of rank 1 arrives
/// first. Ranks that have aborted overwrite nothing that others still read.
#[test]
fn a_rank_that_makes_no_call_is_named() {
    for nodes in [(2, 1), (2, 2)] {
        let missing = job(nodes, [1, 140, 2, 2, 64]).pattern(CallPattern::AbsentRank { rank: 1 });
        for seed in 0..SEEDS_WITHOUT_A_RANK {
            let failure = missing.run(seed).expect_err("rank 1 is missing");
            let is_named = failure.contains("rank 1") && !failure.contains("simulator found");
            assert!(is_named, "{nodes:?}, seed {seed}: {failure}");
        }
    }
}

/// Returns a job in which each rank has several tiles of two heads.
fn all_keys() -> AttentionJob {
    job((2, 2), [1, 512, 2, 2, 64])
}

/// Returns a job in which the first node waits for no keys, but only for the numbers of puts.
fn one_way() -> AttentionJob {
    job((2, 2), [1, 512, 1, 1, 64]).causal(Contiguous)
}

/// Returns a job in which only rank 1 waits for another rank. So rank 0, for which it waits, can be two calls ahead.
fn far_ahead() -> AttentionJob {
    let mut job = job((2, 2), [1, 2, 4, 4, 64]).causal(Contiguous);
    (job.machine.sms, job.machine.skew) = (2, 95);
    job.pushed_by(1)
}

#[rustfmt::skip]
const MUTATIONS: &[Mutation<AttentionJob>] = &[
    ("keys put before they are written", all_keys, &[("@kv-forward.own-wait", "wait_flag( => if (false) wait_flag(")]),
    ("keys forwarded before they have arrived", all_keys, &[("@kv-forward.arrival", "")]),
    ("the last parts are not forwarded", all_keys, &[("@kv-forward.lag", " + Config::kForwardLag => ")]),
    ("keys of another put awaited", all_keys, &[("@kv-forward.arrival", "put_of(ctx, part) => 0")]),
    ("keys of another peer forwarded", all_keys, &[("@kv-forward.part", "Network::rank_of_peer(ctx, peer) => ctx.rank")]),
    ("keys put to another slot", all_keys, &[("@kv-forward.put", "first.part(ctx, 0) => Workspace::kv_parts(0, 0, 0, 0, 0)")]),
    ("only K is put", all_keys, &[("@kv-forward.put", "tiles * 2 => tiles")]),
    ("one buffer for all calls", all_keys, &[("@kv-slots.buffer", "ctx.epoch => 0u")]),
    ("no wait for the readers of a slot", far_ahead, &[("@kv-slots.credit", "slot.earlier => 0u")]),
    ("credits for the source, not for the rank that forwards", all_keys, &[("@kv-slots.release-node", "source => ctx.rank")]),
    ("a node that needs keys gets none", one_way, &[("@kv-forward.needs", "return node_attends => return !node_attends")]),
    ("calls end before all puts have arrived", one_way, &[("@put.watch-arrivals", "Network::watch_arrivals(args, ctx, Begin::kPuts, [puts](u32) { return puts; }) => false")]),
];

#[test]
fn every_mutation_is_found() {
    all_mutations_are_found(MUTATIONS, SEEDS_TO_FIND);
}
