//! Random operands of all ranks, and what the operator should make of them.
//!
//! The GPU tests have their own, as kernels: theirs must be fast at sizes that no CPU checks, these must not depend on
//! a GPU. They have no code in common.

use super::reference::{Addends, Matrix, multiply};
use mkernel::half::bf16;
use mkernel::spec::abi::Operand;
use mkernel::{BLayout, KernelPlan, Op};

/// A call's operands, by rank; rows and columns as in the plan.
pub struct Inputs {
    pub a: Vec<Vec<bf16>>,
    pub b: Vec<Vec<bf16>>,
    /// Empty where the kernel has none.
    pub bias: Vec<Vec<bf16>>,
    pub residual: Vec<Vec<bf16>>,
}

/// Random operands that depend on plan, seed and call alone.
pub fn inputs(plan: &KernelPlan, seed: u64, call: u32) -> Inputs {
    let world = plan.spec.world();
    let op = plan.spec.op();
    let fill = |operand: Operand, stream: u64| {
        // Who adds up a part of C adds its own.
        let is_common = match operand {
            Operand::Bias => op.reduces(),
            Operand::Residual => op == Op::GemmAr,
            _ => false,
        };
        (0..world)
            .map(|rank| {
                let of_rank = if is_common { 0 } else { rank };
                let stream = stream << 48 | u64::from(call) << 8 | u64::from(of_rank);
                let mut random = Random(seed ^ Random(stream).next());
                (0..elems(plan, operand, rank))
                    .map(|_| random.element())
                    .collect()
            })
            .collect()
    };
    Inputs {
        a: fill(Operand::A, 1),
        b: fill(Operand::B, 2),
        bias: fill(Operand::Bias, 3),
        residual: fill(Operand::Residual, 4),
    }
}

/// Elements of an operand on `rank`.
pub fn elems(plan: &KernelPlan, operand: Operand, rank: u32) -> usize {
    let spec = plan.operands.iter().find(|spec| spec.operand == operand);
    spec.map_or(0, |spec| spec.rows.on(rank) * spec.cols) as usize
}

/// The result of `rank`, in fp32; none for an operator that has no reference here.
pub fn expected(plan: &KernelPlan, inputs: &Inputs, rank: u32, threads: usize) -> Option<Matrix> {
    let shape = plan.shape;
    let (n, k) = (shape.n as usize, shape.k as usize);
    let b_is_transposed = plan.spec.b_layout() == BLayout::Nk;
    let product = |a: &[bf16], b: &[bf16]| multiply(a, b, b_is_transposed, (n, k), threads);
    let sum = match plan.spec.op() {
        Op::AgGemm => product(&inputs.a.concat(), &inputs.b[rank as usize]),
        op @ (Op::GemmRs | Op::GemmAr) => {
            let parts = inputs.a.iter().zip(&inputs.b).map(|(a, b)| product(a, b));
            let sum = Matrix::sum(parts.collect())?;
            if op == Op::GemmAr {
                sum
            } else {
                let before: usize = (0..rank).map(|rank| elems(plan, Operand::C, rank)).sum();
                sum.part(before..before + elems(plan, Operand::C, rank))
            }
        }
        _ => return None,
    };
    let addends = Addends {
        bias: &inputs.bias[rank as usize],
        residual: &inputs.residual[rank as usize],
    };
    Some(sum.finish(plan.spec.epilogue(), addends))
}

/// splitmix64: numbers that differ for seeds that differ little.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// In -1 .. 1, with all bits of a bf16.
    fn element(&mut self) -> bf16 {
        bf16::from_f32((self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mkernel::{Device, Dim, Epilogue, KernelConfig, KernelSpec, Tuning};

    #[test]
    fn every_call_rank_and_operand_has_its_own_numbers() {
        let spec = KernelSpec::validate(KernelConfig {
            name: None,
            op: Op::AgGemm,
            world: 2,
            m: Dim::Static(3),
            n: Dim::Static(16),
            k: Dim::Static(64),
            b_layout: BLayout::Nk,
            epilogue: Epilogue::default(),
            tuning: Tuning::default(),
        });
        let plan = KernelPlan::new(&spec.expect("valid"), &Device::simulated(4)).expect("a plan");
        let all: Vec<Inputs> = [(1, 0), (1, 1), (2, 0)]
            .map(|(seed, call)| inputs(&plan, seed, call))
            .into();
        let sizes = |matrices: &[Vec<bf16>]| matrices.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(
            sizes(&all[0].a),
            [2 * 64, 64],
            "the last rank has fewer rows"
        );
        assert_eq!(sizes(&all[0].b), [16 * 64; 2]);
        let mut starts: Vec<Vec<u16>> = all
            .iter()
            .flat_map(|inputs| inputs.a.iter().chain(&inputs.b))
            .map(|matrix| matrix[..8].iter().map(|x| x.to_bits()).collect())
            .collect();
        starts.sort();
        starts.dedup();
        assert_eq!(starts.len(), 12);
        assert_eq!(
            inputs(&plan, 1, 0).a,
            all[0].a,
            "equal seeds, equal numbers"
        );

        let reference = expected(&plan, &all[0], 1, 2).expect("a reference");
        assert_eq!((reference.values.len(), reference.cols), (3 * 16, 16));
    }
}
