//! Tests of operators that are dropped early, of captured streams with branches, and of operands that are freed right after
//! a kernel.

use crate::ranks::{Operands, compute, expect_right, launch, on_ranks, prepare, seed, worlds};
use mkernel::Operand;
use mkernel::cudarc::driver::CudaStream;
use mkernel::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use mkernel::half::bf16;
use mkernel::{
    Communicator, Error,
    error::CallError,
    spec::{BLayout, GemmShape, Transfer, Tuning},
};
use mkernel_testing::lab::{Failure, Lab, Random, TimeLimit};
use std::sync::Arc;
use std::time::{Duration, Instant};

const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const LOCAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const SHAPE: GemmShape = GemmShape {
    m: 2048,
    n: 264,
    k: 520,
};
/// A shape that gives operators a workspace of 64 MiB.
const LARGE: GemmShape = GemmShape {
    m: 4096,
    n: 256,
    k: 4096,
};
const WORKSPACE_BYTES: usize = 64 << 20;

fn with(transfer: Option<Transfer>) -> Tuning {
    Tuning {
        transfer,
        ..Tuning::default()
    }
}

/// Runs `body` on every rank of every world of at least `least` ranks, with each transfer.
fn run(
    least: u32,
    body: impl Fn(&Communicator, Option<Transfer>, u64) -> Result<(), Failure> + Sync,
) {
    let _limit = TimeLimit::start("launches", Duration::from_secs(120));
    let seed = seed();
    for world in worlds(least) {
        // One rank transfers nothing.
        let transfers: &[Option<Transfer>] = match world {
            1 => &[None],
            _ => &[Some(Transfer::SmPush), Some(Transfer::CopyEngine)],
        };
        for &transfer in transfers {
            on_ranks(world, |ranks| {
                body(ranks, transfer, seed)?;
                Ok(ranks.barrier()?)
            });
        }
    }
}

