//! Tests of GEMM operators with rows at run time. Every bit of the results is known.

use crate::compile::{compile, expect_plans};
use crate::nodes::topologies;
use crate::ranks::worlds;
use crate::runs::run_times;
use mkernel::network::Faults;
use mkernel::spec::{BLayout, Dim, GemmConfig, GemmOp, GemmShape, SizedSpec};
use mkernel_testing::jobs::gemm::buckets::{in_buckets, in_buckets_across};
use mkernel_testing::jobs::gemm::cases::{with_rows, with_rows_across};
use mkernel_testing::jobs::{Backend, GemmJob, for_each_in_parallel};
use mkernel_testing::lab::{Random, TimeLimit, seed_from_clock};
use std::time::Duration;

/// Returns jobs of one operator each, with many calls of random numbers of rows, for sizes of decoding and for larger sizes.
fn random_rows(world: u32) -> Vec<(String, GemmJob)> {
    let mut random = Random(seed_from_clock());
    let sizes = [(512, 520, 264, 200), (3000, 1032, 512, 20)];
    let jobs = GemmOp::ALL.into_iter().flat_map(|op| {
        sizes.map(|(most, n, k, calls)| {
            let rows: Vec<u64> = (0..calls).map(|_| random.draw() % (most + 1)).collect();
            let config = GemmConfig {
                n: Dim::Static(n),
                k: Dim::Static(k),
                b_layout: BLayout::Nk,
                ..GemmConfig::new(op)
            };
            let shape = GemmShape { m: most, n, k };
            let job = GemmJob::new(world, config, shape, 0).with_rows(&rows);
            let name = format!("{} of up to {most} rows on {world} ranks", op.op().name());
            [
                (format!("{name}, in a graph"), job.clone().in_graph()),
                (name, job),
            ]
        })
    });
    jobs.flatten().collect()
}

/// Returns all jobs on one node, with calls that change from one bucket to another.
fn all(world: u32) -> Vec<(String, GemmJob)> {
    let mut jobs = [with_rows(world), random_rows(world)].concat();
    if world > 1 {
        jobs.extend(in_buckets(world));
    }
    jobs
}

/// Returns all jobs on several nodes.
fn all_across(nodes: u32, local: u32) -> Vec<(String, GemmJob)> {
    let faults = Faults::default();
    let jobs = with_rows_across(nodes, local, &faults).into_iter();
    jobs.chain(in_buckets_across(nodes, local, &faults))
        .collect()
}

pub fn spec(job: &GemmJob) -> SizedSpec {
    let spec = SizedSpec::for_sizes(job.kernel(), job.shape);
    spec.unwrap_or_else(|error| panic!("{:?}: {error}", job.config))
}

/// Runs every job twice.
pub fn run(jobs: &[(String, GemmJob)]) {
    compile(&jobs.iter().map(|(_, job)| spec(job)).collect::<Vec<_>>());
    for_each_in_parallel(jobs, |(_, job)| job.compute());
    for (name, job) in jobs {
        run_times(2, name, || job.run_on(Backend::Gpus));
    }
}

#[test]
#[ignore = "needs GPUs"]
fn rows_may_change_from_call_to_call() {
    let _limit = TimeLimit::start("rows", Duration::from_secs(300));
    for world in worlds(1) {
        let jobs = all(world);
        run(&jobs);
        println!("world {world}: {} jobs", jobs.len());
    }
}

#[test]
#[ignore = "needs GPUs"]
fn rows_may_change_on_several_nodes() {
    let _limit = TimeLimit::start("nodes: rows", Duration::from_secs(300));
    for (world, nodes) in topologies() {
        let jobs = all_across(nodes, world / nodes);
        run(&jobs);
        println!("{world} ranks, {nodes} nodes: {} jobs", jobs.len());
    }
}

/// Checks without a GPU that all jobs are possible.
#[test]
fn every_job_with_rows_has_a_plan() {
    use mkernel::spec::spec::WORLDS;
    for world in WORLDS {
        for (name, job) in all(world).into_iter().chain(all_across(2, world)) {
            expect_plans(&spec(&job), &name);
        }
    }
}
