//! The cost of a call on the host in addition to the driver's own work: a call allocates no memory for its operands.

#![cfg(feature = "simulator")]

use mkernel::cudarc::driver::{CudaSlice, CudaStream};
use mkernel::half::bf16;
use mkernel::operands::Addends;
use mkernel::{
    Communicator, KernelConfig, Operand, Operator, Simulation,
    spec::{Epilogue, GemmConfig, GemmOp, GemmShape, Norm},
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The rows that the operators are prepared for, and the columns of both factors.
const ROWS: u64 = 64;
const COLS: u64 = 64;
/// The number of measured calls. The calls before a [`Communicator::synchronize`] are few, so queues seldom grow.
const BATCHES: u32 = 4;
const BATCH: u32 = 8;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts the allocations of each thread.
struct Counting;

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // When a thread ends, its counter is gone before its last allocations.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The operands of one call.
struct Operands {
    a: CudaSlice<bf16>,
    b: CudaSlice<bf16>,
    c: CudaSlice<bf16>,
    residual: CudaSlice<bf16>,
    residual_out: CudaSlice<bf16>,
    vector: CudaSlice<bf16>,
}

impl Operands {
    fn new(stream: &Arc<CudaStream>) -> Self {
        let zeros = |elems: u64| stream.alloc_zeros(elems as usize).expect("allocated");
        Self {
            a: zeros(ROWS * COLS),
            b: zeros(COLS * COLS),
            c: zeros(ROWS * COLS),
            residual: zeros(ROWS * COLS),
            residual_out: zeros(ROWS * COLS),
            vector: zeros(COLS),
        }
    }
}

/// A call of an operator with three operands, and a call of an operator with seven operands.
type Launch = fn(&Operator, &Arc<CudaStream>, &mut Operands);

fn launch_three(operator: &Operator, stream: &Arc<CudaStream>, of: &mut Operands) {
    let launched = operator.launch_with(stream, &of.a, &of.b, &mut of.c, Addends::default());
    launched.expect("launched");
}

fn launch_seven(operator: &Operator, stream: &Arc<CudaStream>, of: &mut Operands) {
    let call = operator.call(stream).rows(ROWS - 1);
    let call = call.read(Operand::A, &of.a).read(Operand::B, &of.b);
    let call = call
        .write(Operand::C, &mut of.c)
        .read(Operand::Bias, &of.vector);
    let call = call.read(Operand::Residual, &of.residual);
    let call = call.read(Operand::Weight, &of.vector);
    let call = call.write(Operand::ResidualOut, &mut of.residual_out);
    call.launch().expect("launched");
}

/// Returns the fewest allocations and the shortest time of a call. The calls take the given operands in turn.
fn cost(
    (ranks, stream): (&Communicator, &Arc<CudaStream>),
    (operator, launch): (&Operator, Launch),
    in_turn: &mut [Operands],
) -> (u64, Duration) {
    let mut least = (u64::MAX, Duration::MAX);
    for call in 0..BATCHES * BATCH {
        let operands = &mut in_turn[call as usize % in_turn.len()];
        let before = ALLOCATIONS.get();
        let start = Instant::now();
        launch(operator, stream, operands);
        let took = start.elapsed();
        // The first calls fill buffers that later calls use again.
        if call >= BATCH {
            least = (least.0.min(ALLOCATIONS.get() - before), least.1.min(took));
        }
        if call % BATCH == BATCH - 1 {
            ranks.synchronize(stream).expect("the calls have ended");
        }
    }
    least
}

#[test]
fn a_call_allocates_nothing_for_its_operands() {
    let simulation = Simulation {
        ranks: 1,
        ..Simulation::default()
    };
    let ranks = Communicator::simulated(&simulation).expect("a simulated GPU");
    let ranks = &ranks[0];
    // SAFETY: this test uses one stream.
    unsafe { ranks.context().disable_event_tracking() };
    let stream = &ranks.context().new_stream().expect("a stream");
    let shape = GemmShape {
        m: ROWS,
        n: COLS,
        k: COLS,
    };
    let prepare = |config| {
        let prepared = ranks.prepare(&KernelConfig::new(1, config), shape);
        prepared.expect("prepared")
    };
    let three = prepare(GemmConfig::new(GemmOp::GemmAr));
    let seven = prepare(GemmConfig {
        epilogue: Epilogue {
            bias: true,
            residual: true,
            norm: Norm::Rms,
            ..Epilogue::default()
        },
        ..GemmConfig::new(GemmOp::GemmAr)
    });
    assert_eq!(
        (three.plan().operands().len(), seven.plan().operands().len()),
        (3, 7)
    );
    let mut in_turn = [Operands::new(stream), Operands::new(stream)];
    let mut costs = Vec::new();
    for (name, operator, launch) in [
        ("three", &three, launch_three as Launch),
        ("seven", &seven, launch_seven),
    ] {
        for sets in [1, 2] {
            let operands = &mut in_turn[..sets];
            let (allocations, time) = cost((ranks, stream), (operator, launch), operands);
            println!("{name} operands, {sets} sets in turn: {allocations} allocations, {time:?}");
            costs.push(allocations);
        }
    }
    assert!(costs.iter().all(|cost| *cost == costs[0]), "{costs:?}");
}
