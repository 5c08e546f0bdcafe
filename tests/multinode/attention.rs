//! `ring_attention` on several nodes: masks, both placements, ranks without rows, calls out of step, graphs, and mistakes.

use crate::{SEEDS, bad_network};
use mkernel::Placement::{Contiguous, Zigzag};
use mkernel_testing::jobs::attention::{AttentionJob, CallPattern};
use mkernel_testing::jobs::{
    SimulatedJob, all_are_found, all_are_right, all_are_right_when_counters_wrap, mutated,
};

/// Seeds within which a mistake must be found. About one in 25 shows that keys of another put are awaited.
const SEEDS_TO_FIND: u64 = 300;
/// Seeds of a call that one node does not make.
const SEEDS_WITHOUT_A_NODE: u64 = 20;

/// `[B, S, H, H of K and V, D]` on nodes of `local_world` ranks. Few CTAs send, and relay soon: a put has at most 4 parts.
fn job((nodes, local_world): (u32, u32), sizes: [u64; 5]) -> AttentionJob {
    let job = AttentionJob::new(nodes * local_world, sizes, 3);
    let mut job = job.across(nodes, bad_network()).pushed_by(2);
    job.edit(vec![(LAG.into(), "kForwardLag = 4;".into())]);
    job
}

const LAG: &str = "kForwardLag = 512;";

fn named(jobs: Vec<AttentionJob>) -> Vec<(String, AttentionJob)> {
    let name = |job: &AttentionJob| {
        let (nodes, world) = (job.nodes, job.machine.world);
        format!("{:?} on {world} ranks of {nodes} nodes", job.config)
    };
    jobs.into_iter().map(|job| (name(&job), job)).collect()
}

#[test]
fn all_keys_are_attended_to() {
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

/// The count of calls passes 2^31 and 2^32, and with it the count of puts passes 2^32.
#[test]
fn keys_come_after_many_calls() {
    all_are_right_when_counters_wrap(&named(vec![
        job((2, 1), [1, 260, 4, 4, 64]),
        job((2, 2), [2, 259, 2, 1, 64]).bhsd(),
        job((3, 2), [1, 7, 2, 2, 64]).causal(Zigzag),
        job((2, 2), [1, 300, 2, 2, 64]).causal(Contiguous),
    ]));
}

#[test]
fn calls_are_out_of_step_and_in_graphs() {
    let patterns = [CallPattern::OutOfStep, CallPattern::Graph];
    let jobs = patterns.map(|pattern| job((2, 2), [1, 140, 2, 2, 64]).pattern(pattern));
    let masked = patterns.map(|pattern| {
        let job = job((2, 2), [1, 140, 2, 1, 64]).pattern(pattern);
        job.causal(Contiguous)
    });
    all_are_right(&named([jobs, masked].concat()), SEEDS);
}

/// Whether its peer waits in vain, or hears first that it has ended. Nodes of one rank: in others, ranks that have given up
/// write over what those read that have not seen it yet. Nobody gets such results, but the simulator tells of it first.
#[test]
fn a_node_that_makes_no_call_is_named() {
    let missing = job((2, 1), [1, 140, 2, 2, 64]).pattern(CallPattern::AbsentRank { rank: 1 });
    for seed in 0..SEEDS_WITHOUT_A_NODE {
        let failure = missing.run(seed).expect_err("rank 1 is missing");
        let is_named = failure.contains("rank 1") && !failure.contains("simulator found");
        assert!(is_named, "{failure}");
    }
}

/// Several tiles, of two heads in turn.
fn all_keys() -> AttentionJob {
    job((2, 2), [1, 512, 2, 2, 64])
}

/// The first node waits for nothing but counts.
fn one_way() -> AttentionJob {
    job((2, 2), [1, 512, 1, 1, 64]).causal(Contiguous)
}

/// Only the second rank waits for another, the first: that can be two calls ahead.
fn far_ahead() -> AttentionJob {
    let mut job = job((2, 2), [1, 2, 4, 4, 64]).causal(Contiguous);
    (job.machine.sms, job.machine.skew) = (2, 95);
    job.pushed_by(1)
}

/// What it is, where, and what is replaced by what.
type Mistake = (
    &'static str,
    fn() -> AttentionJob,
    &'static str,
    &'static str,
);

#[rustfmt::skip]
const MISTAKES: &[Mistake] = &[
    ("keys put before they are there", all_keys, "@kv-forward.own-wait", "wait_flag( => if (false) wait_flag("),
    ("keys forwarded before they have arrived", all_keys, "@kv-forward.arrival", ""),
    ("the last parts are not forwarded", all_keys, "@kv-forward.lag", " + Config::kForwardLag => "),
    ("keys of another put awaited", all_keys, "@kv-forward.arrival", "put_of(part) => 0"),
    ("keys of another peer forwarded", all_keys, "@kv-forward.part", "Network::rank_of_peer(ctx, peer) => ctx.rank"),
    ("keys put to another place", all_keys, "@kv-forward.put", "blocks, blocks => blocks, Workspace::kv_parts(0, 0, 0, 0, 0)"),
    ("only K is put", all_keys, "@kv-forward.put", "tiles * 2 => tiles"),
    ("one buffer for all calls", all_keys, "@kv-slots.buffer", "ctx.epoch => 0u"),
    ("nobody waits for readers", far_ahead, "@kv-slots.credit", "slot.earlier => 0u"),
    ("credits for the source, not for the rank that forwards", all_keys, "@kv-slots.release-node", "source => ctx.rank"),
    ("a node that needs keys gets none", one_way, "@kv-forward.put", "is_needed => !is_needed"),
    ("calls end before all puts have arrived", one_way, "@put.watch-arrivals", ""),
];

#[test]
fn every_mistake_is_found() {
    let plant = |(name, job, from, to): &Mistake| (*name, mutated(job(), &[(*from, *to)]));
    all_are_found(
        &MISTAKES.iter().map(plant).collect::<Vec<_>>(),
        SEEDS_TO_FIND,
    );
}