#[test]
#[ignore = "needs GPUs"]
fn a_graph_keeps_its_operator() {
    run(1, |ranks, transfer, seed| {
        let lab = Lab::new(&ranks.context().new_stream()?)?;
        let (operator, operands) = prepare(ranks, &lab, (LARGE, BLayout::Nk, with(transfer)), 0)?;
        let mut seeds = Random(seed);
        operands.fill_b(&lab, seeds.draw(), ranks.rank())?;
        let verdicts = lab.verdicts(4)?;
        lab.stream.synchronize()?;
        lab.stream.begin_capture(LOCAL)?;
        launch(&operator, &lab.stream, &operands.raw())?;
        let graph = lab.stream.end_capture(CUgraphInstantiate_flags(0))?;
        let graph = graph.ok_or("nothing was captured")?;
        drop(operator);
        for replay in 0..4 {
            operands.fill_a(&lab, seeds.draw())?;
            lab.poison(&operands.c)?;
            graph.launch()?;
            operands.check(&lab, &verdicts, replay)?;
        }
        expect_right(ranks, &lab, &verdicts)?;
        ranks.barrier()?;
        if ranks.world() == 1 {
            // The workspace of one rank is too small for this check.
            return Ok(());
        }
        drop(graph);
        let started = Instant::now();
        loop {
            // When an operator is prepared, the heap takes back memory that all ranks have dropped.
            let config = crate::ranks::config((ranks.world(), 8), BLayout::Nk, Tuning::default());
            drop(ranks.prepare(&config, GemmShape { m: 8, n: 8, k: 8 })?);
            let used_bytes = ranks.stats().heap.used_bytes;
            let is_freed = used_bytes < WORKSPACE_BYTES as u64 / 2;
            let is_over = is_freed || started.elapsed() > Duration::from_secs(20);
            // All ranks prepare equally often.
            let all = ranks.all_gather(&[u8::from(is_over)])?;
            if all.iter().any(|is_over| *is_over == [1]) {
                return match is_freed {
                    true => Ok(()),
                    false => Err(format!("{used_bytes} bytes of the heap are still used").into()),
                };
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}

#[test]
#[ignore = "needs GPUs"]
fn operators_are_dropped_while_streams_are_captured() {
    run(1, |ranks, transfer, seed| {
        let lab = Lab::new(&ranks.context().new_stream()?)?;
        let other = ranks.context().new_stream()?;
        // The captured stream is the operator's stream or another one.
        for captured in [&lab.stream, &other] {
            let problem = (SHAPE, BLayout::Nk, with(transfer));
            let (operator, operands) = prepare(ranks, &lab, problem, 0)?;
            operands.fill_b(&lab, seed, ranks.rank())?;
            operands.fill_a(&lab, seed + 1)?;
            let verdicts = lab.verdicts(1)?;
            lab.stream.synchronize()?;
            launch(&operator, &lab.stream, &operands.raw())?;
            // A global capture forbids other threads many calls, such as the creation of a graph. So the ranks take
            // turns.
            let mut operator = Some(operator);
            for turn in 0..ranks.world() {
                ranks.barrier()?;
                if turn == ranks.rank() {
                    captured.begin_capture(GLOBAL)?;
                    drop(operator.take());
                    drop(captured.end_capture(CUgraphInstantiate_flags(0))?);
                }
            }
            ranks.barrier()?;
            operands.check(&lab, &verdicts, 0)?;
            expect_right(ranks, &lab, &verdicts)?;
        }
        Ok(())
    });
}

#[test]
#[ignore = "needs GPUs"]
fn branches_of_a_capture_take_turns() {
    run(1, |ranks, transfer, seed| {
        let lab = Lab::new(&ranks.context().new_stream()?)?;
        let problem = (SHAPE, BLayout::Nk, with(transfer));
        let (operator, one) = prepare(ranks, &lab, problem, 0)?;
        let two = Operands::new(ranks, &lab, problem.into(), 8)?;
        let branches = [ranks.context().new_stream()?, ranks.context().new_stream()?];
        let operands = [&one, &two];
        let mut seeds = Random(seed);
        for operands in operands {
            operands.fill_b(&lab, seeds.draw(), ranks.rank())?;
        }
        lab.stream.synchronize()?;
        lab.stream.begin_capture(LOCAL)?;
        for (branch, operands) in branches.iter().zip(operands) {
            branch.join(&lab.stream)?;
            launch(&operator, branch, &operands.raw())?;
        }
        for branch in &branches {
            lab.stream.join(branch)?;
        }
        let graph = lab.stream.end_capture(CUgraphInstantiate_flags(0))?;
        let graph = graph.ok_or("nothing was captured")?;
        let verdicts = lab.verdicts(40)?;
        for replay in 0..20 {
            for operands in operands {
                operands.fill_a(&lab, seeds.draw())?;
                lab.poison(&operands.c)?;
            }
            graph.launch()?;
            for (i, operands) in operands.into_iter().enumerate() {
                operands.check(&lab, &verdicts, 2 * replay + i)?;
            }
        }
        expect_right(ranks, &lab, &verdicts)?;
        Ok(())
    });
}

#[test]
#[ignore = "needs GPUs"]
fn two_communicators_on_a_gpu_take_turns() {
    let _limit = TimeLimit::start("two communicators", Duration::from_secs(120));
    let seed = seed();
    on_ranks(1, |first| {
        let mut second = Communicator::local(&[0])?;
        let ranks = [first, &second.remove(0)];
        let mut all = Vec::new();
        for ranks in ranks {
            let lab = Lab::new(&ranks.context().new_stream()?)?;
            let problem = (SHAPE, BLayout::Nk, Tuning::default());
            let (operator, operands) = prepare(ranks, &lab, problem, 0)?;
            operands.fill_b(&lab, seed, 0)?;
            let verdicts = lab.verdicts(20)?;
            lab.stream.synchronize()?;
            all.push((lab, operator, operands, verdicts));
        }
        for call in 0..20 {
            for (lab, operator, operands, verdicts) in &all {
                operands.fill_a(lab, seed + call as u64)?;
                operands.call(lab, operator, verdicts, call)?;
            }
        }
        for (ranks, (lab, _, _, verdicts)) in ranks.into_iter().zip(&all) {
            expect_right(ranks, lab, verdicts)?;
        }
        Ok(())
    });
}

#[test]
#[ignore = "needs GPUs"]
fn slices_that_track_events_are_captured() {
    run(1, |ranks, transfer, _| {
        let config = crate::ranks::config((ranks.world(), SHAPE.m), BLayout::Nk, with(transfer));
        let operator = ranks.prepare(&config, SHAPE)?;
        let (stream, other) = (ranks.context().new_stream()?, ranks.context().new_stream()?);
        let ones = |elems: u64| other.clone_htod(&vec![bf16::ONE; elems as usize]);
        let rows = SHAPE.m / u64::from(ranks.world());
        let (a, b) = (ones(rows * SHAPE.k)?, ones(SHAPE.n * SHAPE.k)?);
        let mut c = ones(SHAPE.m * SHAPE.n)?;
        ranks.barrier()?;
        stream.begin_capture(LOCAL)?;
        let refused = operator.launch(&stream, &a, &b, &mut c);
        let call = operator.call(&stream).read(Operand::A, &a);
        let call = call.read(Operand::B, &b).write(Operand::C, &mut c);
        // SAFETY: the slices live until the graph's last replay is over, and nothing else uses them meanwhile.
        unsafe { call.capture() }?;
        let graph = stream.end_capture(CUgraphInstantiate_flags(0))?;
        let graph = graph.ok_or("nothing was captured")?;
        if !matches!(refused, Err(Error::Call(CallError::StreamCaptured))) {
            return Err(format!("{refused:?}").into());
        }
        other.synchronize()?;
        for _ in 0..3 {
            graph.launch()?;
        }
        ranks.synchronize(&stream)?;
        let expected = bf16::from_f32(SHAPE.k as f32);
        match other.clone_dtoh(&c)?.iter().all(|value| *value == expected) {
            true => Ok(()),
            false => Err("a wrong result".into()),
        }
    });
}

/// Calls are aborted after various times, and A is freed as soon as the kernel has ended. A copy that still reads A
/// would fault.
#[test]
#[ignore = "needs GPUs"]
fn operands_may_be_freed_when_an_aborted_kernel_has_ended() {
    let _limit = TimeLimit::start("aborted copies", Duration::from_secs(240));
    let seed = seed();
    for world in worlds(2) {
        for delay_us in [0, 50, 100, 200, 400, 1_000, 20_000] {
            on_ranks(world, |ranks| aborted(ranks, delay_us));
            // The context is still usable.
            on_ranks(world, |ranks| {
                let lab = Lab::new(&ranks.default_stream())?;
                let problem = (SHAPE, BLayout::Nk, with(Some(Transfer::CopyEngine)));
                let (operator, operands) = prepare(ranks, &lab, problem, 0)?;
                compute(ranks, &lab, &operator, &operands, (2, seed))?;
                Ok(ranks.barrier()?)
            });
        }
    }
}

fn aborted(ranks: &Communicator, delay_us: u64) -> Result<(), Failure> {
    let shape = GemmShape {
        m: 65536,
        n: 256,
        k: 4096,
    };
    let config = crate::ranks::config(
        (ranks.world(), shape.m),
        BLayout::Nk,
        with(Some(Transfer::CopyEngine)),
    );
    let operator = ranks.prepare(&config, shape)?;
    let stream: Arc<CudaStream> = ranks.context().new_stream()?;
    let zeros = |elems: u64| stream.alloc_zeros::<bf16>(elems as usize);
    let rows = shape.m / u64::from(ranks.world());
    let (a, b) = (zeros(rows * shape.k)?, zeros(shape.n * shape.k)?);
    let mut c = zeros(shape.m * shape.n)?;
    stream.synchronize()?;
    ranks.barrier()?;
    operator.launch(&stream, &a, &b, &mut c)?;
    if ranks.rank() == 0 {
        std::thread::sleep(Duration::from_micros(delay_us));
        ranks.abort();
    }
    stream.synchronize()?;
    drop(a);
    stream.synchronize()?;
    // Returns the memory to the system, so that any later access faults.
    let freed = ranks.context().mem_get_info();
    drop((operator, b, c));
    ranks.context().synchronize()?;
    freed?;
    Ok(ranks.barrier()?)
}
