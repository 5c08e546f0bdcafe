//! Jobs of collectives with buckets, whose calls change from one bucket to another.

use super::CollectiveJob;
use super::norm::NormJob;
use mkernel::network::Faults;
use mkernel::spec::{CollectiveOp, Protocol};

/// Rows of consecutive calls: none, one, all of 300, and both sides of the ends of buckets, each of which several calls run.
const ROWS: [u64; 10] = [300, 1, 0, 64, 257, 65, 256, 7, 300, 16];
/// The same of at most 64 rows.
const FEW_ROWS: [u64; 8] = [64, 1, 0, 33, 32, 7, 64, 1];

/// Columns of long rows in bf16, of which chunks carry a few hundred faster than packets.
const LONG: u64 = 4112;

/// Returns jobs on one node, of two ranks or more: buckets that differ in the protocol, in the shots and in the chunks. The
/// planner chooses them.
pub fn in_buckets(world: u32) -> Vec<(String, CollectiveJob)> {
    use CollectiveOp::{AllGather, AllReduce, ReduceScatter};
    let chunks = |op| {
        let job = job(op, world, (300, 1032), 2).with_rows(&ROWS);
        job.protocol(Protocol::Simple)
    };
    let most = if world == 2 { 300 } else { 140 };
    let protocols = |op| {
        let job = job(op, world, (most, LONG / 2), 8).fp32();
        job.with_rows(&long_rows(most))
    };
    let mut jobs = vec![
        ("chunks", chunks(AllReduce).in_graph()),
        ("chunks of rows", chunks(AllGather).fp32()),
        ("results", chunks(AllReduce).symmetric()),
        ("protocols", protocols(AllReduce).in_graph()),
        ("protocols and results", protocols(AllReduce).symmetric()),
        ("protocols of rows", protocols(AllGather).in_graph()),
        ("protocols of sums", protocols(ReduceScatter)),
    ];
    // Two ranks send as much in one shot as in two.
    if world > 2 {
        let shots = job(AllReduce, world, (128, 1032), 2).protocol(Protocol::Ll);
        let rows = [128, 3, 65, 0, 64, 100, 1, 128];
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

/// Returns jobs on several nodes, whose buckets differ in the chunks.
pub fn in_buckets_across(nodes: u32, local: u32, faults: &Faults) -> Vec<(String, CollectiveJob)> {
    let across = |op: CollectiveOp| {
        let job = job(op, nodes * local, (300, 1032), 3).across(nodes, faults.clone());
        (
            format!("{op}, buckets on {nodes}x{local}"),
            job.with_rows(&ROWS),
        )
    };
    let mut jobs = CollectiveOp::ALL.map(across).to_vec();
    let (name, job) = across(CollectiveOp::AllReduce);
    jobs.push((format!("{name}, in a graph"), job.in_graph()));
    jobs
}

/// Returns jobs of sums that are normalised, on one node.
pub fn normalised_in_buckets(world: u32) -> Vec<(String, NormJob)> {
    let job = |size, rows: &[u64], sms| {
        let job = NormJob::new(world, size, sms).biased();
        job.with(|job| job.buckets(4).with_rows(rows))
    };
    let chunks = job((300, 1032), &ROWS, 2).with(|job| job.protocol(Protocol::Simple));
    let most = if world == 2 { 400 } else { 220 };
    let protocols = job((most, LONG), &long_rows(most), 8);
    let jobs = [
        ("chunks", chunks),
        ("protocols", protocols.with(CollectiveJob::in_graph)),
    ];
    let name = |(name, job)| {
        (
            format!("norm: buckets of other {name}, on {world} ranks"),
            job,
        )
    };
    jobs.into_iter().map(name).collect()
}

/// Returns the same on several nodes.
pub fn normalised_in_buckets_across(
    nodes: u32,
    local: u32,
    faults: &Faults,
) -> Vec<(String, NormJob)> {
    let job = NormJob::new(nodes * local, (64, 1032), 1);
    let job = job.with(|job| {
        let job = job.across(nodes, faults.clone());
        job.buckets(4).with_rows(&FEW_ROWS)
    });
    vec![(format!("norm: buckets on {nodes}x{local}"), job)]
}

/// The same as [`ROWS`] of at most `most` long rows, of which few calls have many.
fn long_rows(most: u64) -> [u64; 9] {
    [most, 1, 17, most, 0, 16, 18, 2, most - 1]
}

fn job(op: CollectiveOp, world: u32, size: (u64, u64), sms: u32) -> CollectiveJob {
    CollectiveJob::new(op, world, size, sms).buckets(4)
}
