//! Inputs and reference of collectives.

use super::inputs::{Inputs, Random};
use super::reference::{Matrix, matrix_sums_bytes};
use mkernel::Operand;
use mkernel::spec::abi::OperandSpec;
use mkernel::spec::plan::CollectivePlan;
use mkernel::{
    KernelPlan,
    spec::{CollectiveOp, Dtype},
};

/// A random tensor of each rank.
pub fn inputs(plan: &KernelPlan, op_plan: &CollectivePlan, seed: u64, call: u32) -> Inputs {
    // All ranks add the same to the sum.
    let is_common = |operand| operand != Operand::X;
    let mut inputs = Inputs::random(plan, seed, call, is_common);
    if op_plan.config.dtype == Dtype::Fp32 {
        let of_rank = |operand, stream: u64, rank: u32| {
            let of_rank = if is_common(operand) { 0 } else { rank };
            let stream = stream << 48 | u64::from(call) << 32 | u64::from(of_rank);
            let mut random = Random(seed ^ Random(stream).next());
            let elems = 0..inputs.elems(operand, rank);
            elems.map(|_| random.fraction()).collect()
        };
        let specs = (0..).zip(&plan.operands);
        let specs = specs.filter(|(_, spec)| !spec.written);
        let fill = |(stream, spec): (u64, &OperandSpec)| {
            let ranks = 0..plan.spec.world();
            let all = ranks.map(|rank| of_rank(spec.operand, stream, rank));
            (spec.operand, all.collect())
        };
        inputs.fractions = specs.map(fill).collect();
    }
    inputs
}

/// The elements of an operand on each rank.
fn of(op_plan: &CollectivePlan, inputs: &Inputs, operand: Operand) -> Vec<Vec<f32>> {
    match op_plan.config.dtype {
        Dtype::Bf16 => {
            let values = inputs.of(operand).iter();
            values
                .map(|x| x.iter().map(|x| x.to_f32()).collect())
                .collect()
        }
        _ => inputs.fractions(operand).to_vec(),
    }
}

/// The expected Y of `rank`, and with a norm the new residual.
pub fn expected(
    plan: &KernelPlan,
    op_plan: &CollectivePlan,
    inputs: &Inputs,
    rank: u32,
    _threads: usize,
) -> Option<Vec<Matrix>> {
    let ranks = of(op_plan, inputs, Operand::X);
    let (values, rounded) = match op_plan.config.op {
        CollectiveOp::AllGather => (ranks.concat(), Vec::new()),
        CollectiveOp::AllReduce => sums(plan, op_plan, &ranks),
        CollectiveOp::ReduceScatter => {
            let elems = |rank| inputs.elems(Operand::Y, rank);
            let before: usize = (0..rank).map(elems).sum();
            let own = before..before + elems(rank);
            let (values, rounded) = sums(plan, op_plan, &ranks);
            (values[own.clone()].to_vec(), rounded[own].to_vec())
        }
    };
    let sum = Matrix {
        values,
        cols: op_plan.shape.n as usize,
        terms: ranks.len(),
        rounded,
        dtype: op_plan.config.dtype,
    };
    let epilogue = op_plan.config.epilogue;
    if !epilogue.normalises() {
        return Some(vec![sum]);
    }
    let of_rank = |operand| {
        let all = of(op_plan, inputs, operand).into_iter();
        all.take(1).flatten().collect::<Vec<f32>>()
    };
    let addends = (of_rank(Operand::Bias), of_rank(Operand::Residual));
    let z = sum.plus(&addends.0, &addends.1);
    let y = z.rms_norm(&of_rank(Operand::Weight), epilogue.eps.value());
    Some(vec![y, z])
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
