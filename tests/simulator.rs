//! Every golden kernel on simulated GPUs: right for every seed, and never a finding.

mod configs;
mod simulated;

use configs::Golden;
use mkernel::{Dim, KernelConfig, Shape, Tuning};
use simulated::{Job, always_right, in_parallel};
use std::sync::Mutex;

/// Seeds per kernel and world.
const SEEDS: u64 = 20;

/// A size that a CPU can do, with the same tail of tiles.
fn small(size: u64, limit: u64) -> u64 {
    if size <= limit {
        size
    } else {
        limit + size % 128
    }
}

/// The golden kernel with few rows and columns, on `world` ranks.
fn job(golden: &Golden, world: u32) -> Job {
    let shape = golden.plan.shape;
    // Shards of whole tiles, where the golden kernel's are.
    let rows = if shape.m % 1024 == 0 {
        128 * u64::from(world.max(2))
    } else {
        256
    };
    let shape = Shape {
        m: small(shape.m, rows),
        n: small(shape.n, 256),
        k: small(shape.k, 256),
    };
    let given = golden.plan.spec.config();
    let comm_ctas = given.tuning.comm_ctas.unwrap_or(0);
    // A world of one has nothing to transfer.
    let tuning = if world == 1 {
        Tuning {
            transfer: None,
            comm_ctas: None,
            k_slices: None,
            chunk_rows: None,
            ..given.tuning.clone()
        }
    } else {
        given.tuning.clone()
    };
    let config = KernelConfig {
        world,
        m: Dim::Static(shape.m),
        n: Dim::Static(shape.n),
        k: Dim::Static(shape.k),
        tuning,
        ..given.clone()
    };
    Job::new(config, shape, comm_ctas + 3)
}

#[test]
fn every_golden_kernel_is_right_on_every_seed() {
    let goldens = Golden::all();
    let all: Vec<(String, Job)> = goldens
        .iter()
        .flat_map(|golden| {
            [1, 2, 4].map(|world| {
                (
                    format!("{} on {world} ranks", golden.name),
                    job(golden, world),
                )
            })
        })
        .collect();
    let failures = Mutex::new(Vec::new());
    in_parallel(&all, |(name, job)| {
        let started = std::time::Instant::now();
        if let Err(failure) = always_right(name, job, 0..SEEDS) {
            failures.lock().expect("no panic").push(failure);
        }
        println!(
            "{name}: {:.2} s per seed",
            started.elapsed().as_secs_f64() / SEEDS as f64
        );
    });
    let failures = failures.into_inner().expect("no panic");
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
