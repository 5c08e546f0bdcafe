//! Tests of calls that are captured into graphs, calls on several streams, and operators that are dropped early, on
//! simulated GPUs.

#![cfg(feature = "simulator")]

mod rank;

use mkernel::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use mkernel::cudarc::driver::{CudaGraph, CudaSlice, CudaStream, result};
use mkernel::half::bf16;
use mkernel::{Communicator, Error, Simulation, error::CallError};
use rank::{Rank, SHAPE, check, on_ranks, with_ranks};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LOCAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
/// The time within which a drop that waits for nothing ends, also on a busy machine.
const PROMPT: Duration = Duration::from_secs(120);

fn begin(stream: &CudaStream, mode: CUstreamCaptureMode) {
    stream.begin_capture(mode).expect("capturing");
}

fn end(stream: &Arc<CudaStream>) -> CudaGraph {
    let graph = stream.end_capture(CUgraphInstantiate_flags(0));
    graph.expect("captured").expect("a graph")
}

fn poison(stream: &Arc<CudaStream>, c: &mut CudaSlice<bf16>) {
    let poison = vec![bf16::NAN; (SHAPE.m * SHAPE.n) as usize];
    stream.memcpy_htod(&poison, c).expect("poisoned");
}

fn workspaces(ranks: &Communicator) -> usize {
    ranks.stats().heap.workspaces
}

