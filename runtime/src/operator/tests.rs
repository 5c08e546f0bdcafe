//! Tests of copies whose call is aborted while the copy thread is late, of equal operators, and of the calls that ranks have
//! begun.

use super::*;
use crate::testing::in_threads;
use crate::{
    Communicator, KernelConfig, Simulation,
    spec::{BLayout, Dim, GemmConfig, GemmOp, GemmShape, Transfer, Tuning},
};
use cudarc::driver::CudaSlice;
use half::bf16;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

const SHAPE: GemmShape = GemmShape {
    m: 512,
    n: 64,
    k: 64,
};
const DEADLINE: Duration = Duration::from_millis(100);
const LIMIT: Duration = Duration::from_secs(300);

/// The action while the thread is stopped. The thread resumes when the returned guard is dropped, after A is freed.
type Then = dyn for<'a> Fn(&Rank, MutexGuard<'a, ()>) -> Option<MutexGuard<'a, ()>> + Sync;

struct Rank {
    ranks: Communicator,
    operator: Operator,
    stream: Arc<CudaStream>,
    a: CudaSlice<bf16>,
    b: CudaSlice<bf16>,
    c: CudaSlice<bf16>,
}

impl Rank {
    fn new(ranks: Communicator) -> Self {
        let config = GemmConfig {
            m: Dim::Static(SHAPE.m),
            n: Dim::Static(SHAPE.n),
            k: Dim::Static(SHAPE.k),
            b_layout: BLayout::Nk,
            tuning: Tuning {
                transfer: Some(Transfer::CopyEngine),
                ..Tuning::default()
            },
            ..GemmConfig::new(GemmOp::AgGemm)
        };
        let config = KernelConfig::new(ranks.world(), config);
        let operator = ranks.prepare(&config, SHAPE).expect("prepared");
        let stream = ranks.context().new_stream().expect("a stream");
        let zeros = |elems: u64| stream.alloc_zeros(elems as usize).expect("allocated");
        let rows = SHAPE.m / u64::from(ranks.world());
        Self {
            a: zeros(rows * SHAPE.k),
            b: zeros(SHAPE.n * SHAPE.k),
            c: zeros(SHAPE.m * SHAPE.n),
            operator,
            stream,
            ranks,
        }
    }

    fn launch(&mut self) {
        let operands = (&self.a, &self.b, &mut self.c);
        let launched = self
            .operator
            .launch(&self.stream, operands.0, operands.1, operands.2);
        launched.expect("launched");
    }

    fn is_stopped(&mut self, place: usize, then: &Then) {
        let job = self.operator.parts().health.job.clone().expect("copies");
        let pause = job.pauses[place].lock().expect("no panic");
        self.launch();
        let pause = then(self, pause);
        // When the kernel has ended, all memory that a copy would still read is freed.
        self.stream.synchronize().expect("it ended");
        let epoch = self.page().doorbell();
        let b = self.b.clone();
        drop(std::mem::replace(&mut self.a, b));
        self.stream.synchronize().expect("freed");
        drop(pause);
        self.wait_until(|| self.page().answered() == epoch);
        assert!(job.failure().is_none(), "{:?}", job.failure());
        assert_eq!(self.ranks.findings(), []);
    }

    fn page(&self) -> &Page {
        &self.operator.parts().health.page
    }

    /// Polls the stream until `is_so` returns true.
    fn wait_until(&self, is_so: impl Fn() -> bool) {
        let started = Instant::now();
        while !is_so() {
            assert!(started.elapsed() < LIMIT, "it never came");
            self.is_done();
        }
    }

    fn is_done(&self) -> bool {
        // SAFETY: the stream is alive.
        unsafe { driver::is_done(self.stream.cu_stream()) }.expect("it works")
    }
}

/// Makes two calls. Rank 2 leaves out the second call, and the copy thread of rank 0 is stopped at `place` until `then` resumes
/// the thread or A is freed.
fn stopped(place: usize, then: &Then) {
    let simulation = Simulation {
        ranks: 4,
        ..Simulation::default()
    };
    let ranks = Communicator::simulated(&simulation).expect("simulated GPUs");
    in_threads(ranks, |ranks| {
        let mut rank = Rank::new(ranks);
        rank.launch();
        rank.ranks.synchronize(&rank.stream).expect("well");
        rank.ranks.set_timeout(DEADLINE);
        rank.ranks.barrier().expect("all came");
        match rank.ranks.rank() {
            0 => rank.is_stopped(place, then),
            2 => {}
            _ => {
                rank.launch();
                let error = rank.ranks.synchronize(&rank.stream);
                assert!(matches!(error, Err(Error::Timeout { .. })), "{error:?}");
            }
        }
        rank.ranks.barrier().expect("all came to the end");
    });
}

