//! Tests of rows of e4m3 and their scales, which collectives move, with every bit of the results known.

use crate::collective::spec;
use crate::compile::{compile, expect_plans};
use crate::nodes::topologies;
use crate::ranks::worlds;
use crate::runs::run_times;
use mkernel::network::Faults;
use mkernel::spec::CollectiveOp::{AllGather, AllToAll, Broadcast};
use mkernel::spec::Scales;
use mkernel_testing::jobs::Backend;
use mkernel_testing::jobs::collective::scaled::ScaledJob;
use mkernel_testing::jobs::collective::scaled::cases::{scaled, scaled_across};
use mkernel_testing::lab::TimeLimit;
use std::time::Duration;

/// Returns jobs of rows with scales that are too large for simulated GPUs.
fn large_scaled(world: u32) -> Vec<(String, ScaledJob)> {
    let jobs = [AllGather, Broadcast, AllToAll].into_iter().flat_map(|op| {
        let job = |scales, size| ScaledJob::new((op, scales), world, size, 0);
        let rows = [2047, 1, 0, 64, 2047, 333];
        [
            (
                format!("{op} of 15 MB with scales of blocks"),
                job(Scales::Block, (2047, 7168)),
            ),
            (
                format!("{op} of at most 2047 rows with scales"),
                job(Scales::Row, (2047, 4096)).with(|job| job.with_rows(&rows)),
            ),
        ]
    });
    let name = |(name, job)| (format!("{name} on {world} ranks"), job);
    jobs.map(name).collect()
}

/// Runs every job three times.
fn run_scaled(jobs: &[(String, ScaledJob)]) {
    let specs = jobs.iter().map(|(_, job)| spec(&job.job));
    compile(&specs.collect::<Vec<_>>());
    for (name, job) in jobs {
        run_times(3, name, || job.run_on(Backend::Gpus));
    }
}

/// Scales travel with rows of e4m3.
#[test]
#[ignore = "needs GPUs"]
fn rows_with_scales_are_right() {
    let _limit = TimeLimit::start("rows with scales", Duration::from_secs(480));
    for world in worlds(1) {
        let jobs = [scaled(world), large_scaled(world)].concat();
        run_scaled(&jobs);
        println!("world {world}: {} jobs", jobs.len());
    }
    for (world, nodes) in topologies() {
        run_scaled(&scaled_across(nodes, world / nodes, &Faults::default()));
    }
}

/// Checks without a GPU that all jobs are possible.
#[test]
fn every_job_of_rows_with_scales_has_a_plan() {
    use mkernel::spec::spec::WORLDS;
    for world in WORLDS {
        for (name, job) in [scaled(world), large_scaled(world)].concat() {
            expect_plans(&spec(&job.job), &name);
        }
    }
}
