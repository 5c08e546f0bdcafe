//! Inputs and reference of `moe_layer`.

use super::dispatch::{self, routing, sizes};
use super::gemm::{factors, shares};
use super::inputs::{Inputs, rounded};
use super::reference::{Matrix, multiply, padded, rounding_error, sum_error};
use super::router::{self, WEIGHT_ERROR};
use super::routing::{TokenLoad, forget_weights};
use mkernel::KernelPlan;
use mkernel::Operand;
use mkernel::spec::plan::{DispatchPlan, SCALE_BLOCK};
use mkernel::spec::{BLayout, Dtype, Scales};

/// Random tokens, the experts of each, and the weights of these experts. The weight of a choice that a token does not have is NaN.
pub fn inputs(
    plan: &KernelPlan,
    op_plan: &DispatchPlan,
    load: TokenLoad,
    seed: u64,
    call: u32,
) -> Inputs {
    let mut inputs = dispatch::inputs(plan, op_plan, load, seed, call);
    let ids = inputs.numbers(Operand::TopkIds).to_vec();
    forget_weights(&mut inputs, &ids);
    inputs
}

/// The expected C of `rank`, behind the experts and weights that the kernel chooses.
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
    let of_weight = match op_plan.config.router.chooses() {
        true => WEIGHT_ERROR,
        false => 0.0,
    };
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
                    *error += weight.abs() * (of_x + of_weight * x.abs());
                }
            }
        }
    }
    let mut expected = router::expected(op_plan, sizes, inputs, rank);
    expected.push(Matrix {
        values: padded(values, sizes.max_tokens * hidden),
        cols: hidden,
        terms: sizes.top_k,
        errors,
        dtype: op_plan.types().c,
    });
    Some(expected)
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
    let (down, [_, of_weights]) = (
        (Operand::Down, Operand::DownScales),
        shares(op_plan.config.scales),
    );
    let downs = &factors(inputs, down, cols, of_weights, rows.len())[owner];
    let downs = downs.chunks(hidden * cols);
    let is_transposed = op_plan.config.b_layout == BLayout::Nk;
    let (mut first, mut found) = (0, Vec::new());
    for (rows, down) in rows.iter().zip(downs) {
        let range = first * cols..(first + rows.len()) * cols;
        first += rows.len();
        let (values, errors) = (&values[range.clone()], &errors[range]);
        let (hidden_rows, errors) = match op_plan.config.scales {
            Scales::None => hidden_elements(values, errors, dtype),
            _ => quantised(values, errors),
        };
        let largest = hidden_rows
            .iter()
            .fold(1.0, |most: f32, x| most.max(x.abs()));
        // Errors of hidden elements are independent, so their products add up like a random walk.
        let squares: Vec<f32> = errors.iter().map(|error| error.powi(2)).collect();
        let down_squares: Vec<f32> = down.iter().map(|x| x * x).collect();
        let product = multiply(&hidden_rows, down, is_transposed, (hidden, cols), threads)
            .of_factors(op_plan.config.dtype);
        let walk = multiply(
            &squares,
            &down_squares,
            is_transposed,
            (hidden, cols),
            threads,
        );
        let of_sum = sum_error(cols) + product.errors.first().unwrap_or(&0.0);
        for (values, walk) in product
            .values
            .chunks(hidden)
            .zip(walk.values.chunks(hidden))
        {
            let errors = values
                .iter()
                .zip(walk)
                .map(|(x, walk)| 4.0 * walk.sqrt() + largest * of_sum + rounding_error(*x, dtype));
            found.push((values.to_vec(), errors.collect()));
        }
    }
    found
}

/// Hidden rows as elements of this type, and the errors of the elements.
fn hidden_elements(values: &[f32], errors: &[f32], dtype: Dtype) -> (Vec<f32>, Vec<f32>) {
    let elements = values.iter().map(|x| rounded(*x, dtype)).collect();
    let errors = values.iter().zip(errors);
    let errors = errors.map(|(x, error)| error + rounding_error(*x, dtype));
    (elements, errors.collect())
}

/// Hidden rows as elements of e4m3 times the scales of their blocks, and the errors of the products. A small error of a value or of
/// a scale seldom leads to another element, which is then a step away: the error is the root of the mean square.
fn quantised(values: &[f32], errors: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let block = SCALE_BLOCK as usize;
    let (mut products, mut of_products) = (Vec::new(), Vec::new());
    for (values, errors) in values.chunks(block).zip(errors.chunks(block)) {
        let greatest = values
            .iter()
            .fold(2f32.powi(-64), |most, x| most.max(x.abs()));
        let scale = greatest * (1.0 / 448.0);
        let of_scale = errors.iter().fold(0.0, |most: f32, error| most.max(*error)) / greatest;
        for (x, error) in values.iter().zip(errors) {
            let element = x * (1.0 / scale);
            products.push(rounded(element, Dtype::E4m3) * scale);
            let step = 2.0 * Dtype::E4m3.rounding_error(f64::from(element)) as f32 * scale;
            let error = error + x.abs() * of_scale;
            of_products.push((error * (error + step)).sqrt());
        }
    }
    (products, of_products)
}
