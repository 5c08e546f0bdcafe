//! Tests of calls behind one that has failed, on simulated GPUs.
//!
//! With a causal mask and contiguous chunks, rank 0 needs no keys of other ranks, so its attention may succeed although
//! other ranks give it up.

use mkernel::cudarc::driver::{CudaSlice, CudaStream};
use mkernel::half::bf16;
use mkernel::spec::{
    AttentionConfig, AttentionOp, AttentionShape, CollectiveConfig, CollectiveOp, CollectiveShape,
    Dim, Dtype, Placement,
};
use mkernel::testing::prepare_edited;
use mkernel::{Communicator, Error, KernelConfig, Operand, Operator, Shape};
use mkernel_testing::jobs::{Backend, Machine, apply_edits};
use std::sync::Arc;
use std::time::Duration;

const WORLD: u32 = 4;
const SHARD_ROWS: u64 = 64;
const COLS: u64 = 64;
const ELEMS: usize = (SHARD_ROWS * COLS) as usize;
const ATTENTION: AttentionShape = AttentionShape {
    batch: 1,
    seq: SHARD_ROWS * WORLD as u64,
    heads: 1,
    kv_heads: 1,
    head_dim: COLS,
};
const SUM: CollectiveShape = CollectiveShape {
    m: SHARD_ROWS,
    n: COLS,
};

/// A rank that computes O, and then the sum of O over all ranks.
struct Rank<'a> {
    ranks: &'a Communicator,
    attention: Operator,
    sum: Operator,
    stream: Arc<CudaStream>,
    q: CudaSlice<bf16>,
    v: CudaSlice<bf16>,
    o: CudaSlice<bf16>,
    lse: CudaSlice<f32>,
    y: CudaSlice<bf16>,
}

impl<'a> Rank<'a> {
    fn new(ranks: &'a Communicator, edits: &[(String, String)]) -> Result<Self, Error> {
        let attention = AttentionConfig {
            batch: Dim::Static(ATTENTION.batch),
            seq: Dim::Static(ATTENTION.seq),
            heads: Dim::Static(ATTENTION.heads),
            kv_heads: Dim::Static(ATTENTION.kv_heads),
            head_dim: Dim::Static(ATTENTION.head_dim),
            causal: true,
            placement: Placement::Contiguous,
            ..AttentionConfig::new(AttentionOp::RingAttention)
        };
        let sum = CollectiveConfig {
            m: Dim::Static(SUM.m),
            n: Dim::Static(SUM.n),
            dtype: Dtype::Bf16,
            ..CollectiveConfig::new(CollectiveOp::AllReduce)
        };
        let edit = |text: &mut String| apply_edits(ranks, edits, text);
        let prepare = |config: &KernelConfig, shape: Shape| {
            // SAFETY: the edits change which calls take place, but no address.
            unsafe { prepare_edited(ranks, config, shape, edit) }
        };
        let stream = ranks.default_stream();
        let filled = |value| stream.clone_htod(&vec![value; ELEMS]).expect("memory");
        Ok(Self {
            ranks,
            attention: prepare(&KernelConfig::new(WORLD, attention), ATTENTION.into())?,
            sum: prepare(&KernelConfig::new(WORLD, sum), SUM.into())?,
            q: filled(bf16::ONE),
            v: filled(bf16::from_f32(f32::from(1 + ranks.rank() as u16))),
            o: filled(bf16::NAN),
            lse: stream.alloc_zeros(SHARD_ROWS as usize).expect("memory"),
            y: filled(bf16::NAN),
            stream,
        })
    }

    fn attend(&mut self) {
        let mut call = self.attention.call(&self.stream);
        call = call.read(Operand::Q, &self.q).read(Operand::K, &self.q);
        call = call.read(Operand::V, &self.v);
        let call = call.write(Operand::O, &mut self.o);
        call.write(Operand::Lse, &mut self.lse)
            .launch()
            .expect("a launch");
    }

    fn add_up(&mut self) {
        let call = self.sum.call(&self.stream).read(Operand::X, &self.o);
        call.write(Operand::Y, &mut self.y)
            .launch()
            .expect("a launch");
    }

    fn wait(&self) -> Result<(), Error> {
        self.ranks.synchronize(&self.stream)
    }
}

/// Makes the attention and then the sum on all ranks. If `are_late` is true, ranks 1 and 2 begin the attention after rank 3 has
/// given it up. Returns the sum on rank 0.
fn sum_behind_attention(are_late: bool, edits: &[(&str, &str)]) -> Result<Vec<bf16>, Error> {
    let machine = Machine {
        world: WORLD,
        sms: 3,
        skew: 60,
    };
    let owned = |(from, to): &(&str, &str)| ((*from).to_owned(), (*to).to_owned());
    let edits: Vec<_> = edits.iter().map(owned).collect();
    let outcomes = machine.run_ranks(Backend::Simulated { seed: 0 }, |ranks, _| {
        let mut rank = Rank::new(ranks, &edits)?;
        ranks.set_timeout(Duration::from_secs(60));
        match ranks.rank() {
            _ if !are_late => {}
            0 => {
                rank.attend();
                rank.wait().expect("rank 0 needs no other rank");
            }
            3 => {
                ranks.set_timeout(Duration::from_millis(5));
                rank.attend();
                let attended = rank.stream.record_event(None).expect("an event");
                ranks.set_timeout(Duration::from_secs(60));
                rank.add_up();
                attended.synchronize().expect("the end of the attention");
            }
            _ => {}
        }
        ranks.barrier()?;
        let has_begun = are_late && [0, 3].contains(&ranks.rank());
        if !has_begun {
            rank.attend();
        }
        if !has_begun || ranks.rank() == 0 {
            rank.add_up();
        }
        let outcome = rank.wait();
        ranks.barrier()?;
        let y = rank.stream.clone_dtoh(&rank.y).expect("a copy");
        Ok(outcome.map(|()| y))
    });
    let outcome = outcomes.expect("communicators").swap_remove(0);
    outcome.expect("an outcome of rank 0")
}

#[test]
fn a_call_behind_a_failed_one_sends_nothing() {
    let error = sum_behind_attention(true, &[]).expect_err("other ranks have failed");
    let is_named = matches!(
        error,
        Error::Timeout {
            aborted_by: Some(1..),
            ..
        }
    );
    assert!(is_named, "{error}");
}

/// If ranks make calls behind a failed call, other ranks get wrong results.
#[test]
fn a_call_that_is_made_behind_a_failed_one_is_found() {
    let right = sum_behind_attention(false, &[]).expect("no rank is late");
    let made = (
        "given_up_by = aborted_by == 0 && failed != 0 ? 1 + ctx.rank : aborted_by;",
        "",
    );
    let sum = sum_behind_attention(true, &[made]).expect("all ranks have sent something");
    assert!(sum != right);
}
