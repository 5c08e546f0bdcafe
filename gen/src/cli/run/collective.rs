//! Inputs and reference of collectives.

use super::inputs::{Inputs, Random, elems};
use super::reference::{Matrix, matrix_sums_bytes};
use mkernel::Operand;
use mkernel::spec::plan::CollectivePlan;
use mkernel::{
    KernelPlan,
    spec::{CollectiveOp, Dtype},
};

/// A random tensor of each rank.
pub fn inputs(plan: &KernelPlan, op_plan: &CollectivePlan, seed: u64, call: u32) -> Inputs {
    let mut inputs = Inputs::random(plan, seed, call, |_| false);
    if op_plan.config.dtype == Dtype::Fp32 {
        let of_rank = |rank| {
            let mut random = Random(seed ^ Random(u64::from(call) << 32 | u64::from(rank)).next());
            (0..elems(plan, Operand::X, rank))
                .map(|_| random.fraction())
                .collect()
        };
        let ranks = 0..plan.spec.world();
        inputs.fractions = vec![(Operand::X, ranks.map(of_rank).collect())];
    }
    inputs
}

/// The expected Y of `rank`.
pub fn expected(
    plan: &KernelPlan,
    op_plan: &CollectivePlan,
    inputs: &Inputs,
    rank: u32,
    _threads: usize,
) -> Option<Vec<Matrix>> {
    let ranks: Vec<Vec<f32>> = match op_plan.config.dtype {
        Dtype::Bf16 => {
            let values = inputs.of(Operand::X).iter();
            values
                .map(|x| x.iter().map(|x| x.to_f32()).collect())
                .collect()
        }
        _ => inputs.fractions(Operand::X).to_vec(),
    };
    let (values, rounded) = match op_plan.config.op {
        CollectiveOp::AllGather => (ranks.concat(), Vec::new()),
        CollectiveOp::AllReduce => sums(plan, op_plan, &ranks),
        CollectiveOp::ReduceScatter => {
            let elems = |rank| elems(plan, Operand::Y, rank);
            let before: usize = (0..rank).map(elems).sum();
            let own = before..before + elems(rank);
            let (values, rounded) = sums(plan, op_plan, &ranks);
            (values[own.clone()].to_vec(), rounded[own].to_vec())
        }
    };
    Some(vec![Matrix {
        values,
        cols: op_plan.shape.n as usize,
        terms: ranks.len(),
        rounded,
        dtype: op_plan.config.dtype,
    }])
}

/// The sums over ranks, and the magnitudes of the sums that nodes of several ranks round to bf16 for other nodes.
fn sums(plan: &KernelPlan, op_plan: &CollectivePlan, ranks: &[Vec<f32>]) -> (Vec<f32>, Vec<f32>) {
    let topology = plan.spec.topology();
    let elements = ranks.first().map_or(0, Vec::len);
    let (mut values, mut rounded) = (vec![0.0; elements], vec![0.0; elements]);
    let rounds =
        topology.nodes > 1 && topology.local_world > 1 && op_plan.config.dtype == Dtype::Bf16;
    for node in ranks.chunks(topology.local_world as usize) {
        for index in 0..elements {
            let sum: f64 = node.iter().map(|x| f64::from(x[index])).sum();
            values[index] += sum;
            rounded[index] += if rounds { sum.abs() as f32 } else { 0.0 };
        }
    }
    (
        values.into_iter().map(|sum: f64| sum as f32).collect(),
        rounded,
    )
}

/// Bytes that the references of all ranks need at the same time.
pub fn reference_bytes(plan: &KernelPlan, _: &CollectivePlan) -> u64 {
    matrix_sums_bytes(plan)
}
