//! Inputs and reference of `moe_layer`.

use super::dispatch::{self, routing, sizes};
use super::inputs::{Inputs, rounded};
use super::reference::{Matrix, multiply, padded, rounding_error, sum_error};
use super::routing::forget_weights;
use mkernel::KernelPlan;
use mkernel::Operand;
use mkernel::spec::BLayout;
use mkernel::spec::plan::DispatchPlan;

/// Random tokens, the experts of each, and the weights of these experts. The weight of a choice that a token does not have is NaN.
pub fn inputs(plan: &KernelPlan, op_plan: &DispatchPlan, seed: u64, call: u32) -> Inputs {
    let mut inputs = dispatch::inputs(plan, op_plan, seed, call);
    let ids = inputs.numbers(Operand::TopkIds).to_vec();
    forget_weights(&mut inputs, &ids);
    inputs
}

/// The expected C of `rank`.
pub fn expected(
    plan: &KernelPlan,
    op_plan: &DispatchPlan,
    inputs: &Inputs,
    rank: u32,
    threads: usize,
) -> Option<Vec<Matrix>> {
    let sizes = sizes(plan, op_plan);
    let mut routing = routing(sizes, inputs);
    let ids = inputs.numbers(Operand::TopkIds);
    let (rank, hidden) = (rank as usize, op_plan.shape.hidden as usize);
    let tokens = inputs.numbers(Operand::NumTokens)[rank][0] as usize;
    let (mut values, mut errors) = (vec![0.0; tokens * hidden], vec![0.0; tokens * hidden]);
    for (owner, experts) in routing.rows.iter_mut().enumerate() {
        for rows in experts.iter_mut() {
            rows.retain(|(source, _)| *source == rank);
        }
        let results = results(op_plan, inputs, experts, owner, threads);
        let mut results = results.iter();
        for (expert, rows) in experts.iter().enumerate() {
            let expert = owner * experts.len() + expert;
            for ((_, token), (result, of_result)) in rows.iter().zip(results.by_ref()) {
                let choices = token * sizes.top_k..(token + 1) * sizes.top_k;
                let is_here = |choice: &usize| ids[rank][*choice] as usize == expert;
                let choice = choices.clone().find(is_here)?;
                let weight = inputs.of(Operand::TopkWeights)[rank][choice];
                let sums = values[token * hidden..].iter_mut();
                let sums = sums.zip(&mut errors[token * hidden..]);
                for ((value, error), (x, of_x)) in sums.zip(result.iter().zip(of_result)) {
                    *value += weight * x;
                    *error += weight.abs() * of_x;
                }
            }
        }
    }
    Some(vec![Matrix {
        values: padded(values, sizes.max_tokens * hidden),
        cols: hidden,
        terms: sizes.top_k,
        errors,
        dtype: op_plan.types().c,
    }])
}

/// The results of the experts of rank `owner` for rows, and their errors, row by row. `rows` are the source rank and the token of each row,
/// for each expert.
fn results(
    op_plan: &DispatchPlan,
    inputs: &Inputs,
    rows: &[Vec<(usize, usize)>],
    owner: usize,
    threads: usize,
) -> Vec<(Vec<f32>, Vec<f32>)> {
    let (hidden, cols) = (
        op_plan.shape.hidden as usize,
        op_plan.shape.intermediate as usize,
    );
    let dtype = op_plan.types().c;
    let (values, errors) = dispatch::outputs(op_plan, inputs, rows, owner, threads);
    let downs = inputs.of(Operand::Down)[owner].chunks(hidden * cols);
    let is_transposed = op_plan.config.b_layout == BLayout::Nk;
    let (mut first, mut found) = (0, Vec::new());
    for (rows, down) in rows.iter().zip(downs) {
        let range = first * cols..(first + rows.len()) * cols;
        first += rows.len();
        let hidden_rows: Vec<f32> = values[range.clone()]
            .iter()
            .map(|x| rounded(*x, dtype))
            .collect();
        let largest = hidden_rows
            .iter()
            .fold(1.0, |most: f32, x| most.max(x.abs()));
        // Errors of hidden elements are independent, so their products add up like a random walk.
        let of_hidden = values[range.clone()].iter().zip(&errors[range]);
        let squares: Vec<f32> = of_hidden
            .map(|(x, error)| (error + rounding_error(*x, dtype)).powi(2))
            .collect();
        let down_squares: Vec<f32> = down.iter().map(|x| x * x).collect();
        let product = multiply(&hidden_rows, down, is_transposed, (hidden, cols), threads);
        let walk = multiply(
            &squares,
            &down_squares,
            is_transposed,
            (hidden, cols),
            threads,
        );
        for (values, walk) in product
            .values
            .chunks(hidden)
            .zip(walk.values.chunks(hidden))
        {
            let errors = values.iter().zip(walk).map(|(x, walk)| {
                4.0 * walk.sqrt() + largest * sum_error(cols) + rounding_error(*x, dtype)
            });
            found.push((values.to_vec(), errors.collect()));
        }
    }
    found
}
