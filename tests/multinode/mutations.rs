//! Mutations of GEMM operators on several nodes. A test plants one mistake at a time, and the simulator or the
//! comparison of the results must find it with some seed.

use crate::{job, one_comm_cta, scaled_job};
use mkernel::spec::{GemmOp, Scales, Tuning};
use mkernel_testing::jobs::{GemmJob, Mutation, all_mutations_are_found};

/// The number of seeds with which a mutation must be found.
const SEEDS: u64 = 40;

fn gather() -> GemmJob {
    job(GemmOp::AgGemm, (2, 2), (256, 64, 128), one_comm_cta()).1
}

/// Rows travel with scales of blocks.
fn scaled() -> GemmJob {
    scaled_job(Scales::Block, (2, 2), (256, 64, 144)).1
}

/// Each rank has one tile, and puts it with one put.
fn scatter() -> GemmJob {
    let tuning = Tuning {
        tile_m: Some(64),
        tile_n: Some(128),
        ..one_comm_cta()
    };
    job(GemmOp::GemmRs, (2, 2), (256, 128, 128), tuning).1
}

fn to_all() -> GemmJob {
    let tuning = Tuning {
        tile_m: Some(64),
        tile_n: Some(128),
        ..one_comm_cta()
    };
    job(GemmOp::GemmAr, (2, 2), (256, 128, 128), tuning).1
}

#[rustfmt::skip]
const MUTATIONS: &[Mutation] = &[
    ("a chunk put before it is written", gather, &[("@push.own-chunk", "Shards::wait( => if (false) Shards::wait(")]),
    ("a chunk relayed before it has arrived", gather, &[("@push.arrival", "")]),
    ("puts of the previous call awaited", gather, &[("@put.wanted", "+ index + 1 => + index")]),
    ("rows put to another slot", gather, &[("@push.put", "slot, rows => Workspace::gathered(0, 0), rows")]),
    ("rows of another peer relayed", gather, &[("@push.relayed", "put{source, => put{ctx.rank,")]),
    ("rows relayed without their scales", scaled, &[("@push.relayed-row", "kSentBytes, => kRowBytes,")]),
    ("rows put without the last scales", scaled, &[("@push.put", "rows * kSentBytes => rows * kRowBytes")]),
    ("arrivals not published to all CTAs", gather, &[("@put.arrivals", "store_release_gpu( => store(")]),
    ("one buffer for all calls", gather, &[("@push.put-slot", "ctx.parity() => 0u")]),
    ("sums put before they are computed", scatter, &[("@node-sums.wait", "wait_flag( => if (false) wait_flag(")]),
    ("a sum of another node not awaited", scatter, &[("@node-sums.arrival", "")]),
    ("a sum of another node not added", scatter, &[("@partials.sources", "Ranks::kPeerNodes => 0")]),
    ("sums put to the slot of another peer", scatter, &[("@node-sums.number-there", "node < to ? node : node - 1 => node")]),
    ("one buffer of sums for all calls", scatter, &[("@node-sums.read-slot", "ctx.parity() => 0u"), ("@node-sums.put-slot", "ctx.parity() => 0u")]),
    ("results relayed before they have arrived", to_all, &[("@results.arrival", "")]),
    ("results relayed after the flag", to_all, &[("@results.relayed", "")]),
    ("results put from another slot", to_all, &[("@results.put", "slot, tiles => Workspace::results(0, 0, 0, 0), tiles")]),
];

#[test]
fn every_mutation_is_found() {
    all_mutations_are_found(MUTATIONS, SEEDS);
}
