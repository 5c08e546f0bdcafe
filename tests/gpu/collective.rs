//! Tests of collectives, with every bit of the results known: small and large tensors, in both protocols, on one node and on
//! several emulated nodes.

use crate::compile::{compile, expect_plans};
use crate::nodes::topologies;
use crate::ranks::worlds;
use crate::runs::run_times;
use mkernel::network::Faults;
use mkernel::spec::CollectiveOp::{self, AllGather, AllReduce, AllToAll, Broadcast, ReduceScatter};
use mkernel::spec::{Protocol, Scales, SizedSpec};
use mkernel_testing::jobs::collective::CollectiveJob;
use mkernel_testing::jobs::collective::buckets::{in_buckets, normalised_in_buckets};
use mkernel_testing::jobs::collective::cases::{
    across, in_place, in_the_memory_of_inputs, small, symmetric, symmetric_across, with_rows,
    with_rows_across,
};
use mkernel_testing::jobs::collective::norm::NormJob;
use mkernel_testing::jobs::collective::norm::cases::{normalised, normalised_across};
use mkernel_testing::jobs::collective::norm::quantised::{quantised, quantised_across};
use mkernel_testing::jobs::gemm::GemmJob;
use mkernel_testing::jobs::gemm::norm::{self as gemm_norm, GemmNormJob};
use mkernel_testing::jobs::{Backend, for_each_in_parallel};
use mkernel_testing::lab::{Random, TimeLimit, seed_from_clock};
use std::time::Duration;

/// Returns jobs that are too large for simulated GPUs: several vectors per thread, and several chunks per warp.
fn large(world: u32) -> Vec<(String, CollectiveJob)> {
    let job = |op, size| CollectiveJob::new(op, world, size, 0);
    let mut jobs = vec![
        ("sums of 32 MiB", job(AllReduce, (2048, 8192))),
        ("sums of 13 MB in fp32", job(AllReduce, (411, 8008)).fp32()),
        ("sums in a graph", job(AllReduce, (1024, 4096)).in_graph()),
        ("rows of 32 MiB", job(AllGather, (2047, 8192))),
        ("rows of sums of 32 MiB", job(ReduceScatter, (2047, 8192))),
        (
            "broadcast of 32 MiB",
            job(Broadcast, (2047, 8192)).from(world - 1),
        ),
        ("exchange of 32 MiB", job(AllToAll, (2048, 8192))),
        (
            "exchange of few long rows",
            job(AllToAll, (5, 65_536)).in_graph(),
        ),
    ];
    if world > 1 {
        let (ll, rows) = (Protocol::Ll, (64, 8192));
        jobs.extend([
            (
                "a MiB in one shot",
                job(AllReduce, rows).protocol(ll).shots(1),
            ),
            (
                "a MiB in two shots",
                job(AllReduce, rows).protocol(ll).shots(2),
            ),
            (
                "a MiB of rows in packets",
                job(AllGather, rows).protocol(ll),
            ),
            (
                "a MiB of sums in packets",
                job(ReduceScatter, rows).protocol(ll).in_graph(),
            ),
            (
                "broadcast of a MiB in packets",
                job(Broadcast, rows).protocol(ll).from(1).in_graph(),
            ),
            (
                "exchange of a MiB in packets",
                job(AllToAll, rows).protocol(ll).in_graph(),
            ),
        ]);
    }
    let name = |(name, job)| (format!("{name} on {world} ranks"), job);
    jobs.into_iter().map(name).collect()
}

/// Returns jobs with results in symmetric memory that are too large for simulated GPUs.
fn large_symmetric(world: u32) -> Vec<(String, CollectiveJob)> {
    let job = |op, size| CollectiveJob::new(op, world, size, 0).symmetric();
    let jobs = [
        ("sums of 32 MiB", job(AllReduce, (2048, 8192))),
        ("sums of 13 MB in fp32", job(AllReduce, (411, 8008)).fp32()),
        ("sums in a graph", job(AllReduce, (1024, 4096)).in_graph()),
        ("rows of 32 MiB", job(AllGather, (2047, 8192))),
        ("rows in a graph", job(AllGather, (1023, 4096)).in_graph()),
        ("exchange of 32 MiB", job(AllToAll, (2047, 8192))),
    ];
    let name = |(name, job)| (format!("{name} in symmetric memory on {world} ranks"), job);
    jobs.into_iter().map(name).collect()
}

