//! Jobs of collectives with buckets, whose calls change from one bucket to another.

use super::CollectiveJob;
use super::norm::NormJob;
use mkernel::spec::{CollectiveOp, Protocol};

/// The most rows of a call, and the columns. Packets carry at most 8 of these rows, within their limit in KiB.
const MOST: u64 = 40;
const COLS: u64 = 136;
const FP32_KIB: u32 = 8;
const BF16_KIB: u32 = 4;

/// Rows of consecutive calls: no row, one row, the most rows, and numbers on both sides of the end of the first bucket.
const ROWS: [u64; 10] = [MOST, MOST - 1, 1, 9, MOST, 0, 8, 10, 2, MOST - 1];

/// Returns jobs on one node, of two ranks or more: buckets that differ in the protocol and in the shots. The planner chooses
/// them.
pub fn in_buckets(world: u32) -> Vec<(String, CollectiveJob)> {
    use CollectiveOp::{AllGather, AllReduce, AllToAll, Broadcast, ReduceScatter};
    let protocols = |op| {
        let job = job(op, world, (MOST, COLS), 8).fp32();
        job.packet_kib(FP32_KIB).with_rows(&ROWS)
    };
    let mut jobs = vec![
        ("protocols", protocols(AllReduce).in_graph()),
        ("protocols and results", protocols(AllReduce).symmetric()),
        ("protocols of rows", protocols(AllGather).in_graph()),
        ("protocols of sums", protocols(ReduceScatter)),
        ("protocols of a tensor", protocols(Broadcast).from(1)),
        ("protocols of shards", protocols(AllToAll).symmetric()),
    ];
    // Two ranks send equal numbers of bytes in one shot and in two shots.
    if world > 2 {
        let shots = job(AllReduce, world, (128, 2064), 2).protocol(Protocol::Ll);
        let rows = [128, 3, 65, 64, 128];
        jobs.push(("shots", shots.with_rows(&rows).in_graph()));
    }
    let name = |(name, job): (&str, CollectiveJob)| {
        let op = job.config.op;
        (
            format!("{op}, buckets of other {name}, on {world} ranks"),
            job,
        )
    };
    jobs.into_iter().map(name).collect()
}

/// Returns jobs of sums that are normalised, on one node.
pub fn normalised_in_buckets(world: u32) -> Vec<(String, NormJob)> {
    let job = NormJob::new(world, (MOST, COLS), 8).biased();
    let job = job.with(|job| job.buckets(4).packet_kib(BF16_KIB).with_rows(&ROWS));
    let name = format!("norm: buckets of other protocols, on {world} ranks");
    vec![(name, job.with(CollectiveJob::in_graph))]
}

fn job(op: CollectiveOp, world: u32, size: (u64, u64), sms: u32) -> CollectiveJob {
    CollectiveJob::new(op, world, size, sms).buckets(4)
}
