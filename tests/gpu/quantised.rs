//! Tests of products whose results are e4m3 with scales of blocks, with every bit of the results known.

use crate::collective::spec_of_product;
use crate::compile::{compile, expect_plans};
use crate::ranks::worlds;
use crate::runs::run_times;
use mkernel::spec::GemmOp::{AgGemm, Gemm};
use mkernel_testing::jobs::Backend;
use mkernel_testing::jobs::gemm::quantised::{QuantisedGemmJob, quantised};
use mkernel_testing::lab::TimeLimit;
use std::time::Duration;

/// Returns the jobs for simulated GPUs and larger jobs, on all SMs. The CPU computes what they compare with.
fn products(world: u32) -> Vec<(String, QuantisedGemmJob)> {
    let large = [
        (AgGemm, (1024, 1552, 256), (128, 256)),
        (Gemm, (1026, 1552, 256), (128, 128)),
        (Gemm, (64, 4096, 512), (64, 128)),
        (Gemm, (333, 1552, 512), (64, 256)),
    ];
    let large = large.map(|(op, (m, n, k), tile)| {
        let name = format!("{op} of {m}x{n}x{k} in e4m3 on {world} ranks");
        (name, QuantisedGemmJob::new(op, world, (m, n, k), tile, 0))
    });
    quantised(world).into_iter().chain(large).collect()
}

#[test]
#[ignore = "needs GPUs"]
fn products_become_e4m3() {
    let _limit = TimeLimit::start("products in e4m3", Duration::from_secs(480));
    for world in worlds(1) {
        let jobs = products(world);
        let kernels = jobs.iter().flat_map(|(_, job)| job.kernels());
        compile(
            &kernels
                .map(|kernel| spec_of_product(&kernel))
                .collect::<Vec<_>>(),
        );
        for (name, job) in &jobs {
            run_times(3, name, || job.run_on(Backend::Gpus));
            println!("{name}: right");
        }
    }
}

/// Checks without a GPU that all jobs are possible.
#[test]
fn every_product_in_e4m3_has_a_plan() {
    use mkernel::spec::spec::WORLDS;
    for world in WORLDS {
        for (name, job) in products(world) {
            expect_plans(&spec_of_product(&job.0), &name);
        }
    }
}
