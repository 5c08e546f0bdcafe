//! Inputs and reference of `combine`.

use super::inputs::Inputs;
use super::other_batch::{Lines, OtherBatch};
use super::reference::{Matrix, padded, rounding_error};
use super::routing::{
    KeptRows, NO_CHOICE, OtherTokens, Routing, Sizes, TokenLoad, choose, forget_weights,
};
use mkernel::Operand;
use mkernel::spec::plan::{CombinePlan, OpPlan};
use mkernel::spec::{Dim, Problem, Shape};
use mkernel::{KernelConfig, KernelPlan};

fn sizes(plan: &KernelPlan, op_plan: &CombinePlan) -> Sizes {
    let shape = op_plan.shape;
    Sizes {
        world: plan.spec.world() as usize,
        experts: shape.experts as usize,
        top_k: shape.top_k as usize,
        max_tokens: shape.max_tokens as usize,
        max_rows: op_plan.max_rows as usize,
    }
}

/// Random rows and weights, and the row indices of each token. The weight of a choice that a token does not have is NaN.
pub fn inputs(
    plan: &KernelPlan,
    op_plan: &CombinePlan,
    load: TokenLoad,
    seed: u64,
    call: u32,
) -> Inputs {
    inputs_of_rows(plan, sizes(plan, op_plan), (load, seed, call)).0
}

/// Random operands of an operator that gets rows from experts, and the routing of the call.
pub(super) fn inputs_of_rows(
    plan: &KernelPlan,
    sizes: Sizes,
    (load, seed, call): (TokenLoad, u64, u32),
) -> (Inputs, Routing) {
    let mut inputs = Inputs::random(plan, seed, call, |_| false);
    let (ids, counts) = choose(sizes, load, seed, call);
    let routing = Routing::new(sizes, &ids, &counts);
    let mut row_indices = routing.row_indices.clone();
    let entries = sizes.max_tokens * sizes.top_k;
    for indices in &mut row_indices {
        indices.resize(entries, -2); // Entries of tokens beyond the number of tokens. Nothing may read them.
    }
    let counts = counts.into_iter().map(|count| vec![count]).collect();
    forget_weights(&mut inputs, &row_indices);
    inputs.numbers = vec![
        (Operand::RowIndices, row_indices),
        (Operand::NumTokens, counts),
    ];
    (inputs, routing)
}

/// The expected C of `rank`.
pub fn expected(
    plan: &KernelPlan,
    op_plan: &CombinePlan,
    inputs: &Inputs,
    rank: u32,
    _threads: usize,
) -> Option<Vec<Matrix>> {
    let sizes = sizes(plan, op_plan);
    let topology = plan.spec.topology();
    let hidden = op_plan.shape.hidden as usize;
    let rank = rank as usize;
    let count = inputs.numbers(Operand::NumTokens)[rank][0] as usize;
    let (row_indices, weights) = (
        &inputs.numbers(Operand::RowIndices)[rank],
        &inputs.of(Operand::TopkWeights)[rank],
    );
    let rows = inputs.of(Operand::Rows);
    let (mut values, mut errors) = (vec![0.0; count * hidden], vec![0.0; count * hidden]);
    for (entry, (index, weight)) in row_indices
        .iter()
        .zip(weights)
        .enumerate()
        .take(count * sizes.top_k)
        .filter(|(_, (index, _))| **index != NO_CHOICE)
    {
        let (source, row) = (
            *index as usize / sizes.max_rows,
            *index as usize % sizes.max_rows,
        );
        let from = &rows[source][row * hidden..(row + 1) * hidden];
        let at = entry / sizes.top_k * hidden;
        // The sum of a rank is rounded. If it goes to another node, the sum of its node is rounded once more.
        let crosses_nodes = topology.node_of(source as u32) != topology.node_of(rank as u32);
        let roundings = if crosses_nodes && topology.local_world > 1 {
            2.0
        } else {
            1.0
        };
        for (i, x) in from.iter().enumerate() {
            values[at + i] += weight * x;
            errors[at + i] += roundings * rounding_error(weight * x, op_plan.config.dtype);
        }
    }
    Some(vec![Matrix {
        values: padded(values, sizes.max_tokens * hidden),
        cols: hidden,
        terms: sizes.top_k,
        errors,
        dtype: op_plan.config.dtype,
    }])
}

/// The last half of the tokens of each rank, in reverse order, with their rows. Every rank has these rows in the order of the first call, without
/// the other rows between them. `None` if the kernel does not promise equal bits.
pub fn other_batch(
    config: &KernelConfig,
    plan: &KernelPlan,
    op_plan: &CombinePlan,
    first: &Inputs,
) -> Option<OtherBatch> {
    let (mut config, mut shape) = (config.clone(), plan.shape());
    let (Problem::Combine(of), Shape::Combine(to)) = (&mut config.problem, &mut shape) else {
        return None;
    };
    if !of.batch_invariant {
        return None;
    }
    let tokens = OtherTokens::of(first);
    to.max_tokens = tokens.most() as u64;
    of.max_tokens = Dim::Static(to.max_tokens);
    let before = sizes(plan, op_plan);
    let mut other = OtherBatch::planned(config, shape, None, vec![tokens.counts()])?;
    let OpPlan::Combine(of_other) = &other.plan.body().op_plan else {
        return None;
    };
    let kept = KeptRows::of(&tokens, first, [before, sizes(&other.plan, of_other)]);
    other
        .inputs
        .numbers
        .push((Operand::RowIndices, kept.row_indices));
    Some(other.of(first, |_, spec| match spec.operand {
        Operand::Rows => Some(Lines {
            cols: spec.cols as usize,
            places: kept.places.clone(),
        }),
        Operand::TopkWeights => Some(tokens.lines(before.top_k)),
        _ => Some(tokens.lines(spec.cols as usize)),
    }))
}
