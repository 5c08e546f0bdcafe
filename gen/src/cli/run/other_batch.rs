//! Another batch of a batch-invariant kernel: some rows of the first call, whose results must have equal bits.

use super::inputs::Inputs;
use super::ranks::Results;
use mkernel::spec::abi::OperandSpec;
use mkernel::spec::{Device, Dim, Problem, Shape, SizedSpec};
use mkernel::{KernelConfig, KernelPlan, Operand};

/// Rows of the first call of a kernel in another order, as a call of a kernel for exactly these rows.
pub struct OtherBatch {
    pub config: KernelConfig,
    pub shape: Shape,
    pub inputs: Inputs,
    /// The rows of the first call that the batch has, in its order.
    rows: Vec<usize>,
}

impl OtherBatch {
    /// The last half of the rows of the first call, in reverse order. `None` if the kernel does not promise equal bits, or takes
    /// tokens, whose routes would have to be drawn again.
    pub fn of(config: &KernelConfig, plan: &KernelPlan, first: &Inputs) -> Option<Self> {
        let (mut config, mut shape) = (config.clone(), plan.shape());
        let (m, most) = match (&mut config.problem, &mut shape) {
            (Problem::Gemm(of), Shape::Gemm(shape)) if of.batch_invariant => {
                (&mut of.m, &mut shape.m)
            }
            (Problem::Collective(of), Shape::Collective(shape)) if of.batch_invariant => {
                (&mut of.m, &mut shape.m)
            }
            _ => return None,
        };
        let all = first.rows.unwrap_or(*most) as usize;
        let rows: Vec<usize> = (all / 2..all).rev().collect();
        *most = rows.len() as u64;
        *m = Dim::Static(*most);
        let spec = SizedSpec::for_sizes(config.clone(), shape).ok()?;
        let operands = KernelPlan::new(&spec, &Device::default())
            .ok()?
            .operands()
            .to_vec();
        let mut floats = Vec::new();
        for (operand, of_ranks) in &first.floats {
            let specs = [&first.operands, &operands].map(|all| spec_of(all, *operand));
            let [Some(before), Some(after)] = specs else {
                continue;
            };
            let values = match has_rows_of_batch(*operand) {
                true => taken(of_ranks, [before, after], &rows),
                false => of_ranks.clone(),
            };
            floats.push((*operand, values));
        }
        let inputs = Inputs {
            rows: None,
            operands,
            floats,
            numbers: Vec::new(),
        };
        Some(Self {
            config,
            shape,
            inputs,
            rows,
        })
    }

    /// Whether the results of all ranks have the bits that the first call has for these rows.
    pub fn agrees(&self, first: &Inputs, of_first: &[&Results], found: &[&Results]) -> bool {
        let mut results = self.inputs.operands.iter().filter(|spec| spec.written);
        results.all(|after| {
            let Some(before) = spec_of(&first.operands, after.operand) else {
                return false;
            };
            let of = |all: &[&Results]| -> Vec<Vec<f32>> {
                let of_rank = |results: &&Results| {
                    let mut named = results.iter();
                    let named = named.find(|(name, _)| *name == after.operand.name());
                    named.map(|(_, values)| values.clone())
                };
                all.iter().filter_map(of_rank).collect()
            };
            let expected = taken(&of(of_first), [before, after], &self.rows);
            let bits = |all: Vec<Vec<f32>>| {
                let values = all.into_iter().flatten();
                values.map(f32::to_bits).collect::<Vec<_>>()
            };
            bits(expected) == bits(of(found))
        })
    }
}

fn spec_of(all: &[OperandSpec], operand: Operand) -> Option<&OperandSpec> {
    all.iter().find(|spec| spec.operand == operand)
}

/// Whether the rows of an input are rows of the batch, and not of a weight.
const fn has_rows_of_batch(operand: Operand) -> bool {
    matches!(
        operand,
        Operand::A | Operand::AScales | Operand::Residual | Operand::X
    )
}

/// The elements of these rows of an operand on each rank. A rank has all rows of the batch, or the ranks share the rows.
fn taken(
    of_ranks: &[Vec<f32>],
    [before, after]: [&OperandSpec; 2],
    rows: &[usize],
) -> Vec<Vec<f32>> {
    let ranks = 0..of_ranks.len() as u32;
    let rows_of = |spec: &OperandSpec, rank| spec.rows.on(rank) as usize;
    let are_shared = ranks
        .clone()
        .map(|rank| rows_of(after, rank))
        .sum::<usize>()
        == rows.len();
    let all = of_ranks.concat();
    let mut next = 0;
    ranks
        .map(|rank| {
            let lines = match are_shared {
                true => &all,
                false => &of_ranks[rank as usize],
            };
            let cols = before.cols as usize;
            let first = if are_shared { next } else { 0 };
            next = first + rows_of(after, rank);
            let line = |row: &usize| &lines[row * cols..][..cols];
            rows[first..next].iter().flat_map(line).copied().collect()
        })
        .collect()
}
