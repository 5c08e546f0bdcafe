//! Jobs of collectives with buckets, whose calls change from one bucket to another.

use super::CollectiveJob;
use super::norm::NormJob;
use mkernel::spec::{CollectiveOp, Protocol};

/// Columns of long rows in bf16, of which chunks carry a few hundred faster than packets.
const LONG: u64 = 4112;

/// Returns jobs on one node, of two ranks or more: buckets that differ in the protocol and in the shots. The planner chooses
/// them.
pub fn in_buckets(world: u32) -> Vec<(String, CollectiveJob)> {
    use CollectiveOp::{AllGather, AllReduce, ReduceScatter};
    let most = if world == 2 { 300 } else { 140 };
    let protocols = |op| {
        let job = job(op, world, (most, LONG / 2), 8).fp32();
        job.with_rows(&long_rows(most))
    };
    let mut jobs = vec![
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

/// Returns jobs of sums that are normalised, on one node.
pub fn normalised_in_buckets(world: u32) -> Vec<(String, NormJob)> {
    let job = |size, rows: &[u64], sms| {
        let job = NormJob::new(world, size, sms).biased();
        job.with(|job| job.buckets(4).with_rows(rows))
    };
    let most = if world == 2 { 400 } else { 220 };
    let protocols = job((most, LONG), &long_rows(most), 8);
    let name = format!("norm: buckets of other protocols, on {world} ranks");
    vec![(name, protocols.with(CollectiveJob::in_graph))]
}

/// Rows of consecutive calls, of which few have many: none, one, `most`, and numbers on both sides of the ends of buckets.
fn long_rows(most: u64) -> [u64; 10] {
    [most, most - 1, 1, 17, most, 0, 16, 18, 2, most - 1]
}

fn job(op: CollectiveOp, world: u32, size: (u64, u64), sms: u32) -> CollectiveJob {
    CollectiveJob::new(op, world, size, sms).buckets(4)
}
