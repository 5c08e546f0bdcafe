//! Mistakes planted in kernels of several nodes, one at a time: some seed finds each.

use crate::{few_ctas, job};
use mkernel::{GemmOp, Tuning};
use mkernel_testing::jobs::{GemmJob, all_are_found, mutated};

/// Seeds within which a mistake must be found.
const SEEDS: u64 = 40;

/// What it is, where, and what is replaced by what.
type Mistake = (
    &'static str,
    fn() -> GemmJob,
    &'static [(&'static str, &'static str)],
);

fn gather() -> GemmJob {
    job(GemmOp::AgGemm, (2, 2), (256, 64, 128), few_ctas()).1
}

/// A tile of each rank, a put each.
fn scatter() -> GemmJob {
    let tuning = Tuning {
        tile_m: Some(64),
        tile_n: Some(128),
        ..few_ctas()
    };
    job(GemmOp::GemmRs, (2, 2), (256, 128, 128), tuning).1
}

fn to_all() -> GemmJob {
    let tuning = Tuning {
        tile_m: Some(64),
        tile_n: Some(128),
        ..few_ctas()
    };
    job(GemmOp::GemmAr, (2, 2), (256, 128, 128), tuning).1
}

#[rustfmt::skip]
const MISTAKES: &[Mistake] = &[
    ("a chunk put before it is there", gather, &[("@push.own-chunk", "Shards::wait( => if (false) Shards::wait(")]),
    ("a chunk relayed before it has come", gather, &[("@push.arrival", "")]),
    ("puts of the call before awaited", gather, &[("@put.wanted", "+ index + 1 => + index")]),
    ("rows put to another place", gather, &[("@push.put", "slot, slot => slot, Workspace::gathered(0, 0)")]),
    ("rows of another peer relayed", gather, &[("@push.relayed", "put{source, => put{ctx.rank,")]),
    ("arrivals not told to all", gather, &[("@put.arrivals", "store_release_gpu( => store(")]),
    ("one buffer for all calls", gather, &[("@push.put-slot", "ctx.parity() => 0u")]),
    ("sums put before they are there", scatter, &[("@node-sums.wait", "wait_flag( => if (false) wait_flag(")]),
    ("a sum of another node not awaited", scatter, &[("@node-sums.arrival", "")]),
    ("a sum of another node not added", scatter, &[("@partials.sources", "Ranks::kPeerNodes => 0")]),
    ("sums to the slot of another peer", scatter, &[("@node-sums.number-there", "node < to ? node : node - 1 => node")]),
    ("one buffer of sums for all calls", scatter, &[("@node-sums.read-slot", "ctx.parity() => 0u"), ("@node-sums.put-slot", "ctx.parity() => 0u")]),
    ("results relayed before they have come", to_all, &[("@results.arrival", "")]),
    ("results relayed after the flag", to_all, &[("@results.relayed", "")]),
    ("results put from another place", to_all, &[("@results.put", "slot, slot => Workspace::results(0, 0, 0, 0), slot")]),
];

#[test]
fn every_mistake_is_found() {
    let plant = |(name, job, edits): &Mistake| (*name, mutated(job(), edits));
    all_are_found(&MISTAKES.iter().map(plant).collect::<Vec<_>>(), SEEDS);
}
