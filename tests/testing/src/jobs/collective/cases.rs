//! Jobs of collectives that cover every protocol and many sizes.

use super::CollectiveJob;
use super::buckets::in_buckets;
use mkernel::network::Faults;
use mkernel::spec::{CollectiveOp, Protocol};

/// Returns jobs on one node that use every protocol: whole shards, shards of unequal length, ranks without a shard,
/// several vectors per thread, several chunks per warp, all types, and graphs.
pub fn small(world: u32) -> Vec<(String, CollectiveJob)> {
    use CollectiveOp::{AllGather, AllReduce, ReduceScatter};
    let job = |op, size, sms| CollectiveJob::new(op, world, size, sms);
    if world == 1 {
        let jobs = CollectiveOp::ALL.map(|op| (format!("{op} on one rank"), job(op, (9, 264), 2)));
        return jobs.into();
    }
    let ll = |op, size, sms| job(op, size, sms).protocol(Protocol::Ll);
    let simple = |op, size, sms| job(op, size, sms).protocol(Protocol::Simple);
    let jobs = [
        ("one shot", ll(AllReduce, (3, 136), 2).shots(1)),
        (
            "one shot, long",
            ll(AllReduce, (7, 1032), 1).shots(1).fp32(),
        ),
        ("two shots", ll(AllReduce, (3, 136), 2).shots(2)),
        (
            "one shot of fp16",
            ll(AllReduce, (3, 136), 2).shots(1).fp16(),
        ),
        (
            "two shots, two vectors",
            ll(AllReduce, (2, 8), 2).shots(2).in_graph(),
        ),
        ("rows in packets", ll(AllGather, (7, 136), 2)),
        ("a row in packets", ll(AllGather, (1, 136), 2).fp32()),
        (
            "rows of sums in packets",
            ll(ReduceScatter, (7, 136), 2).in_graph(),
        ),
        ("a row of sums in packets", ll(ReduceScatter, (1, 2056), 1)),
        ("chunks", simple(AllReduce, (30, 1032), 2)),
        (
            "rows of sums of fp16 in packets",
            ll(ReduceScatter, (7, 136), 2).fp16(),
        ),
        ("chunks of fp16", simple(AllReduce, (30, 1032), 2).fp16()),
        ("a short chunk", simple(AllReduce, (1, 8), 1).fp32()),
        (
            "rows in chunks",
            simple(AllGather, (30, 1032), 2).in_graph(),
        ),
        ("a row in chunks", simple(AllGather, (1, 1032), 2)),
        (
            "rows of sums in chunks",
            simple(ReduceScatter, (29, 1032), 2).fp32(),
        ),
        (
            "a row of sums in chunks",
            simple(ReduceScatter, (1, 1032), 2),
        ),
    ];
    let name = |(name, job)| (format!("{name} on {world} ranks"), job);
    let jobs = jobs.into_iter().chain(broadcasts(world));
    jobs.chain(exchanges(world)).map(name).collect()
}

