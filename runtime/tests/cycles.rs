//! A test of operators that come and go: on simulated GPUs they leave no open files and no memory behind. This program has no
//! other test, since it limits the open files of the process.

#![cfg(feature = "simulator")]

use mkernel::half::bf16;
use mkernel::testing::in_threads;
use mkernel::{
    Communicator, Error, KernelConfig, Simulation,
    spec::{BLayout, Dim, GemmConfig, GemmOp, GemmShape},
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;

const SHAPE: GemmShape = GemmShape {
    m: 64,
    n: 64,
    k: 64,
};
const CYCLES: usize = 300;
/// The number of cycles after which everything that cycles can share exists.
const WARM_UP: usize = 60;
/// The most open files of the process.
const MAX_FILES: u64 = 256;
/// The memory that the later cycles may take. These cycles load 480 images of 0.2 MB, and each cycle records 0.2 MB of
/// accesses.
const MAX_GROWTH_KIB: usize = 24 << 10;

/// Returns the memory in KiB that belongs to this process alone: its heap, and images that are loaded or only open.
fn memory_kib() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("a status");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let value = line.and_then(|line| line.trim().strip_suffix(" kB"));
        value.map_or(0, |value| value.parse::<usize>().expect("a number"))
    };
    field("RssAnon:") + field("RssFile:") + field("RssShmem:")
}

/// Prepares an operator, makes a call, and drops it.
fn cycle(ranks: &Communicator) -> Result<(), Error> {
    let config = GemmConfig {
        m: Dim::Static(SHAPE.m),
        n: Dim::Static(SHAPE.n),
        k: Dim::Static(SHAPE.k),
        b_layout: BLayout::Nk,
        ..GemmConfig::new(GemmOp::AgGemm)
    };
    let config = KernelConfig::new(ranks.world(), config);
    let operator = ranks.prepare(&config, SHAPE)?;
    let stream = ranks.default_stream();
    let zeros = |elems: u64| {
        stream
            .alloc_zeros::<bf16>(elems as usize)
            .expect("allocated")
    };
    let (a, b) = (zeros(SHAPE.m / 2 * SHAPE.k), zeros(SHAPE.n * SHAPE.k));
    let mut c = zeros(SHAPE.m * SHAPE.n);
    operator.launch(&stream, &a, &b, &mut c)?;
    ranks.synchronize(&stream)
}

#[test]
fn operators_that_come_and_go_leave_nothing_behind() {
    let limit = Rlimit {
        current: Some(MAX_FILES),
        maximum: Some(MAX_FILES),
    };
    setrlimit(Resource::Nofile, limit).expect("a lower limit");
    let simulation = Simulation {
        sms: 2,
        ..Simulation::default()
    };
    let all = Communicator::simulated(&simulation).expect("simulated GPUs");
    let grown = in_threads(all, |ranks| {
        let mut before = 0;
        for number in 0..CYCLES {
            if number == WARM_UP {
                before = memory_kib();
            }
            cycle(&ranks).unwrap_or_else(|error| panic!("cycle {number}: {error}"));
        }
        memory_kib().saturating_sub(before)
    });
    assert_eq!(getrlimit(Resource::Nofile).current, Some(MAX_FILES));
    let grown = grown.into_iter().max().expect("ranks");
    assert!(
        grown < MAX_GROWTH_KIB,
        "{grown} KiB more than after {WARM_UP} cycles"
    );
}
