//! Jobs of rows with scales in every protocol.

use super::ScaledJob;
use crate::jobs::collective::CollectiveJob;
use mkernel::network::Faults;
use mkernel::spec::CollectiveOp::{self, AllGather, AllToAll, Broadcast};
use mkernel::spec::Protocol::{Ll, Simple};
use mkernel::spec::Scales::{Block, Row};

/// The operators that move rows.
const OPS: [CollectiveOp; 3] = [AllGather, Broadcast, AllToAll];
/// Numbers of rows of calls of at most 9.
const FEW: [u64; 6] = [3, 0, 9, 1, 2, 9];
/// Numbers of rows of calls of at most 30.
const MANY: [u64; 6] = [30, 1, 0, 29, 7, 30];

/// Returns jobs on one node: scales of rows and of blocks, one and several vectors of scales, last blocks of fewer than 128 columns,
/// ranks without rows, graphs, in place, and rows at run time.
pub fn scaled(world: u32) -> Vec<(String, ScaledJob)> {
    let jobs = match world {
        1 => on_one_rank(),
        _ => [in_packets(world), in_chunks(world)].concat(),
    };
    let name = |(name, job)| (format!("scaled: {name} on {world} ranks"), job);
    jobs.into_iter().map(name).collect()
}

fn on_one_rank() -> Vec<(String, ScaledJob)> {
    let job = |op, scales| ScaledJob::new((op, scales), 1, (9, 272), 2);
    let jobs = OPS.into_iter().zip([Row, Block, Row]);
    let jobs = jobs.map(|(op, scales)| (op.to_string(), job(op, scales)));
    let rows = job(AllGather, Block).with(|job| job.buckets(1).with_rows(&FEW));
    jobs.chain([("all_gather at run time".to_owned(), rows)])
        .collect()
}

/// Jobs with packets. Rows of 592 columns have 5 scales in two vectors.
fn in_packets(world: u32) -> Vec<(String, ScaledJob)> {
    let jobs = OPS.into_iter().flat_map(|op| {
        let job = move |scales, size| {
            let job = ScaledJob::new((op, scales), world, size, 2);
            job.with(|job| job.protocol(Ll))
        };
        let run_time = |job: CollectiveJob| job.buckets(1).with_rows(&FEW);
        [
            (format!("{op} of blocks in packets"), job(Block, (7, 592))),
            (
                format!("{op} of rows in packets in a graph"),
                job(Row, (3, 80)).with(CollectiveJob::in_graph),
            ),
            (
                format!("{op} in packets at run time"),
                job(Row, (9, 144)).with(run_time),
            ),
        ]
    });
    let job = ScaledJob::new((AllGather, Row), world, (7, 80), 2);
    let in_place = job.with(|job| job.protocol(Ll).in_place());
    let in_place = ("all_gather in packets in place".to_owned(), in_place);
    jobs.chain([in_place]).collect()
}

fn in_chunks(world: u32) -> Vec<(String, ScaledJob)> {
    let jobs = OPS.into_iter().flat_map(|op| {
        let job = move |scales, size| {
            let job = ScaledJob::new((op, scales), world, size, 2);
            job.with(|job| job.protocol(Simple))
        };
        let run_time = |job: CollectiveJob| job.buckets(1).with_rows(&MANY).in_graph();
        [
            (format!("{op} of rows in chunks"), job(Row, (29, 1040))),
            (
                format!("{op} of blocks of a row in chunks"),
                job(Block, (1, 1040)),
            ),
            (
                format!("{op} in chunks at run time in a graph"),
                job(Block, (30, 1040)).with(run_time),
            ),
        ]
    });
    let in_place = |op, scales, size| {
        let job = ScaledJob::new((op, scales), world, size, 2);
        let job = job.with(|job| job.protocol(Simple).in_place());
        (format!("{op} in chunks in place"), job)
    };
    let in_place = [
        in_place(AllGather, Row, (29, 528)),
        in_place(Broadcast, Block, (8, 272)),
    ];
    jobs.chain(in_place).collect()
}

/// Returns jobs on several nodes.
pub fn scaled_across(nodes: u32, local_world: u32, faults: &Faults) -> Vec<(String, ScaledJob)> {
    let world = nodes * local_world;
    let jobs = OPS.into_iter().flat_map(|op| {
        let job = move |scales, size| {
            let job = ScaledJob::new((op, scales), world, size, 3);
            job.with(|job| job.across(nodes, faults.clone()))
        };
        let run_time = |job: CollectiveJob| job.buckets(1).with_rows(&[29, 0, 1, 28, 5, 29]);
        [
            (format!("{op} of rows"), job(Row, (29, 1040))),
            (
                format!("{op} of blocks at run time"),
                job(Block, (29, 592)).with(run_time),
            ),
        ]
    });
    let name = |(name, job)| (format!("scaled: {name} on {nodes}x{local_world}"), job);
    jobs.map(name).collect()
}
