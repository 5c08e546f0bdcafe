//! Ranks on simulated GPUs. The operands are chosen so that each element of C identifies the shard that it was computed from.

#![allow(dead_code, reason = "each test program uses a part")]

use mkernel::Operand;
use mkernel::cudarc::driver::{CudaSlice, CudaStream};
use mkernel::half::bf16;
use mkernel::testing::in_threads;
use mkernel::{
    Communicator, Error, KernelConfig, Operator, Simulation,
    spec::{BLayout, Dim, GemmConfig, GemmOp, GemmShape, Transfer, Tuning},
};
use std::sync::Arc;

/// The shape of the operators.
pub const SHAPE: GemmShape = GemmShape {
    m: 512,
    n: 64,
    k: 64,
};

/// Runs `body` on each rank of a simulated job, once for each mode of transfer. All ranks wait for each other at the end.
pub fn on_ranks(ranks: u32, body: impl Fn(&Rank) + Sync) {
    with_ranks(ranks, |rank| {
        body(&rank);
        rank.ranks.barrier().expect("all ranks reach the end");
    });
}

/// Runs `body` on each rank of a simulated job, once for each mode of transfer. `body` owns the rank, and calls a barrier
/// itself if it needs one.
pub fn with_ranks(ranks: u32, body: impl Fn(Rank) + Sync) {
    for (seed, transfer) in [(1, Transfer::SmPush), (2, Transfer::CopyEngine)] {
        let simulation = Simulation {
            ranks,
            seed,
            ..Simulation::default()
        };
        let communicators = Communicator::simulated(&simulation).expect("simulated GPUs");
        in_threads(communicators, |ranks| body(Rank::new(ranks, transfer)));
    }
}

/// Returns the configuration of the operator with the given mode of transfer.
pub fn config(transfer: Option<Transfer>) -> GemmConfig {
    staged(transfer, None)
}

/// Returns the configuration of an operator with the given number of stages.
fn staged(transfer: Option<Transfer>, stages: Option<u32>) -> GemmConfig {
    GemmConfig {
        m: Dim::Static(SHAPE.m),
        n: Dim::Static(SHAPE.n),
        k: Dim::Static(SHAPE.k),
        b_layout: BLayout::Nk,
        tuning: Tuning {
            transfer,
            stages,
            ..Tuning::default()
        },
        ..GemmConfig::new(GemmOp::AgGemm)
    }
}

fn prepare(ranks: &Communicator, config: GemmConfig) -> Operator {
    let config = KernelConfig::new(ranks.world(), config);
    ranks.prepare(&config, SHAPE).expect("prepared")
}

/// A rank with a prepared operator and its operands.
pub struct Rank {
    pub operator: Operator,
    pub stream: Arc<CudaStream>,
    pub a: CudaSlice<bf16>,
    pub b: CudaSlice<bf16>,
    pub ranks: Communicator,
    pub transfer: Option<Transfer>,
}

impl Rank {
    /// Creates a rank whose slices do not track events.
    pub fn new(ranks: Communicator, transfer: impl Into<Option<Transfer>>) -> Self {
        // SAFETY: these tests order their streams themselves.
        unsafe { ranks.context().disable_event_tracking() };
        Self::with_events(ranks, transfer.into())
    }

    /// Creates a rank whose slices track events.
    pub fn with_events(ranks: Communicator, transfer: Option<Transfer>) -> Self {
        let operator = prepare(&ranks, config(transfer));
        let stream = ranks.context().new_stream().expect("a stream");
        let rows = SHAPE.m / u64::from(ranks.world());
        let upload = |elems: u64, value| {
            let values = vec![bf16::from_f32(value); elems as usize];
            stream.clone_htod(&values).expect("uploaded")
        };
        Self {
            a: upload(rows * SHAPE.k, 1.0 + ranks.rank() as f32),
            b: upload(SHAPE.n * SHAPE.k, 0.5),
            operator,
            stream,
            ranks,
            transfer,
        }
    }

    /// Prepares another operator of this kind. Operators with equal numbers of stages are equal.
    pub fn another(&self, stages: u32) -> Operator {
        prepare(&self.ranks, staged(self.transfer, Some(stages)))
    }

    /// Returns a C that is filled with NaN.
    pub fn poisoned(&self) -> CudaSlice<bf16> {
        let poison = vec![bf16::NAN; (SHAPE.m * SHAPE.n) as usize];
        self.stream.clone_htod(&poison).expect("uploaded")
    }

    pub fn launch(&self, c: &mut CudaSlice<bf16>) -> Result<(), Error> {
        self.operator.launch(&self.stream, &self.a, &self.b, c)
    }

    /// Adds a call to the graph that is being captured.
    pub fn capture(&self, stream: &Arc<CudaStream>, c: &mut CudaSlice<bf16>) -> Result<(), Error> {
        self.capture_of(&self.operator, stream, c)
    }

    /// Adds a call of another operator to the graph that is being captured.
    pub fn capture_of(
        &self,
        operator: &Operator,
        stream: &Arc<CudaStream>,
        c: &mut CudaSlice<bf16>,
    ) -> Result<(), Error> {
        let call = operator.call(stream);
        let call = call.read(Operand::A, &self.a).read(Operand::B, &self.b);
        // SAFETY: these tests keep operands alive until their graphs are destroyed, and order their streams.
        unsafe { call.write(Operand::C, c).capture() }
    }

    /// Checks C. All elements of a row equal the number of the shard that the row was computed from.
    pub fn check(&self, c: &CudaSlice<bf16>) {
        check(&self.ranks, &self.stream, c);
    }
}

/// Checks C as [`Rank::check`] does, for a rank whose parts were moved out.
pub fn check(ranks: &Communicator, stream: &Arc<CudaStream>, c: &CudaSlice<bf16>) {
    ranks.synchronize(stream).expect("the calls succeed");
    let c = stream.clone_dtoh(c).expect("downloaded");
    let rows = SHAPE.m / u64::from(ranks.world());
    for (i, value) in (0..).zip(&c) {
        let source = i / SHAPE.n / rows;
        let expected = (1 + source) as f32 * 0.5 * SHAPE.k as f32;
        assert_eq!(value.to_f32(), expected, "element {i}");
    }
}

/// Returns the only rank of a job.
pub fn alone() -> Rank {
    let simulation = Simulation {
        ranks: 1,
        ..Simulation::default()
    };
    let ranks = Communicator::simulated(&simulation).expect("a simulated GPU");
    Rank::new(ranks.into_iter().next().expect("a rank"), None)
}
