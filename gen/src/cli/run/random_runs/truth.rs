//! The right results of a call in fp64, element by element.
//!
//! Nothing here is shared with the reference of `mkernel-gen run`, which the tests judge. Ranks, rows and sums are computed
//! anew from what operators are documented to do.

mod attention;
mod experts;
mod router;
mod sums;

use super::super::inputs::Inputs;
use mkernel::spec::{DispatchOp, Dtype, Problem};
use mkernel::{KernelConfig, Operand};
use std::ops::Range;

/// An element of a result: its value and the largest error that rounding can cause. None if no kernel may write it.
pub type Element = Option<(f64, f64)>;

/// The results of a call on `rank`, in the order of the operands.
pub fn truth(config: &KernelConfig, inputs: &Inputs, rank: usize) -> Vec<Vec<Element>> {
    let job = Job {
        nodes: config.nodes as usize,
        world: config.world as usize,
        inputs,
    };
    match &config.problem {
        Problem::Gemm(config) => sums::gemm(&job, config, rank),
        Problem::Collective(config) => sums::collective(&job, config, rank),
        Problem::Attention(config) => attention::results(&job, config, rank),
        Problem::Dispatch(config) => match config.op {
            DispatchOp::DispatchGemm => experts::dispatch(&job, config, rank),
            DispatchOp::MoeLayer => experts::moe_layer(&job, config, rank),
            DispatchOp::GemmCombine => experts::gemm_combine(&job, config, rank),
        },
        Problem::Combine(config) => experts::combine(&job, config, rank),
    }
}

/// The number of elements that are not what they should be.
pub fn wrong(found: &[f32], expected: &[Element]) -> usize {
    let found = found.iter().copied().chain(std::iter::repeat(f32::NAN));
    let is_wrong = |(found, expected): &(f32, &Element)| match expected {
        None => !found.is_nan(),
        Some((value, error)) => found.is_nan() || (f64::from(*found) - value).abs() > *error,
    };
    found.zip(expected).filter(is_wrong).count()
}

/// A call, and the ranks that make it.
struct Job<'a> {
    nodes: usize,
    world: usize,
    inputs: &'a Inputs,
}

impl Job<'_> {
    /// The elements of an operand of floating-point numbers on a rank.
    fn floats(&self, operand: Operand, rank: usize) -> Vec<f64> {
        let of_rank = self.inputs.of(operand).get(rank);
        of_rank.map_or_else(Vec::new, |values| {
            values.iter().map(|x| f64::from(*x)).collect()
        })
    }

    /// The same on all ranks.
    fn floats_of_ranks(&self, operand: Operand) -> Vec<Vec<f64>> {
        (0..self.world)
            .map(|rank| self.floats(operand, rank))
            .collect()
    }

    /// The rows of `rows` that a rank has: rank 0 has the first ⌈rows/world⌉ rows, rank 1 the next ⌈rows/world⌉ rows, and so on.
    fn shard(&self, rows: usize, rank: usize) -> Range<usize> {
        let each = rows.div_ceil(self.world);
        (rank * each).min(rows)..((rank + 1) * each).min(rows)
    }

    /// The ranks of a node.
    fn ranks_of_node(&self, node: usize) -> Range<usize> {
        let each = self.world / self.nodes;
        node * each..(node + 1) * each
    }
}

/// The error of rounding `value` to this type, with room for a value that is nearly halfway between two.
fn rounding(value: f64, dtype: Dtype) -> f64 {
    let (relative, absolute) = match dtype {
        Dtype::Bf16 => (1.0 / 256.0, 0.0),
        // Subnormal numbers are 2^-24 apart.
        Dtype::Fp16 => (1.0 / 2048.0, 1.0 / f64::from(1 << 25)),
        Dtype::E4m3 => (1.0 / 16.0, 1.0 / 1024.0),
        Dtype::Fp32 => (1.0 / f64::from(1 << 22), 0.0),
        Dtype::Int32 => (0.0, 0.0),
    };
    value.abs() * relative + absolute
}

/// The error of an fp32 sum of products. `magnitudes` is the sum of the products' magnitudes.
fn adding(magnitudes: f64) -> f64 {
    magnitudes / f64::from(1 << 18)
}