/// Returns exchanges of rows on one node of several ranks.
fn exchanges(world: u32) -> [(&'static str, CollectiveJob); 5] {
    let job = |size, protocol, sms| {
        CollectiveJob::new(CollectiveOp::AllToAll, world, size, sms).protocol(protocol)
    };
    let ll = |size, sms| job(size, Protocol::Ll, sms);
    let simple = |size, sms| job(size, Protocol::Simple, sms);
    [
        ("exchange in packets", ll((8, 136), 2).in_graph()),
        ("exchange of few rows in packets", ll((3, 136), 2).fp16()),
        ("exchange in chunks", simple((30, 1032), 2).fp32()),
        ("exchange of a row in chunks", simple((1, 1032), 2)),
        (
            "exchange in chunks in a graph",
            simple((32, 264), 1).in_graph(),
        ),
    ]
}

/// Returns broadcasts on one node of several ranks, from several roots.
fn broadcasts(world: u32) -> [(&'static str, CollectiveJob); 5] {
    let broadcast = |protocol, size, sms| {
        let job = CollectiveJob::new(CollectiveOp::Broadcast, world, size, sms);
        job.protocol(protocol)
    };
    let ll = |size, sms| broadcast(Protocol::Ll, size, sms);
    let simple = |size, sms| broadcast(Protocol::Simple, size, sms);
    [
        ("broadcast in packets", ll((7, 136), 2)),
        (
            "broadcast of the last rank in packets",
            ll((3, 136), 2).from(world - 1).in_graph(),
        ),
        ("broadcast in chunks", simple((30, 1032), 2).from(1).fp32()),
        (
            "broadcast of few vectors in chunks",
            simple((1, 8), 2).from(world - 1),
        ),
        (
            "broadcast in chunks in a graph",
            simple((30, 1032), 1).in_graph(),
        ),
    ]
}

/// Returns jobs on several nodes: shards of several puts, ranks without a shard, both types, and graphs.
pub fn across(nodes: u32, local_world: u32, faults: &Faults) -> Vec<(String, CollectiveJob)> {
    let job = |op, size| {
        let job = CollectiveJob::new(op, nodes * local_world, size, 3);
        rooted(job, nodes * local_world - 1).across(nodes, faults.clone())
    };
    let jobs = CollectiveOp::ALL.into_iter().flat_map(|op| {
        [
            (format!("{op} of rows"), job(op, (29, 1032))),
            (format!("{op} of a row in fp32"), job(op, (1, 1032)).fp32()),
            (format!("{op} in a graph"), job(op, (8, 264)).in_graph()),
            (format!("{op} of fp16"), job(op, (29, 1032)).fp16()),
        ]
    });
    let name = |(name, job)| (format!("{name} on {nodes}x{local_world}"), job);
    jobs.map(name).collect()
}

/// Sets the root of a job that has one.
fn rooted(job: CollectiveJob, root: u32) -> CollectiveJob {
    match job.config.op {
        CollectiveOp::Broadcast => job.from(root),
        _ => job,
    }
}

/// Returns jobs whose calls have different numbers of rows, including 0 and the most, and run one plan.
pub fn with_rows(world: u32) -> Vec<(String, CollectiveJob)> {
    use CollectiveOp::{AllGather, AllReduce, ReduceScatter};
    let job = |op, size, sms| CollectiveJob::new(op, world, size, sms).buckets(1);
    let ll = |op, size, sms| job(op, size, sms).protocol(Protocol::Ll);
    let simple = |op, size, sms| job(op, size, sms).protocol(Protocol::Simple);
    let few = [3, 0, 9, 1, 2, 9, 0, 5];
    let many = [30, 1, 0, 29, 7, 30, 2, 30];
    let jobs = match world {
        1 => CollectiveOp::ALL
            .map(|op| ("one rank", job(op, (9, 264), 2).with_rows(&few)))
            .into(),
        _ => vec![
            (
                "one shot",
                ll(AllReduce, (9, 136), 2).shots(1).with_rows(&few),
            ),
            (
                "two shots",
                ll(AllReduce, (9, 136), 2).shots(2).with_rows(&few),
            ),
            (
                "two shots in a graph",
                ll(AllReduce, (9, 136), 2)
                    .shots(2)
                    .with_rows(&few)
                    .in_graph(),
            ),
            (
                "rows in packets",
                ll(AllGather, (9, 136), 2).with_rows(&few),
            ),
            (
                "rows of sums in packets",
                ll(ReduceScatter, (9, 136), 2).with_rows(&few).fp32(),
            ),
            ("chunks", simple(AllReduce, (30, 1032), 2).with_rows(&many)),
            (
                "chunks in a graph",
                simple(AllReduce, (30, 1032), 2).with_rows(&many).in_graph(),
            ),
            (
                "rows in chunks",
                simple(AllGather, (30, 1032), 2).with_rows(&many).fp32(),
            ),
            (
                "rows of sums in chunks",
                simple(ReduceScatter, (30, 1032), 2).with_rows(&many),
            ),
        ],
    };
    let name = |(name, job): (String, CollectiveJob)| (format!("{name} on {world} ranks"), job);
    let jobs = jobs.into_iter().map(|(name, job)| (name.to_owned(), job));
    jobs.chain(sent_with_rows(world)).map(name).collect()
}

/// Returns broadcasts and exchanges of different numbers of rows, on one node of several ranks.
fn sent_with_rows(world: u32) -> Vec<(String, CollectiveJob)> {
    let ops = [CollectiveOp::Broadcast, CollectiveOp::AllToAll].into_iter();
    let jobs = ops.filter(|_| world > 1).flat_map(|op| {
        let job = |size| rooted(CollectiveJob::new(op, world, size, 2), 1).buckets(1);
        let packets = job((9, 136)).protocol(Protocol::Ll);
        let chunks = job((30, 1032)).protocol(Protocol::Simple);
        [
            (
                format!("{op} in packets"),
                packets.with_rows(&[3, 0, 9, 1, 2, 9, 0, 5]),
            ),
            (
                format!("{op} in chunks"),
                chunks.with_rows(&[30, 1, 0, 29, 7, 30, 2, 30]).in_graph(),
            ),
        ]
    });
    jobs.collect()
}

/// Returns jobs on several nodes whose calls give the rows.
pub fn with_rows_across(
    nodes: u32,
    local_world: u32,
    faults: &Faults,
) -> Vec<(String, CollectiveJob)> {
    let jobs = CollectiveOp::ALL.into_iter().flat_map(|op| {
        let world = nodes * local_world;
        let job = rooted(CollectiveJob::new(op, world, (29, 1032), 3), world / 2)
            .across(nodes, faults.clone())
            .buckets(1)
            .with_rows(&[29, 0, 1, 28, 5, 29]);
        [
            (format!("{op}"), job.clone()),
            (format!("{op} in a graph"), job.in_graph()),
        ]
    });
    let name = |(name, job)| (format!("{name} on {nodes}x{local_world}"), job);
    jobs.map(name).collect()
}

/// Returns jobs on one node whose results are in symmetric memory: with whole shards, shards of unequal length, ranks
/// without a shard, several chunks per warp, packets, graphs, and rows at run time.
pub fn symmetric(world: u32) -> Vec<(String, CollectiveJob)> {
    use CollectiveOp::{AllGather, AllReduce, AllToAll};
    let job = |op, size, sms| CollectiveJob::new(op, world, size, sms).symmetric();
    if world == 1 {
        let jobs = [AllReduce, AllGather, AllToAll]
            .map(|op| (format!("{op} on one rank"), job(op, (9, 264), 2)));
        return jobs.into();
    }
    let simple = |op, size, sms| job(op, size, sms).protocol(Protocol::Simple);
    let many = [30, 1, 0, 29, 7, 30, 2, 30];
    let jobs = [
        ("sums", simple(AllReduce, (30, 1032), 2)),
        (
            "sums in a graph",
            simple(AllReduce, (30, 1032), 1).in_graph(),
        ),
        ("a short chunk of sums", simple(AllReduce, (1, 8), 1).fp32()),
        (
            "sums of rows",
            simple(AllReduce, (30, 1032), 2).buckets(1).with_rows(&many),
        ),
        ("rows", simple(AllGather, (30, 1032), 2).fp32()),
        (
            "rows in a graph",
            simple(AllGather, (30, 1032), 1).in_graph(),
        ),
        ("a row", simple(AllGather, (1, 1032), 2)),
        (
            "rows of rows",
            simple(AllGather, (30, 1032), 2).buckets(1).with_rows(&many),
        ),
        (
            "rows of rows in a graph",
            simple(AllGather, (30, 1032), 2)
                .buckets(1)
                .with_rows(&many)
                .in_graph(),
        ),
        (
            "packets",
            job(AllReduce, (3, 136), 2).protocol(Protocol::Ll),
        ),
        (
            "exchange in a graph",
            simple(AllToAll, (32, 1032), 2).in_graph(),
        ),
        ("exchange of a row", simple(AllToAll, (1, 1032), 2).fp32()),
        (
            "exchange of rows",
            simple(AllToAll, (30, 1032), 2).buckets(1).with_rows(&many),
        ),
    ];
    let name = |(name, job)| (format!("{name} in symmetric memory on {world} ranks"), job);
    jobs.into_iter().map(name).collect()
}

/// Returns jobs on several nodes with tensors in symmetric memory, whose results come from the workspace.
pub fn symmetric_across(
    nodes: u32,
    local_world: u32,
    faults: &Faults,
) -> Vec<(String, CollectiveJob)> {
    use CollectiveOp::{AllGather, AllReduce, AllToAll};
    [AllReduce, AllGather, AllToAll]
        .into_iter()
        .map(|op| {
            let job = CollectiveJob::new(op, nodes * local_world, (8, 264), 3);
            let job = job.across(nodes, faults.clone()).symmetric();
            (
                format!("{op} in symmetric memory on {nodes}x{local_world}"),
                job,
            )
        })
        .collect()
}

/// Returns the jobs of a list whose results can share the memory of their inputs, with shared memory.
pub fn in_the_memory_of_inputs(jobs: Vec<(String, CollectiveJob)>) -> Vec<(String, CollectiveJob)> {
    // An exchange reads rows that a peer's part of its result would overwrite.
    let jobs = jobs
        .into_iter()
        .filter(|(_, job)| !job.config.op.exchanges());
    jobs.map(|(name, job)| (format!("{name}, in place"), job.in_place()))
        .collect()
}

/// Returns jobs whose results have the memory of their inputs, on one node or several: every protocol, both types, graphs,
/// symmetric memory, rows at run time, and buckets.
pub fn in_place(world: u32, nodes: u32, faults: &Faults) -> Vec<(String, CollectiveJob)> {
    let fixed = match nodes {
        1 => [small(world), symmetric(world)].concat(),
        _ => [
            across(nodes, world / nodes, faults),
            symmetric_across(nodes, world / nodes, faults),
        ]
        .concat(),
    };
    let rows = match nodes {
        1 if world == 1 => with_rows(1),
        1 => [with_rows(world), in_buckets(world)].concat(),
        _ => with_rows_across(nodes, world / nodes, faults),
    };
    in_the_memory_of_inputs([fixed, rows].concat())
}