/// Returns jobs of one operator each, whose calls have random numbers of rows: 200 calls of at most 512 rows, and 40 calls with
/// numbers of rows spread evenly over magnitudes, from a few to thousands.
fn random_rows(world: u32) -> Vec<(String, CollectiveJob)> {
    let mut random = Random(seed_from_clock());
    let jobs = CollectiveOp::ALL.into_iter().flat_map(|op| {
        let few: Vec<u64> = (0..200).map(|_| random.draw() % 513).collect();
        let any: Vec<u64> = (0..40)
            .map(|_| random.draw() % (2 << (random.draw() % 12)))
            .collect();
        let jobs = [(512, 1024, few), (4096, 2048, any)].map(|(most, n, rows)| {
            let job = CollectiveJob::new(op, world, (most, n), 0).with_rows(&rows);
            let name = format!("{op} of random rows of at most {most}");
            [
                (format!("{name} on {world} ranks"), job.clone()),
                (
                    format!("{name} in a graph on {world} ranks"),
                    job.in_graph(),
                ),
            ]
        });
        jobs.into_iter().flatten()
    });
    jobs.collect()
}

/// Returns jobs whose calls change from one bucket to another. A single rank has no buckets, so it has no such jobs.
fn all_in_buckets(world: u32) -> Vec<(String, CollectiveJob)> {
    match world {
        1 => Vec::new(),
        _ => in_buckets(world),
    }
}

pub fn spec(job: &CollectiveJob) -> SizedSpec {
    let spec = SizedSpec::for_sizes(job.kernel(), job.shape());
    spec.unwrap_or_else(|error| panic!("{:?}: {error}", job.config))
}

/// Runs every job three times.
fn run(jobs: &[(String, CollectiveJob)]) {
    compile(&jobs.iter().map(|(_, job)| spec(job)).collect::<Vec<_>>());
    for_each_in_parallel(jobs, |(_, job)| job.compute());
    for (name, job) in jobs {
        run_times(3, name, || job.run_on(Backend::Gpus));
    }
}

#[test]
#[ignore = "needs GPUs"]
fn collectives_are_right() {
    let _limit = TimeLimit::start("collectives", Duration::from_secs(480));
    for world in worlds(1) {
        let jobs = [
            small(world),
            large(world),
            with_rows(world),
            random_rows(world),
        ]
        .concat();
        run(&jobs);
        println!("world {world}: {} jobs", jobs.len());
    }
}

#[test]
#[ignore = "needs GPUs"]
fn collectives_that_change_buckets_are_right() {
    let _limit = TimeLimit::start("buckets of collectives", Duration::from_secs(300));
    for world in worlds(2) {
        let (jobs, norms) = (in_buckets(world), normalised_in_buckets(world));
        run(&jobs);
        run_normalised(&norms);
        println!("world {world}: {} jobs", jobs.len() + norms.len());
    }
}

/// Ranks store straight to each other's results.
#[test]
#[ignore = "needs GPUs"]
fn collectives_with_symmetric_results_are_right() {
    let _limit = TimeLimit::start("symmetric collectives", Duration::from_secs(480));
    for world in worlds(1) {
        let mut jobs = symmetric(world);
        jobs.extend(large_symmetric(world));
        run(&jobs);
        println!("world {world}: {} jobs", jobs.len());
    }
    for (world, nodes) in topologies() {
        run(&symmetric_across(nodes, world / nodes, &Faults::default()));
    }
}

