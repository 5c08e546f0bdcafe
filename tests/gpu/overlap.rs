//! Tests of overlapping calls: calls that the host cannot order, and chains of small calls that start early.

use crate::ranks::{on_ranks, worlds};
use mkernel::cudarc::driver::CudaSlice;
use mkernel::half::bf16;
use mkernel::spec::{CollectiveConfig, CollectiveOp, CollectiveShape, Dim};
use mkernel::{Communicator, KernelConfig, Operand};
use mkernel_testing::graph::Graph;
use mkernel_testing::jobs::Backend;
use mkernel_testing::jobs::overlap::{OVERLAPS, run_overlap};
use mkernel_testing::jobs::overtaken::{OVERTAKEN, run_overtaken};
use mkernel_testing::lab::{Failure, TimeLimit};
use std::time::Duration;

/// The grids of both calls are small, so that both fit the GPU at the same time.
#[test]
#[ignore = "needs GPUs"]
fn calls_that_overlap_are_refused_and_named() {
    let _limit = TimeLimit::start("calls that overlap", Duration::from_secs(120));
    worlds(2);
    for overlap in OVERLAPS {
        assert_eq!(
            run_overlap(Backend::Gpus, overlap, &[]),
            Ok(()),
            "{overlap:?}"
        );
    }
}

#[test]
#[ignore = "needs GPUs"]
fn an_overtaken_call_is_reported() {
    let _limit = TimeLimit::start("calls that are overtaken", Duration::from_secs(120));
    worlds(2);
    for overtaken in OVERTAKEN {
        let outcome = run_overtaken(Backend::Gpus, overtaken, &[]);
        assert_eq!(outcome, Ok(()), "{overtaken:?}");
    }
}

/// The calls of a graph. Each call doubles its operand exactly, starting at 2^-100.
const CHAIN: u32 = 200;
const REPLAYS: u32 = 2500;

/// Half a million calls of 1 KiB. Each call starts while the previous call, whose result it reads, still runs on the same SMs.
#[test]
#[ignore = "needs GPUs"]
fn a_chain_of_small_overlapping_calls_is_right() {
    let _limit = TimeLimit::start("a chain of small calls", Duration::from_secs(120));
    worlds(2);
    on_ranks(2, double_in_chains);
}

fn double_in_chains(ranks: &Communicator) -> Result<(), Failure> {
    const SHAPE: CollectiveShape = CollectiveShape { m: 1, n: 512 };
    let config = CollectiveConfig {
        m: Dim::Static(SHAPE.m),
        n: Dim::Static(SHAPE.n),
        ..CollectiveConfig::new(CollectiveOp::AllReduce)
    };
    // SAFETY: all work on the operands is on one stream. Slices that track events cannot be captured.
    unsafe { ranks.context().disable_event_tracking() };
    let operator = ranks.prepare(&KernelConfig::new(ranks.world(), config), SHAPE)?;
    // SAFETY: a collective loads nothing before earlier work of the stream has ended.
    unsafe { operator.overlap_calls(true) };
    let stream = ranks.context().new_stream()?;
    let power = |exponent: i32| bf16::from_f32(2f32.powi(exponent));
    let first = stream.clone_htod(&vec![power(-100); SHAPE.n as usize])?;
    let mut buffers = [first.clone(), first.clone()];
    let graph = Graph::capture(ranks, &stream, || {
        for call in 0..CHAIN {
            let [even, odd] = &mut buffers;
            let (x, y): (&CudaSlice<bf16>, _) = if call % 2 == 0 {
                (even, odd)
            } else {
                (odd, even)
            };
            // SAFETY: the operands are dropped after all work of the stream.
            unsafe {
                operator
                    .call(&stream)
                    .read(Operand::X, x)
                    .write(Operand::Y, y)
                    .capture()?
            };
        }
        Ok(())
    })?;
    for replay in 0..REPLAYS {
        stream.memcpy_dtod(&first, &mut buffers[0])?;
        graph.launch(&stream)?;
        let result = stream.clone_dtoh(&buffers[0])?;
        ranks.check()?;
        if result.iter().any(|x| *x != power(CHAIN as i32 - 100)) {
            return Err(format!("replay {replay} ends with {:?}", &result[..8]).into());
        }
    }
    Ok(ranks.synchronize(&stream)?)
}
