//! Tests of communicators that are rebuilt after ranks have failed.

use crate::group_failures::dies;
use crate::groups::{group, ranks};
use crate::{alone, on_ranks, threads_and_descriptors, use_emulated_nics};
use mkernel::cudarc::driver::CudaSlice;
use mkernel::error::CallError;
use mkernel::half::bf16;
use mkernel::spec::abi::Operand;
use mkernel::{Communicator, Error, fused_kernel};
use mkernel_testing::jobs::share;
use std::time::Duration;

const M: usize = 4;
const N: usize = 64;

#[fused_kernel(op = all_reduce, m = 4, n = 64)]
struct Sum;

#[fused_kernel(op = all_reduce, m = 4, n = 64, nodes = 2)]
struct SumOfNodes;

/// An operator for the ranks of a communicator, on one node or on two.
enum Either {
    One(Sum),
    Two(SumOfNodes),
}

impl Either {
    fn prepare(ranks: &Communicator, nodes: u32) -> Result<Self, Error> {
        Ok(match nodes {
            1 => Self::One(Sum::prepare(ranks)?),
            _ => Self::Two(SumOfNodes::prepare(ranks)?),
        })
    }

    /// Adds `weights` of all ranks, whose sum must be `expected`.
    fn sum(
        &self,
        ranks: &Communicator,
        weights: &CudaSlice<bf16>,
        expected: f32,
    ) -> Result<(), Error> {
        let stream = ranks.default_stream();
        let mut y = stream.alloc_zeros::<bf16>(M * N).expect("memory");
        match self {
            Self::One(sum) => sum.launch(
                &stream,
                SumOperands {
                    x: weights,
                    y: &mut y,
                },
            )?,
            Self::Two(sum) => sum.launch(
                &stream,
                SumOfNodesOperands {
                    x: weights,
                    y: &mut y,
                },
            )?,
        }
        ranks.synchronize(&stream)?;
        let y = stream.clone_dtoh(&y).expect("a copy");
        assert!(y.iter().all(|sum| sum.to_f32() == expected), "{:?}", y[0]);
        Ok(())
    }
}

/// Allocates a tensor whose elements identify the rank.
fn weights(ranks: &Communicator) -> CudaSlice<bf16> {
    let own = vec![value(ranks.rank()); M * N];
    ranks.default_stream().clone_htod(&own).expect("memory")
}

fn value(job_rank: u32) -> bf16 {
    bf16::from_f32((1 << job_rank) as f32)
}

/// Returns the sum of the tensors of all ranks.
fn expected(ranks: &Communicator) -> f32 {
    ranks
        .job_ranks()
        .iter()
        .map(|rank| value(*rank).to_f32())
        .sum()
}

/// A generator of random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

/// The point at which a rank dies.
#[derive(Clone, Copy, Debug)]
struct Death {
    rank: u32,
    /// The number of calls that the rank makes before.
    calls: u64,
    /// Whether the rank dies after it has enqueued one more call.
    in_call: bool,
}

/// Calls an operator until `deaths` have left two ranks, and then three times more. Returns the ranks that are left, or `None` on
/// a rank that has died.
fn lives(mut ranks: Communicator, nodes: u32, deaths: [Death; 2]) -> Option<Vec<u32>> {
    let own = ranks.rank();
    let weights = weights(&ranks);
    let death = deaths.iter().find(|death| death.rank == own);
    let (mut calls, mut last_calls) = (0, 0);
    loop {
        // Kernels are for 1, 2, 4 or 8 ranks of a node. Three ranks only exchange bytes.
        let sum = match ranks.world() {
            3 => None,
            _ => Some(Either::prepare(&ranks, nodes)),
        };
        let error = loop {
            if let Some(death) = death.filter(|death| calls >= death.calls) {
                if let (true, Some(Ok(sum))) = (death.in_call, &sum) {
                    ranks.set_timeout(Duration::ZERO);
                    let _ = sum.sum(&ranks, &weights, expected(&ranks));
                }
                dies((sum, ranks));
                return None;
            }
            let result = match &sum {
                Some(Ok(sum)) => sum.sum(&ranks, &weights, expected(&ranks)),
                Some(Err(error)) => Err(error.clone()),
                None => ranks.barrier(),
            };
            calls += 1;
            match result {
                Ok(()) if ranks.world() == 2 && last_calls == 3 => {
                    ranks.barrier().expect("both are left");
                    assert_eq!(ranks.findings(), []);
                    return Some(ranks.job_ranks().to_vec());
                }
                Ok(()) => last_calls += u32::from(ranks.world() == 2),
                Err(error) => break error,
            }
        };
        let left = ranks.rebuild(2);
        let left = left.unwrap_or_else(|second| panic!("rank {own}: {second}, after {error}"));
        drop((sum, ranks));
        ranks = left;
    }
}

