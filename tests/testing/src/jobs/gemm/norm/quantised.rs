//! Jobs of products whose normalised rows are e4m3 with scales.

use super::GemmNormJob;
use mkernel::spec::Scales::{Block, Row};
use mkernel::spec::Tuning;

/// Numbers of rows of calls of at most 12.
const FEW: [u64; 6] = [5, 0, 1, 12, 3, 12];

/// Returns jobs whose warps normalise the elements that they have: scales of rows and of blocks, sub-tiles of a block that several
/// CTAs or warpgroups have, an odd number of sub-tiles, more rows than a tile, in place, graphs, and rows at run time.
pub fn in_one_shot(world: u32) -> Vec<(String, GemmNormJob)> {
    let job = |size, sms| GemmNormJob::new(world, size, sms);
    let split = |tile_n| Tuning {
        tile_m: Some(64),
        tile_n: Some(tile_n),
        split_k: Some(2),
        shots: Some(1),
        ..Tuning::default()
    };
    let jobs = [
        ("one row", job((1, 528, 64), 3).quantised(Row)),
        (
            "blocks",
            job((12, 528, 128), 2).activated().quantised(Block),
        ),
        (
            "blocks of shared tiles",
            job((9, 272, 256), 6)
                .tuned(split(128))
                .in_place()
                .quantised(Block),
        ),
        (
            "blocks of wide tiles",
            job((9, 272, 256), 6).tuned(split(256)).quantised(Block),
        ),
        (
            "more rows than a tile",
            job((77, 144, 64), 2).quantised(Row),
        ),
        (
            "fp16 in a graph",
            job((5, 272, 64), 2).in_graph().fp16().quantised(Block),
        ),
        (
            "rows at run time",
            job((12, 528, 128), 3)
                .activated()
                .with_rows(&FEW)
                .quantised(Row),
        ),
        (
            "blocks at run time in a graph",
            job((12, 272, 64), 2)
                .with_rows(&FEW)
                .in_graph()
                .quantised(Block),
        ),
    ];
    named(jobs.to_vec(), &format!("on {world} ranks"))
}

/// Returns jobs of two shots, in which a warp normalises a whole row.
pub fn by_owners(world: u32) -> Vec<(String, GemmNormJob)> {
    let job = |size, sms| GemmNormJob::new(world, size, sms).in_two_shots(2);
    let rows = [70, 0, 1, 133, 3, 64, 7];
    let of_all = [
        ("rows", job((77, 528, 128), 2).activated().quantised(Row)),
        ("blocks", job((70, 528, 64), 3).in_place().quantised(Block)),
        (
            "fp16 in a graph",
            job((12, 272, 128), 2).fp16().in_graph().quantised(Row),
        ),
        (
            "blocks at run time",
            job((133, 272, 128), 3).with_rows(&rows).quantised(Block),
        ),
    ];
    let scattered = of_all.clone().map(|(name, job)| (name, job.scattered()));
    [
        named(of_all.to_vec(), &format!("in two shots on {world} ranks")),
        named(scattered.to_vec(), &format!("scattered over {world} ranks")),
    ]
    .concat()
}

fn named(jobs: Vec<(&str, GemmNormJob)>, ranks: &str) -> Vec<(String, GemmNormJob)> {
    let name = |(name, job)| (format!("gemm norm in e4m3: {name} {ranks}"), job);
    jobs.into_iter().map(name).collect()
}
