//! What `dispatch_gemm` should compute.

use super::inputs::Inputs;
use super::reference::{Matrix, lost, matrix_sums_bytes, multiply, padded, silu};
use super::routing::{Routing, Sizes, choose};
use mkernel::half::bf16;
use mkernel::spec::abi::Operand;
use mkernel::spec::plan::DispatchPlan;
use mkernel::{BLayout, Dtype, KernelPlan};

fn sizes(plan: &KernelPlan, op_plan: &DispatchPlan) -> Sizes {
    let shape = op_plan.shape;
    Sizes {
        world: plan.spec.world() as usize,
        experts: shape.experts as usize,
        top_k: shape.top_k as usize,
        max_tokens: shape.max_tokens as usize,
        max_rows: op_plan.max_rows as usize,
    }
}

/// Random tokens, and the experts of each.
pub fn inputs(plan: &KernelPlan, op_plan: &DispatchPlan, seed: u64, call: u32) -> Inputs {
    let mut inputs = Inputs::random(plan, seed, call, |_| false);
    let (ids, counts) = choose(sizes(plan, op_plan), seed, call);
    let counts = counts.into_iter().map(|count| vec![count]).collect();
    inputs.numbers = vec![(Operand::TopkIds, ids), (Operand::NumTokens, counts)];
    inputs
}

fn numbers(values: Vec<f32>) -> Matrix {
    Matrix {
        values,
        cols: 1,
        terms: 0,
        rounded: Vec::new(),
        dtype: Dtype::Int32,
    }
}

/// C, offsets and places of `rank`.
pub fn expected(
    plan: &KernelPlan,
    op_plan: &DispatchPlan,
    inputs: &Inputs,
    rank: u32,
    threads: usize,
) -> Option<Vec<Matrix>> {
    let sizes = sizes(plan, op_plan);
    let (ids, counts) = (
        inputs.numbers(Operand::TopkIds),
        inputs.numbers(Operand::NumTokens),
    );
    let counts: Vec<i32> = counts.iter().map(|count| count[0]).collect();
    let routing = Routing::new(sizes, ids, &counts);
    let (hidden, cols) = (
        op_plan.shape.hidden as usize,
        op_plan.shape.intermediate as usize,
    );
    let weight_cols = op_plan.weight_cols() as usize;
    let rank = rank as usize;
    let tokens = inputs.of(Operand::Tokens);
    let weights = &inputs.of(Operand::B)[rank];
    let (mut values, mut rounded) = (Vec::new(), Vec::new());
    for (rows, weight) in routing.rows[rank]
        .iter()
        .zip(weights.chunks(hidden * weight_cols))
    {
        let gathered: Vec<bf16> = rows
            .iter()
            .flat_map(|(source, token)| &tokens[*source][token * hidden..(token + 1) * hidden])
            .copied()
            .collect();
        let is_transposed = op_plan.config.b_layout == BLayout::Nk;
        let product = multiply(
            &gathered,
            weight,
            is_transposed,
            (weight_cols, hidden),
            threads,
        );
        if !op_plan.config.swiglu {
            values.extend(product.values);
            continue;
        }
        for row in product.values.chunks(weight_cols) {
            for (gate, up) in row[..cols].iter().zip(&row[cols..]) {
                values.push(silu(f64::from(*gate)) as f32 * up);
                // Both sums lose a little, of which the other makes more.
                rounded.push(225.0 * lost(hidden) * (1.1 * up.abs() + gate.abs()));
            }
        }
    }
    let c = Matrix {
        values: padded(values, sizes.max_rows * cols),
        cols,
        terms: hidden,
        rounded,
        dtype: Dtype::Bf16,
    };
    let places: Vec<f32> = routing.places[rank]
        .iter()
        .map(|place| *place as f32)
        .collect();
    Some(vec![
        c,
        numbers(routing.offsets(rank)),
        numbers(padded(places, sizes.max_tokens * sizes.top_k)),
    ])
}

/// Bytes of the sums that all ranks' references need at a time: those of the results in fp32, and what was rounded.
pub fn reference_bytes(plan: &KernelPlan, _: &DispatchPlan) -> u64 {
    matrix_sums_bytes(plan)
}