/// Two of four ranks die at random points. The other ranks go on with right results.
#[test]
fn ranks_that_are_left_compute_whenever_two_of_four_die() {
    let _alone = alone();
    for seed in share((0..200).collect(), "", (0, 5)) {
        let mut random = Random(seed);
        let first = random.below(4) as u32;
        let second = (first + 1 + random.below(3) as u32) % 4;
        let deaths = [first, second].map(|rank| Death {
            rank,
            calls: random.below(6),
            in_call: random.below(2) == 0,
        });
        let nodes = 1 + random.below(2) as u32;
        let all = ranks(4, seed);
        all.iter().for_each(use_emulated_nics);
        let found = on_ranks(all, |ranks| lives(ranks, nodes, deaths));
        let left: Vec<u32> = (0..4).filter(|r| ![first, second].contains(r)).collect();
        for rank in 0..4 {
            let expected = left.contains(&rank).then(|| left.clone());
            let found = &found[rank as usize];
            assert_eq!(*found, expected, "seed {seed}, {nodes} nodes, {deaths:?}");
        }
    }
}

/// Each new communicator computes with the tensor that its rank had from the start.
#[test]
fn fifty_rebuilds_need_as_much_memory_as_one() {
    let _alone = alone();
    on_ranks(ranks(4, 1), |mut ranks| {
        use_emulated_nics(&ranks);
        let weights = weights(&ranks);
        let mut after_first = None;
        for generation in 1..=50 {
            let sums = [1, 2].map(|nodes| Either::prepare(&ranks, nodes).expect("prepared"));
            for sum in &sums {
                sum.sum(&ranks, &weights, 15.0).expect("all take part");
            }
            ranks.barrier().expect("all take part");
            let used = (ranks.rank() == 0).then(|| (threads_and_descriptors(), ranks.stats().heap));
            ranks.barrier().expect("all take part");
            let left = ranks.rebuild(4).expect("all are left");
            assert_eq!((left.world(), left.generation()), (4, generation));
            drop((sums, ranks));
            assert_eq!(
                used,
                *after_first.get_or_insert(used),
                "generation {generation}"
            );
            ranks = left;
            ranks.barrier().expect("all take part");
        }
    });
}

/// A graph of the former communicator is replayed before and after calls of the new communicator.
#[test]
fn replays_of_former_graphs_do_not_reach_the_new_communicator() {
    let _alone = alone();
    on_ranks(ranks(2, 3), |ranks| {
        let weights = weights(&ranks);
        let sum = Sum::prepare(&ranks).expect("prepared");
        let stream = ranks.context().new_stream().expect("a stream");
        let x = stream.clone_htod(&[bf16::from_f32(-8.0); M * N]);
        let x = x.expect("memory");
        let mut y = stream.alloc_zeros::<bf16>(M * N).expect("memory");
        stream.synchronize().expect("uploaded");
        let enqueue = || {
            let call = sum.operator().call(&stream);
            let call = call.read(Operand::X, &x).write(Operand::Y, &mut y);
            // SAFETY: the operands exist until the last replay has ended, and only replays use them.
            unsafe { call.capture() }
        };
        // SAFETY: as above.
        let graph = unsafe { ranks.capture(&stream, enqueue) }.expect("captured");
        graph.launch().expect("replayed");
        ranks.synchronize(&stream).expect("both take part");
        ranks.barrier().expect("both take part");
        let left = ranks.rebuild(2).expect("both are left");
        let again = Either::prepare(&left, 1).expect("prepared");
        for _ in 0..4 {
            graph.launch().expect("replayed");
            again.sum(&left, &weights, 3.0).expect("both take part");
        }
        ranks.synchronize(&stream).expect_err("out of use");
        assert_eq!(left.findings(), []);
        left.barrier().expect("both take part");
    });
}

#[test]
fn what_cannot_be_rebuilt_is_an_error() {
    let _alone = alone();
    on_ranks(ranks(2, 5), |ranks| {
        let group = group(&ranks, 0, 0);
        let error = group.rebuild(1).expect_err("a group");
        assert!(
            matches!(error, Error::Call(CallError::NotRebuildable)),
            "{error}"
        );
        let error = ranks.rebuild(3).expect_err("two ranks");
        let text = "at least 3 ranks were required, but the communicator has 2. Require 2 or fewer";
        assert_eq!(error.to_string(), text);
        ranks.barrier().expect("the communicators are as before");
        group.barrier().expect("the communicators are as before");
        let left = ranks.rebuild(2).expect("both are left");
        let error = ranks.rebuild(2).expect_err("rebuilt before");
        assert!(
            matches!(error, Error::Call(CallError::NotRebuildable)),
            "{error}"
        );
        let inner = left
            .split(Some(0), 0)
            .expect("both take part")
            .expect("a group");
        assert_eq!(
            (inner.generation(), left.generation(), ranks.generation()),
            (1, 1, 0)
        );
        inner.barrier().expect("both take part");
        left.barrier().expect("both take part");
    });
}
