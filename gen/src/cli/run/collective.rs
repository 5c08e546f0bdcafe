//! Inputs and reference of collectives.

use super::inputs::Inputs;
use super::quantised::Quantised;
use super::reference::{Matrix, rounding_error};
use mkernel::KernelPlan;
use mkernel::Operand;
use mkernel::spec::plan::CollectivePlan;
use mkernel::spec::{CollectiveOp, Dtype, Scales};

/// A random tensor of each rank.
pub fn inputs(plan: &KernelPlan, _: &CollectivePlan, seed: u64, call: u32) -> Inputs {
    // All ranks pass the same operands of the epilogue.
    Inputs::random(plan, seed, call, |operand| operand != Operand::X)
}

/// The expected Y of `rank`, with a norm the new residual, and with scales the scales of Y.
pub fn expected(
    plan: &KernelPlan,
    op_plan: &CollectivePlan,
    inputs: &Inputs,
    rank: u32,
    _threads: usize,
) -> Option<Vec<Matrix>> {
    let config = op_plan.config;
    if !config.op.reduces() {
        let cols = op_plan.shape.n;
        let y = moved(inputs, config.op, (Operand::X, Operand::Y), rank);
        let mut results = vec![exact(y, cols, config.dtype)];
        if config.scales != Scales::None {
            let scales = (Operand::XScales, Operand::YScales);
            let y_scales = moved(inputs, config.op, scales, rank);
            results.push(exact(y_scales, config.scales.of_row(cols), Dtype::Fp32));
        }
        return Some(results);
    }
    let ranks = inputs.of(Operand::X);
    let (values, errors) = match config.op {
        CollectiveOp::AllReduce => sums(plan, op_plan, ranks),
        _ => {
            let elems = |rank| inputs.elems(Operand::Y, rank);
            let before: usize = (0..rank).map(elems).sum();
            let own = before..before + elems(rank);
            let (values, errors) = sums(plan, op_plan, ranks);
            (values[own.clone()].to_vec(), errors[own].to_vec())
        }
    };
    let sum = Matrix {
        values,
        cols: op_plan.shape.n as usize,
        terms: ranks.len(),
        errors,
        dtype: config.dtype,
    };
    let epilogue = config.epilogue;
    if !epilogue.normalises() {
        return Some(vec![sum]);
    }
    let common = |operand| inputs.of(operand).first().map_or(&[][..], |all| all);
    let z = sum.plus(common(Operand::Bias), common(Operand::Residual));
    let y = z.rms_norm(common(Operand::Weight), epilogue.eps.value());
    Some(normalised(y, z, epilogue.result_scales))
}

/// The results of a kernel with the normalised rows `y` of `z`: the rows, the new residual, and with scales the scales of the rows.
pub(super) fn normalised(y: Matrix, z: Matrix, scales: Scales) -> Vec<Matrix> {
    let Some(share) = scales.shared_by(y.cols as u64) else {
        return vec![y, z];
    };
    let Quantised { elements, scales } = Quantised::of(&y, share as usize);
    vec![elements, z, scales]
}

/// The elements of an operand that `rank` gets from all ranks, and that nothing changes. `before` and `after` are the operand before
/// and after the call.
fn moved(
    inputs: &Inputs,
    op: CollectiveOp,
    (before, after): (Operand, Operand),
    rank: u32,
) -> Vec<f32> {
    let ranks = inputs.of(before);
    if op != CollectiveOp::AllToAll {
        // Only the root of a broadcast has rows.
        return ranks.concat();
    }
    let elems = |rank| inputs.elems(after, rank) / ranks.len();
    let first: usize = (0..rank).map(elems).sum();
    let own = first..first + elems(rank);
    let parts = ranks.iter().map(|x| &x[own.clone()]);
    parts.collect::<Vec<_>>().concat()
}

/// Elements that no rank has computed.
fn exact(values: Vec<f32>, cols: u64, dtype: Dtype) -> Matrix {
    Matrix {
        values,
        cols: cols as usize,
        terms: 0,
        errors: Vec::new(),
        dtype,
    }
}

/// The sums over ranks, and their errors: nodes of several ranks round their sums for other nodes.
fn sums(plan: &KernelPlan, op_plan: &CollectivePlan, ranks: &[Vec<f32>]) -> (Vec<f32>, Vec<f32>) {
    let topology = plan.spec.topology();
    let elements = ranks.first().map_or(0, Vec::len);
    let (mut values, mut errors) = (vec![0.0; elements], vec![0.0; elements]);
    let rounds = topology.nodes > 1 && topology.local_world > 1;
    for node in ranks.chunks(topology.local_world as usize) {
        for index in 0..elements {
            let sum: f64 = node.iter().map(|x| f64::from(x[index])).sum();
            values[index] += sum;
            if rounds {
                errors[index] += rounding_error(sum as f32, op_plan.config.dtype);
            }
        }
    }
    (
        values.into_iter().map(|sum: f64| sum as f32).collect(),
        errors,
    )
}