/// Waits until the number of workspaces has dropped to `before`. The next prepared operator frees dropped workspaces once the
/// reapers of all ranks have released them. So all ranks find an equal number after each such step.
fn expect_freed(rank: &Rank, before: usize) {
    let started = Instant::now();
    loop {
        let another = rank.another(4);
        if workspaces(&rank.ranks) == before + 1 {
            return;
        }
        drop(another);
        assert!(started.elapsed() < PROMPT, "workspaces are not freed");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn calls_are_replayed() {
    on_ranks(2, |rank| {
        let mut c = rank.poisoned();
        rank.stream.synchronize().expect("uploaded");
        begin(&rank.stream, LOCAL);
        rank.capture(&rank.stream, &mut c).expect("captured");
        let graph = end(&rank.stream);
        for _ in 0..3 {
            poison(&rank.stream, &mut c);
            graph.launch().expect("replayed");
            rank.check(&c);
        }
        let mut eager = rank.poisoned();
        rank.launch(&mut eager).expect("launched");
        rank.check(&eager);
        // No rank may leave before its peers have ended.
        rank.ranks.barrier().expect("all ranks take part");
    });
}

#[test]
fn a_graph_keeps_its_operator() {
    with_ranks(2, |rank| {
        let mut c = rank.poisoned();
        rank.ranks.synchronize(&rank.stream).expect("uploaded");
        let with_one = workspaces(&rank.ranks);
        let operator = rank.another(2);
        assert_eq!(workspaces(&rank.ranks), with_one + 1);
        begin(&rank.stream, LOCAL);
        for _ in 0..2 {
            let captured = rank.capture_of(&operator, &rank.stream, &mut c);
            captured.expect("captured");
        }
        let graph = end(&rank.stream);
        drop(operator);
        for _ in 0..2 {
            poison(&rank.stream, &mut c);
            graph.launch().expect("replayed");
            rank.check(&c);
        }
        // The graph keeps an equal operator.
        let equal = rank.another(2);
        assert_eq!(workspaces(&rank.ranks), with_one + 1);
        let third = rank.another(3);
        assert_eq!(workspaces(&rank.ranks), with_one + 2);
        drop((equal, third));
        graph.launch().expect("replayed");
        drop(graph);
        rank.check(&c);
        rank.ranks
            .barrier()
            .expect("no peer's graph is left, either");
        expect_freed(&rank, with_one);
        assert_eq!(rank.ranks.findings(), []);
        rank.ranks.barrier().expect("all ranks take part");
    });
}

#[test]
fn an_operator_is_dropped_while_another_stream_is_captured() {
    with_ranks(2, |rank| {
        let mut c = rank.poisoned();
        rank.ranks.synchronize(&rank.stream).expect("uploaded");
        let other = rank.ranks.context().new_stream().expect("a stream");
        if rank.ranks.rank() == 1 {
            // The kernel of rank 0, whose operator was dropped, waits meanwhile.
            std::thread::sleep(Duration::from_millis(200));
        }
        rank.launch(&mut c).expect("launched");
        let Rank {
            operator,
            stream,
            ranks,
            a: _a,
            b: _b,
            ..
        } = rank;
        begin(&other, GLOBAL);
        drop(operator);
        drop(end(&other));
        check(&ranks, &stream, &c);
        assert_eq!(ranks.findings(), []);
        ranks.barrier().expect("all ranks take part");
    });
}

#[test]
fn an_operator_is_dropped_while_its_own_stream_is_captured() {
    with_ranks(2, |rank| {
        let mut c = rank.poisoned();
        rank.ranks.synchronize(&rank.stream).expect("uploaded");
        let with_one = workspaces(&rank.ranks);
        let operator = rank.another(2);
        let (stream, ranks) = (&rank.stream, &rank.ranks);
        if ranks.rank() == 1 {
            std::thread::sleep(Duration::from_millis(200));
        }
        let launched = operator.launch(stream, &rank.a, &rank.b, &mut c);
        launched.expect("launched");
        begin(stream, GLOBAL);
        let started = Instant::now();
        drop(operator);
        assert!(started.elapsed() < PROMPT);
        drop(end(stream));
        rank.check(&c);
        ranks.barrier().expect("no peer needs its memory any more");
        expect_freed(&rank, with_one);
        assert_eq!(ranks.findings(), []);
        ranks.barrier().expect("all ranks take part");
    });
}

#[test]
fn dropping_an_operator_waits_for_no_other() {
    with_ranks(2, |rank| {
        let mut c = [rank.poisoned(), rank.poisoned()];
        rank.ranks.synchronize(&rank.stream).expect("uploaded");
        let other = rank.ranks.context().new_stream().expect("a stream");
        let behind = rank.another(2);
        let [first, second] = &mut c;
        rank.launch(first).expect("launched");
        let launch = |c| behind.launch(&other, &rank.a, &rank.b, c);
        if rank.ranks.rank() == 0 {
            launch(second).expect("launched");
        }
        // On rank 0, the kernel of the other operator cannot end before rank 1 reaches this point.
        let Rank {
            operator,
            stream,
            ranks,
            a,
            b,
            ..
        } = rank;
        drop(operator);
        ranks.barrier().expect("rank 0 does not wait");
        if ranks.rank() == 1 {
            let launched = behind.launch(&other, &a, &b, &mut c[1]);
            launched.expect("launched");
        }
        check(&ranks, &other, &c[1]);
        check(&ranks, &stream, &c[0]);
        assert_eq!(ranks.findings(), []);
        ranks.barrier().expect("all ranks take part");
    });
}

#[test]
fn branches_of_a_capture_take_turns() {
    on_ranks(2, |rank| {
        let ranks = &rank.ranks;
        let operators = [&rank.operator, &rank.another(2)];
        let mut c: Vec<_> = (0..4).map(|_| rank.poisoned()).collect();
        ranks.synchronize(&rank.stream).expect("uploaded");
        let branches: Vec<_> = (0..2)
            .map(|_| ranks.context().new_stream().expect("a stream"))
            .collect();
        begin(&rank.stream, LOCAL);
        for branch in &branches {
            branch.join(&rank.stream).expect("forked");
        }
        // Both operators are launched in both branches, in the same order on all ranks.
        for (i, c) in c.iter_mut().enumerate() {
            let captured = rank.capture_of(operators[i / 2], &branches[i % 2], c);
            captured.expect("captured");
        }
        for branch in &branches {
            rank.stream.join(branch).expect("joined");
        }
        let graph = end(&rank.stream);
        for _ in 0..3 {
            c.iter_mut().for_each(|c| poison(&rank.stream, c));
            graph.launch().expect("replayed");
            c.iter().for_each(|c| rank.check(c));
        }
        assert_eq!(ranks.findings(), []);
        ranks.barrier().expect("all ranks take part");
    });
}

#[test]
fn calls_on_several_streams_take_turns() {
    on_ranks(2, |rank| {
        let ranks = &rank.ranks;
        let mut c: Vec<_> = (0..6).map(|_| rank.poisoned()).collect();
        let mut captured = rank.poisoned();
        ranks.synchronize(&rank.stream).expect("uploaded");
        for (i, c) in c.iter_mut().enumerate() {
            let stream = ranks.context().new_stream().expect("a stream");
            if i == 3 {
                // No event can be recorded in this stream while it is being captured.
                begin(&rank.stream, LOCAL);
                rank.capture(&rank.stream, &mut captured).expect("captured");
                drop(end(&rank.stream));
            }
            let on = [&rank.stream, &stream][i % 2];
            let launched = rank.operator.launch(on, &rank.a, &rank.b, c);
            launched.expect("launched");
            // The stream is destroyed while its kernel is running.
        }
        ranks.context().synchronize().expect("done");
        c.iter().for_each(|c| rank.check(c));
        assert_eq!(ranks.findings(), []);
    });
}

/// Returns the only rank of a job, with slices that track events.
fn alone() -> Rank {
    let simulation = Simulation {
        ranks: 1,
        ..Simulation::default()
    };
    let ranks = Communicator::simulated(&simulation).expect("a simulated GPU");
    Rank::with_events(ranks.into_iter().next().expect("a rank"), None)
}

#[test]
fn slices_that_track_events_are_captured() {
    let rank = alone();
    let other = rank.ranks.context().new_stream().expect("a stream");
    let mut c = rank.poisoned();
    // In a graph of this stream, a node would have to wait for events of the other stream.
    begin(&other, GLOBAL);
    let refused = rank.operator.launch(&other, &rank.a, &rank.b, &mut c);
    let error = refused.expect_err("nothing keeps the operands");
    assert!(
        matches!(error, Error::Call(CallError::StreamCaptured)),
        "{error}"
    );
    assert!(error.to_string().contains("Call::capture"), "{error}");
    rank.capture(&other, &mut c).expect("captured");
    drop(end(&other));

    begin(&other, GLOBAL);
    rank.capture(&other, &mut c).expect("captured");
    let waits = [
        rank.ranks.synchronize(&other),
        rank.ranks.completion(&other).map(drop),
    ];
    for wait in waits {
        let refused = matches!(wait, Err(Error::Call(CallError::WaitInCapture)));
        assert!(refused, "{wait:?}");
    }
    let graph = end(&other);
    rank.stream.synchronize().expect("uploaded");
    for _ in 0..2 {
        graph.launch().expect("replayed");
        other.synchronize().expect("done");
        rank.check(&c);
        poison(&rank.stream, &mut c);
        rank.stream.synchronize().expect("poisoned");
    }
    let not = rank.capture(&other, &mut c);
    assert!(
        matches!(not, Err(Error::Call(CallError::StreamNotCaptured))),
        "{not:?}"
    );
    assert_eq!(rank.ranks.findings(), []);
}

#[test]
fn work_of_cudarc_is_captured_beside_calls() {
    let rank = alone();
    let stream = &rank.stream;
    let context = rank.ranks.context();
    let mut c = rank.poisoned();
    let mut copy = rank.poisoned();
    stream.synchronize().expect("uploaded");

    let default = context.default_stream();
    // SAFETY: the slices outlive the graphs, and the streams are synchronized.
    let refused = unsafe { rank.ranks.capture(&default, || Ok::<(), Error>(())) };
    let error = refused.err().expect("a default stream");
    assert!(error.to_string().contains("new_stream"), "{error}");

    let other = context.new_stream().expect("a stream");
    let mut step = || {
        assert!(!context.is_event_tracking());
        other.memset_zeros(&mut copy)?;
        rank.capture(&other, &mut c)?;
        other.memcpy_dtod(&c, &mut copy)?;
        Ok::<(), Box<dyn std::error::Error>>(())
    };
    // SAFETY: as above.
    let graph = unsafe { rank.ranks.capture(&other, &mut step) }.expect("captured");
    // SAFETY: as above.
    let failed = unsafe {
        rank.ranks
            .capture(&other, || step().and(Err("a reason".into())))
    };
    assert_eq!(failed.err().expect("an error").to_string(), "a reason");
    let panicked = std::panic::AssertUnwindSafe(|| {
        // SAFETY: as above.
        let _ = unsafe {
            rank.ranks
                .capture(&other, || -> Result<(), Error> { panic!() })
        };
    });
    std::panic::catch_unwind(panicked).expect_err("a panic");
    assert!(context.is_event_tracking());
    for _ in 0..2 {
        graph.launch().expect("replayed");
        other.synchronize().expect("done");
        rank.check(&copy);
        poison(stream, &mut copy);
        stream.synchronize().expect("poisoned");
    }
    assert_eq!(rank.ranks.findings(), []);
}

#[test]
fn captured_calls_wait_for_work_captured_before() {
    let rank = alone();
    let other = rank.ranks.context().new_stream().expect("a stream");
    let elems = (SHAPE.m * SHAPE.n) as usize;
    // SAFETY: a context is current.
    let address = unsafe { result::malloc_sync(elems * 2) }.expect("allocated");
    // SAFETY: the memory has this many elements. The events of the slice were never recorded.
    let mut c = unsafe { other.upgrade_device_ptr::<bf16>(address, elems) };
    begin(&other, GLOBAL);
    other.memset_zeros(&mut c).expect("captured");
    rank.capture(&other, &mut c).expect("captured");
    let graph = end(&other);
    rank.stream.synchronize().expect("uploaded");
    graph.launch().expect("replayed");
    other.synchronize().expect("done");
    let mut values = vec![bf16::NAN; elems];
    // SAFETY: the slice has this many elements, and nothing else uses them now.
    unsafe { result::memcpy_dtoh_sync(&mut values, address) }.expect("downloaded");
    let expected = 0.5 * SHAPE.k as f32;
    assert!(values.iter().all(|value| value.to_f32() == expected));
    // The events of the slice belong to the capture permanently, so cudarc cannot wait for them.
    std::mem::forget(c);
}
