//! Jobs of norms whose results are e4m3 with scales.

use super::NormJob;
use crate::jobs::collective::CollectiveJob;
use mkernel::network::Faults;
use mkernel::spec::Protocol;
use mkernel::spec::Scales::{Block, Row};

/// Numbers of rows of calls of at most 9.
const FEW: [u64; 6] = [3, 0, 9, 1, 2, 9];

/// Returns jobs on one node: scales of rows and of blocks, by one warp and by several warps, blocks that end within a warp's part
/// and shorter last blocks, all types, graphs, in place, and rows at run time.
pub fn quantised(world: u32) -> Vec<(String, NormJob)> {
    let jobs = match world {
        1 => on_one_rank(),
        _ => [in_packets(world), in_chunks(world)].concat(),
    };
    let name = |(name, job): (&str, NormJob)| (format!("e4m3: {name} on {world} ranks"), job);
    jobs.into_iter().map(name).collect()
}

fn on_one_rank() -> Vec<(&'static str, NormJob)> {
    let job = || NormJob::new(1, (9, 272), 2);
    let rows = |scales| {
        let job = job().quantised(scales);
        job.with(|job| job.buckets(1).with_rows(&FEW))
    };
    vec![
        ("blocks of one rank", job().biased().quantised(Block)),
        ("rows of one rank in place", job().in_place().quantised(Row)),
        ("blocks at run time of one rank", rows(Block)),
    ]
}

fn in_packets(world: u32) -> Vec<(&'static str, NormJob)> {
    let packets = |shots, size, sms| {
        let job = NormJob::new(world, size, sms);
        job.with(|job| job.protocol(Protocol::Ll).shots(shots))
    };
    let rows = |shots| packets(shots, (9, 1040), 2).with(|job| job.buckets(1).with_rows(&FEW));
    let invariant = |mut job: CollectiveJob| {
        job.config.batch_invariant = true;
        job
    };
    vec![
        (
            "blocks in one shot",
            packets(1, (3, 1040), 2).quantised(Block),
        ),
        (
            "rows in one shot",
            packets(1, (3, 1040), 2).biased().quantised(Row),
        ),
        (
            "rows in one shot, several of each warp",
            packets(1, (13, 1040), 1).without_residual().quantised(Row),
        ),
        (
            "short blocks of fp32 in one shot",
            packets(1, (9, 80), 2)
                .with(CollectiveJob::fp32)
                .quantised(Block),
        ),
        (
            "short rows of fp16 in one shot",
            packets(1, (9, 80), 2)
                .with(CollectiveJob::fp16)
                .quantised(Row),
        ),
        (
            "blocks of fp32 in two shots",
            packets(2, (3, 528), 2)
                .with(CollectiveJob::fp32)
                .quantised(Block),
        ),
        (
            "batch-invariant rows in two shots",
            packets(2, (5, 1040), 2).with(invariant).quantised(Row),
        ),
        (
            "rows of fp16 in two shots in place",
            packets(2, (3, 1040), 2)
                .in_place()
                .with(CollectiveJob::fp16)
                .quantised(Row),
        ),
        (
            "blocks in one shot of rows at run time in a graph",
            rows(1).with(CollectiveJob::in_graph).quantised(Block),
        ),
        ("rows in two shots at run time", rows(2).quantised(Row)),
    ]
}

fn in_chunks(world: u32) -> Vec<(&'static str, NormJob)> {
    let chunks = |size| {
        let job = NormJob::new(world, size, 2);
        job.with(|job| job.protocol(Protocol::Simple))
    };
    vec![
        (
            "blocks in chunks",
            chunks((30, 1040)).biased().quantised(Block),
        ),
        (
            "rows of fp32 in chunks, in place",
            chunks((7, 1040))
                .with(CollectiveJob::fp32)
                .in_place()
                .quantised(Row),
        ),
        (
            "rows in chunks in a graph",
            chunks((8, 272))
                .with(CollectiveJob::in_graph)
                .quantised(Row),
        ),
        (
            "blocks in chunks at run time",
            chunks((30, 1040))
                .with(|job| job.buckets(1).with_rows(&[30, 1, 0, 29, 7, 30]))
                .quantised(Block),
        ),
    ]
}

/// Returns jobs on several nodes.
pub fn quantised_across(nodes: u32, local_world: u32, faults: &Faults) -> Vec<(String, NormJob)> {
    let job = |size| {
        let job = NormJob::new(nodes * local_world, size, 3);
        job.with(|job| job.across(nodes, faults.clone()))
    };
    let jobs = [
        ("rows", job((29, 1040)).biased().quantised(Row)),
        (
            "blocks at run time",
            job((29, 1040))
                .with(|job| job.buckets(1).with_rows(&[29, 0, 1, 28, 5, 29]))
                .quantised(Block),
        ),
    ];
    let name = |(name, job)| (format!("e4m3: {name} on {nodes}x{local_world}"), job);
    jobs.into_iter().map(name).collect()
}
