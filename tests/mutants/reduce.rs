//! Kernels of the operators that reduce: `gemm_rs` and `gemm_ar`.

use crate::{Kernel, job};
use mkernel::spec::{BLayout, Epilogue, GemmOp, GemmShape, Tuning};
use mkernel_testing::jobs::{GemmJob, SimulatedJob};

pub const KERNELS: &[Kernel] = &[
    ("scatter", scatter),
    ("shared_tiles", shared_tiles),
    ("to_all", to_all),
    ("to_c_of_all", to_c_of_all),
    ("one_shot", one_shot),
    ("relay", relay),
    ("few_owners", few_owners),
    ("few_owners_in_packets", few_owners_in_packets),
    ("packets_to_c_of_all", packets_to_c_of_all),
];

fn reduce(op: GemmOp, world: u32, (m, n, k): (u64, u64, u64), tuning: Tuning) -> GemmJob {
    let kernel = (op, Epilogue::default(), tuning);
    job(kernel, world, GemmShape { m, n, k }, BLayout::Nk, 3)
}

/// Options for two shots with one tile of each owner per round, and two stages, which are soon reused.
fn rounds() -> Tuning {
    Tuning {
        tile_m: Some(64),
        tile_n: Some(128),
        shots: Some(2),
        round_tiles: Some(1),
        stages: Some(2),
        ..Tuning::default()
    }
}

/// Each rank owns rows in whole tiles.
fn scatter() -> GemmJob {
    reduce(GemmOp::GemmRs, 2, (128, 384, 192), rounds())
}

/// Three CTAs share each tile, and one CTA completes the tile.
fn shared_tiles() -> GemmJob {
    let tuning = Tuning {
        split_k: Some(3),
        ..rounds()
    };
    let kernel = (GemmOp::GemmRs, Epilogue::default(), tuning);
    let shape = GemmShape {
        m: 40,
        n: 72,
        k: 192,
    };
    job(kernel, 2, shape, BLayout::Nk, 6)
}

/// Owners send their results to all ranks.
fn to_all() -> GemmJob {
    reduce(GemmOp::GemmAr, 2, (128, 384, 192), rounds())
}

/// Owners store their results to C of all ranks, which is in symmetric memory.
fn to_c_of_all() -> GemmJob {
    to_all().symmetric()
}

/// Ranks exchange partial sums as Lamport packets, from registers to registers.
fn one_shot() -> GemmJob {
    let tuning = Tuning {
        shots: Some(1),
        ..Tuning::default()
    };
    reduce(GemmOp::GemmRs, 2, (40, 264, 128), tuning)
}

/// Two of four ranks have no rows.
fn few_owners() -> GemmJob {
    reduce(GemmOp::GemmRs, 4, (2, 384, 192), rounds())
}

fn few_owners_in_packets() -> GemmJob {
    let tuning = Tuning {
        shots: Some(1),
        ..Tuning::default()
    };
    reduce(GemmOp::GemmRs, 4, (2, 264, 128), tuning)
}

/// C is in symmetric memory, and its place is compared at the end.
fn packets_to_c_of_all() -> GemmJob {
    let tuning = Tuning {
        shots: Some(1),
        ..Tuning::default()
    };
    reduce(GemmOp::GemmAr, 2, (40, 264, 128), tuning).symmetric()
}

/// Ranks exchange partial sums as Lamport packets, and owners send the sums to all ranks.
fn relay() -> GemmJob {
    let tuning = Tuning {
        shots: Some(1),
        ..Tuning::default()
    };
    reduce(GemmOp::GemmAr, 8, (64, 1536, 64), tuning)
}

/// A finding of the simulator names the element of its region, and quotes the line of the header.
#[test]
fn findings_name_regions_and_quote_headers() {
    let mut job = scatter();
    job.edit(vec![("tma_wait<0>();".into(), String::new())]);
    let mut failures = (0..50).filter_map(|seed| job.run(seed).err());
    let parts = [
        "race: partials[",
        "] on GPU ",
        "mk/comm/partials.cuh:",
        "tma_load_bytes(",
    ];
    let has_all = |failure: String| parts.iter().all(|part| failure.contains(part));
    assert!(failures.any(has_all), "{parts:?} in no finding");
}
