//! Tests of tensors in the symmetric memory, on simulated GPUs.

use crate::spec::{CollectiveConfig, CollectiveOp, CollectiveShape, Dim};
use crate::testing::in_threads;
use crate::{
    Communicator, Error, ErrorKind, KernelConfig, Operand, Operator, Simulation, SymmetricSlice,
};
use cudarc::driver::CudaStream;
use half::bf16;
use std::sync::Arc;
use std::time::Duration;

const RANKS: u32 = 4;
const ROWS: u64 = 8;
const COLS: u64 = 64;

/// Calls `body` for each of four ranks, each on a thread.
fn on_ranks(seed: u64, body: impl Fn(Communicator) + Sync) {
    let simulation = Simulation {
        ranks: RANKS,
        seed,
        sms: 4,
        ..Simulation::default()
    };
    let all = Communicator::simulated(&simulation).expect("simulated GPUs");
    in_threads(all, body);
}

fn stream(ranks: &Communicator) -> Arc<CudaStream> {
    ranks.default_stream()
}

fn tensor(ranks: &Communicator, elems: usize) -> SymmetricSlice<f32> {
    let tensor = ranks.alloc(&stream(ranks), elems);
    tensor.unwrap_or_else(|error| panic!("rank {}: {error}", ranks.rank()))
}

fn all_reduce(ranks: &Communicator, nodes: u32) -> Operator {
    let config = CollectiveConfig {
        m: Dim::Static(ROWS),
        n: Dim::Static(COLS),
        ..CollectiveConfig::new(CollectiveOp::AllReduce)
    };
    let config = KernelConfig {
        nodes,
        ..KernelConfig::new(ranks.world(), config)
    };
    let shape = CollectiveShape { m: ROWS, n: COLS };
    ranks.prepare(&config, shape).expect("prepared")
}

/// Adds up tensors of `x`, whose elements are 1 more than the rank, and checks the sums in `y`.
fn add_up(
    (ranks, operator): (&Communicator, &Operator),
    x: &mut SymmetricSlice<bf16>,
    y: &mut SymmetricSlice<bf16>,
) {
    let stream = stream(ranks);
    let own = vec![bf16::from_f32(1.0 + ranks.rank() as f32); x.len()];
    stream.memcpy_htod(&own, x).expect("a copy");
    let call = operator.call(&stream).read(Operand::X, x);
    call.write(Operand::Y, y).launch().expect("enqueued");
    ranks.synchronize(&stream).expect("all take part");
    let sums = stream.clone_dtoh(y).expect("a copy");
    assert!(sums.iter().all(|sum| sum.to_f32() == 10.0), "{sums:?}");
    assert_eq!(ranks.findings(), []);
}

#[test]
fn tensors_are_operands_on_one_node_and_on_several() {
    for nodes in [1, 2] {
        on_ranks(u64::from(nodes), |ranks| {
            let operator = all_reduce(&ranks, nodes);
            let elems = (ROWS * COLS) as usize;
            let mut x = ranks.alloc(&stream(&ranks), elems).expect("allocated");
            // This tensor needs another extent, which must be added to existing fabrics.
            let large = ranks
                .alloc::<i32>(&stream(&ranks), 4 << 20)
                .expect("allocated");
            let mut y = ranks.alloc(&stream(&ranks), elems).expect("allocated");
            add_up((&ranks, &operator), &mut x, &mut y);
            let heap = ranks.stats().heap;
            assert_eq!((heap.workspaces, heap.tensors), (1, 3));
            let tensor_bytes = 2 * x.len() + 2 * y.len() + 4 * large.len();
            let bytes = operator.plan().workspace_bytes() + tensor_bytes as u64;
            assert_eq!(heap.used_bytes, bytes, "{heap}");
            assert!(heap.extents > 1, "{heap}");
        });
    }
}

#[test]
fn tensors_are_zero_also_in_reused_memory() {
    on_ranks(3, |ranks| {
        for round in 0..4 {
            let mut tensor = tensor(&ranks, 1000);
            let stream = stream(&ranks);
            let before = stream.clone_dtoh(&tensor).expect("a copy");
            assert!(before.iter().all(|elem| *elem == 0.0), "round {round}");
            stream
                .memcpy_htod(&[7.0; 1000], &mut tensor)
                .expect("a copy");
            let view = tensor.as_view();
            let part = stream.clone_dtoh(&view.slice(990..)).expect("a copy");
            assert_eq!(part, [7.0; 10]);
        }
    });
}

