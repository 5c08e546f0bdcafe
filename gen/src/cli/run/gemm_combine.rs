//! Inputs and reference of `gemm_combine`.

use super::combine::inputs_of_rows;
use super::dispatch::sizes;
use super::gemm::{factors, shares};
use super::inputs::Inputs;
use super::other_batch::{Lines, OtherBatch};
use super::reference::{Matrix, multiply, padded, rounding_error, sum_error};
use super::routing::{KeptRows, NO_CHOICE, OtherTokens, TokenLoad};
use mkernel::Operand;
use mkernel::spec::plan::{DispatchPlan, OpPlan};
use mkernel::spec::{BLayout, Dim, Problem, Scales, Shape};
use mkernel::{KernelConfig, KernelPlan};

/// Random rows and weights, the first row of each expert, and the row indices of each token. The weight of a choice that a token does not
/// have is NaN.
pub fn inputs(
    plan: &KernelPlan,
    op_plan: &DispatchPlan,
    load: TokenLoad,
    seed: u64,
    call: u32,
) -> Inputs {
    let sizes = sizes(plan, op_plan);
    let (mut inputs, routing) = inputs_of_rows(plan, sizes, (load, seed, call));
    let offsets = (0..sizes.world).map(|rank| routing.offsets(rank));
    let offsets = (Operand::ExpertOffsets, offsets.collect());
    inputs.numbers.push(offsets);
    inputs
}

/// The entries of a rank's tokens whose rows are those of one expert, and these rows.
type Choices = Vec<(usize, usize)>;

/// The result of an expert for the row of an entry.
struct ExpertResult {
    entry: usize,
    values: Vec<f32>,
    errors: Vec<f32>,
}

/// The expected C of `rank`.
pub fn expected(
    plan: &KernelPlan,
    op_plan: &DispatchPlan,
    inputs: &Inputs,
    rank: u32,
    threads: usize,
) -> Option<Vec<Matrix>> {
    let (sizes, rank) = (sizes(plan, op_plan), rank as usize);
    let hidden = op_plan.shape.hidden as usize;
    let tokens = inputs.numbers(Operand::NumTokens)[rank][0] as usize;
    let entries = &inputs.numbers(Operand::RowIndices)[rank][..tokens * sizes.top_k];
    let (mut values, mut errors) = (vec![0.0; tokens * hidden], vec![0.0; tokens * hidden]);
    for owner in 0..sizes.world {
        let offsets = &inputs.numbers(Operand::ExpertOffsets)[owner];
        let mut choices = vec![Choices::new(); offsets.len() - 1];
        for (entry, index) in entries.iter().enumerate() {
            let (of, row) = (
                *index as usize / sizes.max_rows,
                *index as usize % sizes.max_rows,
            );
            if *index != NO_CHOICE && of == owner {
                let expert = offsets.partition_point(|offset| *offset as usize <= row) - 1;
                choices[expert].push((entry, row));
            }
        }
        for result in results(op_plan, inputs, &choices, owner, threads) {
            let weight = inputs.of(Operand::TopkWeights)[rank][result.entry];
            let at = result.entry / sizes.top_k * hidden;
            let sums = values[at..].iter_mut().zip(&mut errors[at..]);
            for ((value, error), (x, of_x)) in sums.zip(result.values.iter().zip(&result.errors)) {
                *value += weight * x;
                *error += weight.abs() * of_x;
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

/// The results of the experts of rank `owner` for the rows of choices, and their errors.
fn results(
    op_plan: &DispatchPlan,
    inputs: &Inputs,
    choices: &[Choices],
    owner: usize,
    threads: usize,
) -> Vec<ExpertResult> {
    let (hidden, cols) = (
        op_plan.shape.hidden as usize,
        op_plan.shape.intermediate as usize,
    );
    let (config, dtype) = (&op_plan.config, op_plan.types().c);
    let [of_rows, of_weights] = shares(config.scales);
    let rows = &factors(inputs, (Operand::A, Operand::AScales), cols, of_rows, 1)[owner];
    let parts = match config.scales {
        Scales::None => 1,
        _ => choices.len(),
    };
    let weights = (Operand::B, Operand::BScales);
    let weights = &factors(inputs, weights, cols, of_weights, parts)[owner];
    let mut found = Vec::new();
    for (choices, weight) in choices.iter().zip(weights.chunks(hidden * cols)) {
        let gathered: Vec<f32> = choices
            .iter()
            .flat_map(|(_, row)| &rows[row * cols..(row + 1) * cols])
            .copied()
            .collect();
        let largest = gathered.iter().fold(1.0, |most: f32, x| most.max(x.abs()));
        let is_transposed = config.b_layout == BLayout::Nk;
        let product = multiply(&gathered, weight, is_transposed, (hidden, cols), threads)
            .of_factors(config.dtype);
        let narrow = product.errors.iter().chain(std::iter::repeat(&0.0));
        let mut of_sums = narrow.map(|narrow| largest * (sum_error(cols) + narrow));
        for ((entry, _), result) in choices.iter().zip(product.values.chunks(hidden)) {
            let errors = result.iter().zip(of_sums.by_ref());
            let errors = errors.map(|(x, of_sum)| of_sum + rounding_error(*x, dtype));
            let errors = errors.collect();
            found.push(ExpertResult {
                entry: *entry,
                values: result.to_vec(),
                errors,
            });
        }
    }
    found
}

/// The last half of the tokens of each rank, in reverse order, with their rows. Every rank has these rows in the order of the first call.
pub fn other_batch(
    config: &KernelConfig,
    plan: &KernelPlan,
    op_plan: &DispatchPlan,
    first: &Inputs,
) -> Option<OtherBatch> {
    let (mut config, mut shape) = (config.clone(), plan.shape());
    let (Problem::Dispatch(of), Shape::Dispatch(to)) = (&mut config.problem, &mut shape) else {
        return None;
    };
    let tokens = OtherTokens::of(first);
    to.max_tokens = tokens.most() as u64;
    of.max_tokens = Dim::Static(to.max_tokens);
    let mut other = OtherBatch::planned(config, shape, None, vec![tokens.counts()])?;
    let OpPlan::Dispatch(of_other) = &other.plan.body().op_plan else {
        return None;
    };
    let before = sizes(plan, op_plan);
    let kept = KeptRows::of(&tokens, first, [before, sizes(&other.plan, of_other)]);
    let offsets = kept.expert_offsets(first.numbers(Operand::ExpertOffsets));
    other.inputs.numbers.extend([
        (Operand::ExpertOffsets, offsets),
        (Operand::RowIndices, kept.row_indices),
    ]);
    Some(other.of(first, |_, spec| match spec.operand {
        Operand::AScales if op_plan.config.scales == Scales::Tensor => None,
        Operand::A | Operand::AScales => Some(Lines {
            cols: spec.cols as usize,
            places: kept.places.clone(),
        }),
        Operand::TopkWeights => Some(tokens.lines(before.top_k)),
        Operand::C => Some(tokens.lines(spec.cols as usize)),
        _ => None,
    }))
}
