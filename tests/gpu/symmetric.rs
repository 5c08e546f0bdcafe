//! Tests of tensors in the symmetric memory.

use crate::ranks::{on_ranks, worlds};
use mkernel::half::bf16;
use mkernel::spec::{CollectiveConfig, CollectiveOp, CollectiveShape, Dim};
use mkernel::{Communicator, KernelConfig, Operand};
use mkernel_testing::lab::{Failure, TimeLimit};
use std::time::Duration;

const SHAPE: CollectiveShape = CollectiveShape { m: 64, n: 4096 };

/// Adds up tensors in the symmetric memory, while other tensors come and go. Space that is used again is zero, and the heap
/// does not grow with the number of tensors.
#[test]
#[ignore = "needs GPUs"]
fn tensors_in_symmetric_memory_are_operands_and_come_and_go() {
    let _limit = TimeLimit::start("symmetric memory", Duration::from_secs(120));
    for world in worlds(1) {
        on_ranks(world, come_and_go);
    }
}

fn come_and_go(ranks: &Communicator) -> Result<(), Failure> {
    let config = CollectiveConfig {
        m: Dim::Static(SHAPE.m),
        n: Dim::Static(SHAPE.n),
        ..CollectiveConfig::new(CollectiveOp::AllReduce)
    };
    let config = KernelConfig::new(ranks.world(), config);
    let operator = ranks.prepare(&config, SHAPE)?;
    // Two streams, so that cudarc orders uses by events.
    let (stream, other) = (ranks.context().new_stream()?, ranks.context().new_stream()?);
    let elems = (SHAPE.m * SHAPE.n) as usize;
    let mut kept = Vec::new();
    let mut extents = 0;
    for round in 0..60_usize {
        let mut x = ranks.alloc::<bf16>(&other, elems)?;
        let mut y = ranks.alloc::<bf16>(&stream, elems)?;
        let before = other.clone_dtoh(&x)?;
        if before.iter().any(|elem| elem.to_bits() != 0) {
            return Err(format!("round {round}: a new tensor is not zero").into());
        }
        let own = bf16::from_f32((round + ranks.rank() as usize) as f32);
        other.memcpy_htod(&vec![own; elems], &mut x)?;
        let call = operator.call(&stream).read(Operand::X, &x);
        call.write(Operand::Y, &mut y).launch()?;
        // The call may still read it.
        drop(x);
        // Ranks keep another number of tensors each, of other sizes.
        kept.push(ranks.alloc::<f32>(&other, 1 << (18 + (round * 5 + 3) % 5))?);
        let most = 1 + (ranks.rank() as usize + round) % 3;
        while kept.len() > most {
            kept.remove(round % kept.len());
        }
        ranks.synchronize(&stream)?;
        let world = ranks.world() as usize;
        let sum = (world * round + world * (world - 1) / 2) as f32;
        let sums = stream.clone_dtoh(&y)?;
        if sums.iter().any(|found| *found != bf16::from_f32(sum)) {
            return Err(format!("round {round}: a sum is not {sum}").into());
        }
        if round == 20 {
            extents = ranks.stats().heap.extents;
        }
    }
    let heap = ranks.stats().heap;
    match heap.extents == extents {
        true => Ok(()),
        false => Err(format!("the heap has grown from {extents} extents: {heap}").into()),
    }
}