/// Each rank keeps tensors for another number of rounds. Space that all ranks have dropped is used again, so the heap grows
/// with the space in use at one time, not with the number of tensors.
#[test]
fn ranks_drop_tensors_at_different_times_and_the_heap_does_not_grow() {
    on_ranks(4, |ranks| {
        let mut kept = Vec::new();
        let mut extents = 0;
        for round in 0..60_usize {
            // The sizes range from 64 KiB to 1 MiB, so that free space has gaps.
            let elems = 1 << (14 + (round * 5 + 3) % 5);
            kept.push(tensor(&ranks, elems));
            let most = 2 + (ranks.rank() as usize + round) % 4;
            while kept.len() > most {
                kept.remove(round % kept.len());
            }
            if round == 20 {
                extents = ranks.stats().heap.extents;
            }
        }
        let heap = ranks.stats().heap;
        assert_eq!(heap.extents, extents, "{heap}");
        kept.clear();
        ranks.barrier().expect("all take part");
        // One call reports all dropped tensors, and only the tensor of that call remains.
        let last = tensor(&ranks, 1);
        assert_eq!(ranks.stats().heap.tensors, 1);
        drop(last);
    });
}

#[test]
fn a_tensor_that_is_dropped_while_a_call_uses_it_is_not_used_again_before() {
    on_ranks(5, |ranks| {
        let operator = all_reduce(&ranks, 1);
        let (stream, elems) = (stream(&ranks), (ROWS * COLS) as usize);
        let mut y = ranks.alloc::<bf16>(&stream, elems).expect("allocated");
        for _ in 0..6 {
            let mut x = ranks.alloc::<bf16>(&stream, elems).expect("allocated");
            let ones = vec![bf16::ONE; elems];
            stream.memcpy_htod(&ones, &mut x).expect("a copy");
            let call = operator.call(&stream).read(Operand::X, &x);
            call.write(Operand::Y, &mut y).launch().expect("enqueued");
            drop(x);
            // The allocation zeroes space that is used again.
            drop(ranks.alloc::<bf16>(&stream, elems).expect("allocated"));
            ranks.synchronize(&stream).expect("all take part");
            let sums = stream.clone_dtoh(&y).expect("a copy");
            assert!(sums.iter().all(|sum| sum.to_f32() == RANKS as f32));
        }
        assert_eq!(ranks.findings(), []);
    });
}

#[test]
fn a_tensor_that_is_dropped_during_a_capture_is_freed_after_it() {
    use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
    on_ranks(6, |ranks| {
        let stream = ranks.context().new_stream().expect("a stream");
        let tensor = ranks.alloc::<f32>(&stream, 100).expect("allocated");
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        stream.begin_capture(mode).expect("begun");
        drop(tensor);
        let other = ranks.alloc::<f32>(&stream, 100).expect("allocated");
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        drop(stream.end_capture(flags).expect("the capture goes on"));
        drop(other);
        // The reaper checks every millisecond.
        for _ in 0..1000 {
            drop(ranks.alloc::<f32>(&stream, 1).expect("allocated"));
            // All ranks see one number, so all ranks stop.
            if ranks.stats().heap.tensors == 1 {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("{}", ranks.stats().heap);
    });
}

#[test]
fn tensors_outlive_their_communicator() {
    on_ranks(7, |ranks| {
        let mut tensor = tensor(&ranks, 100);
        let stream = stream(&ranks);
        ranks.barrier().expect("all take part");
        drop(ranks);
        stream
            .memcpy_htod(&[3.0; 100], &mut tensor)
            .expect("a copy");
        assert_eq!(stream.clone_dtoh(&tensor).expect("a copy"), [3.0; 100]);
    });
}

#[test]
fn a_different_length_type_or_call_on_some_ranks_is_an_error_that_names_these_ranks() {
    on_ranks(8, |ranks| {
        let elems = if ranks.rank() % 2 == 1 { 101 } else { 100 };
        let error = ranks.alloc::<f32>(&stream(&ranks), elems);
        let error = error.expect_err("the lengths differ");
        let Error::Mismatch { ranks: differ, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!(differ, &[1, 3]);
        let text = error.to_string();
        for part in ["100 fp32 elements", "101 fp32 elements", "same tensors"] {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
        let error = match ranks.rank() {
            2 => ranks.alloc::<i32>(&stream(&ranks), 100).map(drop),
            _ => ranks.alloc::<f32>(&stream(&ranks), 100).map(drop),
        };
        let error = error.expect_err("the types differ").to_string();
        assert!(
            error.contains("int32") && error.contains("rank 2"),
            "{error}"
        );
        // Nothing was allocated, and the communicator can be used.
        assert_eq!(ranks.stats().heap.tensors, 0);
        drop(tensor(&ranks, 100));
    });
    on_ranks(9, |ranks| {
        let result = match ranks.rank() {
            3 => ranks.barrier(),
            _ => ranks.alloc::<f32>(&stream(&ranks), 100).map(drop),
        };
        result.expect_err("the calls differ");
    });
}

#[test]
fn a_tensor_that_exceeds_the_memory_is_an_error() {
    on_ranks(10, |ranks| {
        for elems in [usize::MAX, 1 << 50] {
            let error = ranks.alloc::<f32>(&stream(&ranks), elems).map(drop);
            let error = error.expect_err("no GPU has as much");
            assert_eq!(error.kind(), ErrorKind::System, "{error}");
            assert!(error.to_string().contains("no memory for"), "{error}");
        }
        drop(tensor(&ranks, 100));
    });
}