/// Results replace their inputs in memory.
#[test]
#[ignore = "needs GPUs"]
fn collectives_in_place_are_right() {
    let _limit = TimeLimit::start("collectives in place", Duration::from_secs(480));
    for world in worlds(1) {
        let mut jobs = in_place(world, 1, &Faults::default());
        let more = [large(world), large_symmetric(world), random_rows(world)].concat();
        jobs.extend(in_the_memory_of_inputs(more));
        run(&jobs);
        println!("world {world}: {} jobs", jobs.len());
    }
    for (world, nodes) in topologies() {
        run(&in_place(world, nodes, &Faults::default()));
    }
}

#[test]
#[ignore = "needs GPUs"]
fn collectives_on_several_nodes_are_right() {
    let _limit = TimeLimit::start("nodes: collectives", Duration::from_secs(480));
    for (world, nodes) in topologies() {
        let mut jobs = across(nodes, world / nodes, &Faults::default());
        let large = |op| CollectiveJob::new(op, world, (2047, 8192), 0);
        jobs.extend([AllReduce, AllGather, ReduceScatter].map(|op| {
            let job = large(op).across(nodes, Faults::default());
            (format!("{op} of 32 MiB"), job)
        }));
        let (local, faults) = (world / nodes, Faults::default());
        jobs.extend(with_rows_across(nodes, local, &faults));
        run(&jobs);
        println!("{world} ranks, {nodes} nodes: {} jobs", jobs.len());
    }
}

/// Returns jobs of norms that are too large for simulated GPUs: several vectors of a row per lane, and many rows.
fn large_normalised(world: u32) -> Vec<(String, NormJob)> {
    let job = |size| NormJob::new(world, size, 0);
    let mut jobs = vec![
        ("rows of 32 MiB", job((2048, 8192)).biased()),
        (
            "rows of 13 MB in fp32, in place",
            job((411, 8008)).with(CollectiveJob::fp32).in_place(),
        ),
        (
            "rows in a graph",
            job((1024, 4096)).with(CollectiveJob::in_graph),
        ),
    ];
    let narrow = |scales| ("e4m3 of 32 MiB", job((2048, 8192)).quantised(scales));
    jobs.extend([Scales::Row, Scales::Block].map(narrow));
    if world > 1 {
        for shots in [1, 2] {
            let packets = |job: CollectiveJob| job.protocol(Protocol::Ll).shots(shots);
            jobs.extend([
                ("one row in packets", job((1, 8192)).with(packets)),
                ("8 rows in packets", job((8, 8192)).with(packets).in_place()),
                ("64 rows in packets", job((64, 8192)).with(packets).biased()),
                (
                    "64 rows in packets to blocks of e4m3",
                    job((64, 8192)).with(packets).quantised(Scales::Block),
                ),
                (
                    "16 rows in packets to rows of e4m3",
                    job((16, 8192)).with(packets).quantised(Scales::Row),
                ),
                (
                    "64 rows in packets in a graph",
                    job((64, 5120)).with(packets).with(CollectiveJob::in_graph),
                ),
                (
                    "up to 64 rows in packets",
                    job((64, 8192))
                        .with(packets)
                        .with(|job| job.with_rows(&[64, 1, 7, 64, 33, 2, 1, 64])),
                ),
            ]);
        }
    }
    let name = |(name, job): (&str, NormJob)| (format!("norm: {name} on {world} ranks"), job);
    jobs.into_iter().map(name).collect()
}

/// Runs every job three times.
fn run_normalised(jobs: &[(String, NormJob)]) {
    let kernels = jobs.iter().flat_map(|(_, job)| job.kernels());
    compile(&kernels.map(|job| spec(&job)).collect::<Vec<_>>());
    for (name, job) in jobs {
        run_times(3, name, || job.run_on(Backend::Gpus));
    }
}

#[test]
#[ignore = "needs GPUs"]
fn norms_are_right() {
    let _limit = TimeLimit::start("norms", Duration::from_secs(480));
    for world in worlds(1) {
        let jobs = [normalised(world), quantised(world), large_normalised(world)].concat();
        run_normalised(&jobs);
        println!("world {world}: {} jobs", jobs.len());
    }
}

