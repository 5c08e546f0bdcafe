//! Ranges of NVTX around calls and the steps of `prepare`. `tool.cpp` takes the place of a profiler.

use mkernel::half::bf16;
use mkernel::testing::in_threads;
use mkernel::{
    Communicator, KernelConfig, Simulation,
    spec::{BLayout, Dim, GemmConfig, GemmOp, GemmShape},
};
use mkernel_compile::HostCxx;
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use tempfile::TempDir;

const RANKS: u32 = 2;
const CALLS: usize = 3;

/// An event of a thread, as the tool writes it.
#[derive(Debug, PartialEq)]
enum Event {
    Push(String),
    Pop,
}

/// Runs [`calls`] in a process with the tool. Returns the events of each thread.
fn events() -> BTreeMap<u64, Vec<Event>> {
    let dir = TempDir::new().expect("temporary folder");
    let at = |name: &str| dir.path().join(name);
    fs::write(at("tool.cpp"), include_str!("tool.cpp")).expect("a file");
    let mut compile = HostCxx::load().expect("a C++ compiler").command();
    compile.args(["-std=c++20", "-shared", "-fPIC", "-o"]);
    let status = compile.arg(at("tool.so")).arg(at("tool.cpp")).status();
    assert!(status.expect("a compiler").success());
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "calls", "--ignored", "--nocapture"])
        .env("NVTX_INJECTION64_PATH", at("tool.so"))
        .env("NVTX_TOOL_OUTPUT", at("events"))
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let mut events: BTreeMap<u64, Vec<Event>> = BTreeMap::new();
    for line in fs::read_to_string(at("events")).expect("events").lines() {
        let (thread, what) = line.split_once(' ').expect("a thread");
        let event = match what.strip_prefix("push ") {
            Some(name) => Event::Push(name.to_owned()),
            None if what == "pop" => Event::Pop,
            None => panic!("{line}"),
        };
        let thread = thread.parse().expect("a thread");
        events.entry(thread).or_default().push(event);
    }
    events
}

#[test]
#[ignore = "in a process of its own, with the tool"]
fn calls() {
    let ranks = Communicator::simulated(&Simulation {
        ranks: RANKS,
        ..Simulation::default()
    });
    let ranks = ranks.expect("simulated GPUs");
    let shape = GemmShape {
        m: 64,
        n: 64,
        k: 64,
    };
    let config = KernelConfig {
        name: Some("up".to_owned()),
        ..KernelConfig::new(
            RANKS,
            GemmConfig {
                m: Dim::Dynamic,
                n: Dim::Static(shape.n),
                k: Dim::Static(shape.k),
                b_layout: BLayout::Nk,
                ..GemmConfig::new(GemmOp::GemmAr)
            },
        )
    };
    in_threads(&ranks, |rank| {
        let up = rank.prepare(&config, shape).expect("prepared");
        let stream = rank.default_stream();
        let zeros = |count: u64| stream.alloc_zeros::<bf16>(count as usize);
        let a = zeros(shape.m * shape.k).expect("memory");
        let b = zeros(shape.n * shape.k).expect("memory");
        let mut c = zeros(shape.m * shape.n).expect("memory");
        for _ in 0..CALLS {
            up.launch(&stream, &a, &b, &mut c).expect("launched");
        }
        rank.synchronize(&stream).expect("right");
        rank.barrier().expect("all ranks");
    });
}

/// The names of ranges with the depth of each, if every range ends.
fn nested(events: &[Event]) -> Vec<(usize, &str)> {
    let mut depth = 0_usize;
    let mut names = Vec::new();
    for event in events {
        match event {
            Event::Push(name) => {
                names.push((depth, name.as_str()));
                depth += 1;
            }
            Event::Pop => {
                depth = depth
                    .checked_sub(1)
                    .unwrap_or_else(|| panic!("nothing has begun: {events:?}"));
            }
        }
    }
    assert_eq!(depth, 0, "a range has not ended: {events:?}");
    names
}

#[test]
fn ranges_of_calls_and_of_prepare_are_balanced() {
    let events = events();
    let names: Vec<_> = events.values().map(|events| nested(events)).collect();
    for rank in 0..RANKS {
        let prepare = (0, format!("mkernel prepare gemm_ar up, rank {rank}"));
        let of_rank = names.iter().find(|names| {
            names
                .iter()
                .any(|(depth, name)| (*depth, *name) == (prepare.0, &prepare.1))
        });
        let of_rank = of_rank.unwrap_or_else(|| panic!("no {prepare:?} in {names:?}"));
        for step in ["plan", "place memory", "compile", "load"] {
            let step = format!("mkernel {step}");
            assert!(of_rank.contains(&(1, &step)), "{step} in {of_rank:?}");
        }
        let call = format!("gemm_ar up, rank {rank} m=..=64 n=64 k=64");
        let calls = of_rank
            .iter()
            .filter(|(depth, name)| *depth == 0 && *name == call);
        assert_eq!(calls.count(), CALLS, "{call}: {of_rank:?}");
    }
}