#[test]
fn copies_that_are_not_begun_are_withdrawn() {
    stopped(0, &|rank, pause| {
        // The kernel does not wait for a copy thread that has not claimed the kernel's copies.
        rank.wait_until(|| rank.is_done());
        assert!(rank.page().is_withdrawn());
        Some(pause)
    });
}

#[test]
fn copies_that_are_begun_are_waited_for() {
    stopped(1, &|rank, pause| {
        rank.wait_until(|| rank.page().is_withdrawn());
        for _ in 0..30 {
            assert!(!rank.is_done(), "the kernel ended before its copies");
        }
        drop(pause);
        None
    });
}

/// Prepares an operator of one rank.
fn prepare_alone(ranks: &Communicator) -> Operator {
    prepare_named(ranks, None)
}

fn prepare_named(ranks: &Communicator, name: Option<&str>) -> Operator {
    let config = GemmConfig {
        m: Dim::Static(SHAPE.m),
        n: Dim::Static(SHAPE.n),
        k: Dim::Static(SHAPE.k),
        ..GemmConfig::new(GemmOp::AgGemm)
    };
    let config = KernelConfig {
        name: name.map(str::to_owned),
        ..KernelConfig::new(1, config)
    };
    ranks.prepare(&config, SHAPE).expect("prepared")
}

#[test]
fn equal_operators_share_a_core_and_launch_by_themselves() {
    let ranks = Communicator::simulated(&Simulation {
        ranks: 1,
        ..Simulation::default()
    });
    let ranks = ranks.expect("a simulated GPU").remove(0);
    let [one, two] = [(); 2].map(|()| prepare_alone(&ranks));
    assert!(Arc::ptr_eq(one.core(), two.core()));
    // SAFETY: nothing is launched.
    unsafe { one.overlap_calls(true) };
    assert_eq!(one.launches.state().mode, LaunchMode::Overlapping);
    assert_eq!(two.launches.state().mode, LaunchMode::Cooperative);
    let number = one.core().number();
    drop((one, two));
    assert_ne!(prepare_alone(&ranks).core().number(), number);
}

#[test]
fn operators_that_differ_only_in_name_share_a_core() {
    let ranks = Communicator::simulated(&Simulation {
        ranks: 1,
        ..Simulation::default()
    });
    let ranks = ranks.expect("a simulated GPU").remove(0);
    let [one, two, three] =
        [None, Some("up"), Some("down")].map(|name| prepare_named(&ranks, name));
    assert!(Arc::ptr_eq(one.core(), two.core()) && Arc::ptr_eq(one.core(), three.core()));
    assert_eq!(ranks.stats().heap.workspaces, 1);
}

/// On GPUs, the calls of all ranks are read from their workspaces. The simulator counts the calls itself.
#[test]
fn the_calls_of_ranks_are_in_their_workspaces() {
    let simulation = Simulation {
        ranks: 4,
        ..Simulation::default()
    };
    let ranks = Communicator::simulated(&simulation).expect("simulated GPUs");
    in_threads(ranks, |ranks| {
        let mut rank = Rank::new(ranks);
        for calls in 1..=3 {
            rank.launch();
            rank.ranks.synchronize(&rank.stream).expect("well");
            rank.ranks.barrier().expect("all came");
            let parts = rank.operator.parts();
            let mapped = BegunCalls::Mapped {
                reader: parts.shared.reader().expect("a reader"),
                workspace: parts.workspace.clone(),
                gate: parts.gate.clone(),
                operator: parts.health.operator.number(),
                first_rank: 0,
            };
            let simulated = parts.health.calls.as_ref().expect("counted");
            let expected: Vec<_> = (0..4).map(|rank| (rank, calls)).collect();
            assert_eq!(mapped.read().expect("read"), expected);
            assert_eq!(simulated.read().expect("counted"), expected);
            rank.ranks.barrier().expect("all have read");
        }
    });
}