/// Returns jobs of `gemm_ar` and `gemm_rs` with a norm that are too large for simulated GPUs.
fn large_products(world: u32) -> Vec<(String, GemmNormJob)> {
    let job = |size| GemmNormJob::new(world, size, 0);
    let jobs = [
        ("one row", job((1, 8192, 256))),
        ("16 rows", job((16, 8192, 256)).activated()),
        ("64 rows in place", job((64, 5120, 256)).in_place()),
        ("200 rows", job((200, 4096, 128))),
        ("16 rows in a graph", job((16, 8192, 256)).in_graph()),
        (
            "up to 64 rows",
            job((64, 8192, 256)).with_rows(&[64, 1, 7, 64, 33, 2, 0, 64]),
        ),
        (
            "2050 rows of owners",
            job((2050, 2888, 128)).in_two_shots(8).in_place(),
        ),
        ("3000 scattered rows", job((3000, 2048, 128)).scattered()),
        (
            "up to 2500 rows of owners",
            job((2500, 2048, 128))
                .in_two_shots(8)
                .with_rows(&[2500, 1, 1300, 0, 64, 2500]),
        ),
    ];
    let name = |(name, job): (&str, GemmNormJob)| (format!("{name} on {world} ranks"), job);
    jobs.into_iter().map(name).collect()
}

fn products(world: u32) -> Vec<(String, GemmNormJob)> {
    [
        gemm_norm::normalised(world),
        gemm_norm::normalised_by_owners(world),
        gemm_norm::quantised::in_one_shot(world),
        gemm_norm::quantised::by_owners(world),
        large_products(world),
    ]
    .concat()
}

#[test]
#[ignore = "needs GPUs"]
fn norms_of_products_are_right() {
    let _limit = TimeLimit::start("norms of products", Duration::from_secs(480));
    for world in worlds(1) {
        let jobs = products(world);
        let kernels = jobs.iter().flat_map(|(_, job)| job.kernels());
        let specs = kernels.map(|kernel| spec_of_product(&kernel));
        compile(&specs.collect::<Vec<_>>());
        for (name, job) in &jobs {
            run_times(3, name, || job.run_on(Backend::Gpus));
        }
        println!("world {world}: {} jobs", jobs.len());
    }
}

/// Returns the specification of a job's kernel.
pub fn spec_of_product(job: &GemmJob) -> SizedSpec {
    let spec = SizedSpec::for_sizes(job.kernel(), job.shape);
    spec.unwrap_or_else(|error| panic!("{:?}: {error}", job.config))
}

#[test]
#[ignore = "needs GPUs"]
fn norms_on_several_nodes_are_right() {
    let _limit = TimeLimit::start("nodes: norms", Duration::from_secs(480));
    for (world, nodes) in topologies() {
        let (local, faults) = (world / nodes, Faults::default());
        let jobs = [normalised_across, quantised_across];
        let jobs = jobs.map(|jobs| jobs(nodes, local, &faults)).concat();
        run_normalised(&jobs);
        println!("{world} ranks, {nodes} nodes: {} jobs", jobs.len());
    }
}

/// Checks without a GPU that all jobs are possible.
#[test]
fn every_job_of_collectives_has_a_plan() {
    use mkernel::spec::spec::WORLDS;
    for world in WORLDS {
        let symmetric = [symmetric(world), large_symmetric(world)].concat();
        let rows = [with_rows(world), random_rows(world), all_in_buckets(world)].concat();
        for (name, job) in [small(world), large(world), rows, symmetric].concat() {
            expect_plans(&spec(&job), &name);
        }
        let norms = [normalised(world), quantised(world), large_normalised(world)];
        for (name, job) in norms.concat() {
            expect_plans(&spec(&job.job), &name);
        }
        for (name, job) in products(world) {
            expect_plans(&spec_of_product(&job.job), &name);
        }
    }
}
