//! What `combine` should compute.

use super::inputs::{Inputs, Random};
use super::reference::{Matrix, matrix_sums_bytes, padded};
use super::routing::{Routing, Sizes, choose};
use mkernel::spec::abi::Operand;
use mkernel::spec::plan::CombinePlan;
use mkernel::{Dtype, KernelPlan};

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

/// Random rows and weights, and where the rows of each token are.
pub fn inputs(plan: &KernelPlan, op_plan: &CombinePlan, seed: u64, call: u32) -> Inputs {
    let mut inputs = Inputs::random(plan, seed, call, |_| false);
    let sizes = sizes(plan, op_plan);
    let (ids, counts) = choose(sizes, seed, call);
    let mut places = Routing::new(sizes, &ids, &counts).places;
    let choices = sizes.max_tokens * sizes.top_k;
    for places in &mut places {
        places.resize(choices, -1); // of tokens that there are not
    }
    let counts = counts.into_iter().map(|count| vec![count]).collect();
    inputs.numbers = vec![(Operand::RowIndices, places), (Operand::NumTokens, counts)];
    let mut random = Random(seed ^ u64::from(call));
    let gates = (0..sizes.world)
        .map(|_| (0..choices).map(|_| random.element().to_f32()).collect())
        .collect();
    inputs.fractions = vec![(Operand::TopkWeights, gates)];
    inputs
}

/// C of `rank`: the weighted sums.
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
    let (places, gates) = (
        &inputs.numbers(Operand::RowIndices)[rank],
        &inputs.fractions(Operand::TopkWeights)[rank],
    );
    let rows = inputs.of(Operand::Rows);
    let (mut values, mut rounded) = (vec![0.0; count * hidden], vec![0.0; count * hidden]);
    for (choice, (place, gate)) in places
        .iter()
        .zip(gates)
        .enumerate()
        .take(count * sizes.top_k)
    {
        let (of, row) = (
            *place as usize / sizes.max_rows,
            *place as usize % sizes.max_rows,
        );
        let from = &rows[of][row * hidden..(row + 1) * hidden];
        let at = choice / sizes.top_k * hidden;
        // What a rank makes is rounded, and what its node makes of that once more, if it is another one.
        let is_far = topology.node_of(of as u32) != topology.node_of(rank as u32);
        let roundings = if is_far && topology.local_world > 1 {
            2.0
        } else {
            1.0
        };
        for (i, x) in from.iter().enumerate() {
            values[at + i] += gate * x.to_f32();
            rounded[at + i] += roundings * (gate * x.to_f32()).abs();
        }
    }
    Some(vec![Matrix {
        values: padded(values, sizes.max_tokens * hidden),
        cols: hidden,
        terms: sizes.top_k,
        rounded,
        dtype: Dtype::Bf16,
    }])
}

/// Bytes of the sums that all ranks' references need at a time: those of the results in fp32, and what was rounded.
pub fn reference_bytes(plan: &KernelPlan, _: &CombinePlan) -> u64 {
    matrix_sums_bytes(plan)
}
