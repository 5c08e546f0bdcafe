//! Jobs of norms that cover every protocol and many sizes.

use super::NormJob;
use crate::jobs::collective::CollectiveJob;
use mkernel::network::Faults;
use mkernel::spec::Protocol;

/// Numbers of rows of calls, of at most 9 and of at most 30.
const FEW: [u64; 8] = [3, 0, 9, 1, 2, 9, 0, 5];
const MANY: [u64; 8] = [30, 1, 0, 29, 7, 30, 2, 30];

/// Returns jobs on one node: rows of one warp and of several warps, rows that end within a warp's part, with and without
/// a bias and a residual, in place, both types, graphs, and rows at run time.
pub fn normalised(world: u32) -> Vec<(String, NormJob)> {
    let jobs = match world {
        1 => on_one_rank(),
        _ => [in_packets(world), in_chunks(world)].concat(),
    };
    let name = |(name, job): (&str, NormJob)| (format!("norm: {name} on {world} ranks"), job);
    jobs.into_iter().map(name).collect()
}

fn on_one_rank() -> Vec<(&'static str, NormJob)> {
    let job = || NormJob::new(1, (9, 264), 2);
    let rows = job().with(|job| job.buckets(1).with_rows(&FEW));
    vec![
        ("one rank", job().biased()),
        ("one rank in place", job().in_place()),
        ("rows at run time of one rank", rows),
    ]
}

fn in_packets(world: u32) -> Vec<(&'static str, NormJob)> {
    let packets = |shots, size, sms| {
        let job = NormJob::new(world, size, sms);
        job.with(|job| job.protocol(Protocol::Ll).shots(shots))
    };
    let rows = |shots| packets(shots, (9, 1032), 2).with(|job| job.buckets(1).with_rows(&FEW));
    vec![
        ("one shot", packets(1, (3, 1032), 2).biased()),
        (
            "one shot, several rows of each warp",
            packets(1, (13, 1032), 1).without_residual(),
        ),
        (
            "one shot of narrow rows",
            packets(1, (9, 136), 2).with(CollectiveJob::fp32),
        ),
        ("one shot in place", packets(1, (3, 1032), 2).in_place()),
        (
            "one shot in a graph",
            packets(1, (2, 1032), 2).with(CollectiveJob::in_graph),
        ),
        ("one shot of rows at run time", rows(1)),
        (
            "one shot of rows at run time in place",
            rows(1).in_place().with(CollectiveJob::fp32),
        ),
        ("two shots", packets(2, (3, 1032), 2).biased()),
        ("two shots in place", packets(2, (3, 1032), 2).in_place()),
        (
            "two shots of fp16",
            packets(2, (3, 1032), 2).biased().with(CollectiveJob::fp16),
        ),
        (
            "two shots in place, several rows of each warp",
            packets(2, (13, 1032), 1).in_place(),
        ),
        ("two shots of rows at run time in place", rows(2).in_place()),
        (
            "two shots of rows at run time in a graph",
            rows(2).with(CollectiveJob::in_graph),
        ),
    ]
}

fn in_chunks(world: u32) -> Vec<(&'static str, NormJob)> {
    let chunks = |size| {
        let job = NormJob::new(world, size, 2);
        job.with(|job| job.protocol(Protocol::Simple))
    };
    vec![
        ("chunks", chunks((30, 1032)).biased()),
        ("a row in chunks, in place", chunks((1, 1032)).in_place()),
        (
            "chunks in fp32",
            chunks((7, 1032))
                .with(CollectiveJob::fp32)
                .without_residual(),
        ),
        (
            "chunks of rows at run time",
            chunks((30, 1032)).with(|job| job.buckets(1).with_rows(&MANY)),
        ),
        (
            "chunks of rows at run time in place",
            chunks((30, 1032))
                .with(|job| job.buckets(1).with_rows(&MANY))
                .in_place(),
        ),
        (
            "chunks in a graph",
            chunks((8, 264)).with(CollectiveJob::in_graph),
        ),
    ]
}

/// Returns jobs on several nodes.
pub fn normalised_across(nodes: u32, local_world: u32, faults: &Faults) -> Vec<(String, NormJob)> {
    let job = |size| {
        let job = NormJob::new(nodes * local_world, size, 3);
        job.with(|job| job.across(nodes, faults.clone()))
    };
    let jobs = [
        ("rows", job((29, 1032)).biased()),
        (
            "a row in fp32, in place",
            job((1, 1032)).in_place().with(CollectiveJob::fp32),
        ),
        ("a graph", job((8, 264)).with(CollectiveJob::in_graph)),
        (
            "rows at run time",
            job((29, 1032)).with(|job| job.buckets(1).with_rows(&[29, 0, 1, 28, 5, 29])),
        ),
    ];
    let name = |(name, job)| (format!("norm: {name} on {nodes}x{local_world}"), job);
    jobs.into_iter().map(name).collect()
}
