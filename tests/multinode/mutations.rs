//! Mistakes planted in kernels of several nodes, one at a time: some seed finds each.

use crate::simulated::{Job, all_are_found, planted};
use crate::{few_ctas, job};
use mkernel::{GemmOp, Tuning};

/// Seeds within which a mistake must be found.
const SEEDS: u64 = 40;

/// What it is, where, and what is replaced by what.
type Mistake = (
    &'static str,
    fn() -> Job,
    &'static [(&'static str, &'static str)],
);

fn gather() -> Job {
    job(GemmOp::AgGemm, (2, 2), (256, 64, 128), few_ctas()).1
}

/// A tile of each rank, a put each.
fn scatter() -> Job {
    let tuning = Tuning {
        tile_m: Some(64),
        tile_n: Some(128),
        ..few_ctas()
    };
    job(GemmOp::GemmRs, (2, 2), (256, 128, 128), tuning).1
}

fn to_all() -> Job {
    let tuning = Tuning {
        tile_m: Some(64),
        tile_n: Some(128),
        ..few_ctas()
    };
    job(GemmOp::GemmAr, (2, 2), (256, 128, 128), tuning).1
}

const OWN_CHUNK: &str = "    mk::wait_flag(watch, flag_at(watch.here(), flag),\n";

#[rustfmt::skip]
const MISTAKES: &[Mistake] = &[
    ("a chunk put before it is there", gather, &[(OWN_CHUNK, "    if (false) mk::wait_flag(watch, flag_at(watch.here(), flag),\n")]),
    ("a chunk relayed before it has come", gather, &[("    wait_put(watch, mk::kPush, 0, peer, piece.chunk);\n", "")]),
    ("puts of the call before awaited", gather, &[("(watch.epoch - 1) * cfg::kPuts + index + 1", "(watch.epoch - 1) * cfg::kPuts + index")]),
    ("rows put to another place", gather, &[("put(args, watch, peer, 0, offset, offset,", "put(args, watch, peer, 0, offset, cfg::kGathered,")]),
    ("rows of another peer relayed", gather, &[("const Shard shard{source, watch.here() + gathered", "const Shard shard{args.rank, watch.here() + gathered")]),
    ("arrivals not told to all", gather, &[("        mk::store_release_gpu(here, now);\n", "        mk::store(here, now);\n")]),
    ("one buffer for all calls", gather, &[("const u64 gathered_row = u64{watch.epoch % 2} * cfg::kM + args.rank", "const u64 gathered_row = args.rank")]),
    ("sums put before they are there", scatter, &[("@node-sums.wait", "wait_flag( => if (false) wait_flag(")]),
    ("a sum of another node not awaited", scatter, &[("@node-sums.arrival", "")]),
    ("a sum of another node not added", scatter, &[("@partials.sources", "Ranks::kPeerNodes => 0")]),
    ("sums to the slot of another peer", scatter, &[("@node-sums.number-there", "node < to ? node : node - 1 => node")]),
    ("one buffer of sums for all calls", scatter, &[("@node-sums.read-slot", "ctx.parity() => 0u"), ("@node-sums.put-slot", "ctx.parity() => 0u")]),
    ("results relayed before they have come", to_all, &[("    wait_put(watch, mk::kPush, 1, peer, index / cfg::kPutTiles);\n", "")]),
    ("results relayed after the flag", to_all, &[("    mk::tma_wait<0>();\n    mk::fence_proxy_async();\n    mk::fence_sys();\n    for (u32 distance = 1;", "    mk::fence_sys();\n    for (u32 distance = 1;")]),
    ("results put from another place", to_all, &[("put(args, watch, peer, 1, results, results,", "put(args, watch, peer, 1, cfg::kResults, results,")]),
];

#[test]
fn every_mistake_is_found() {
    let plant = |(name, job, edits): &Mistake| (*name, planted(job(), edits));
    all_are_found(&MISTAKES.iter().map(plant).collect::<Vec<_>>(), SEEDS);
}
