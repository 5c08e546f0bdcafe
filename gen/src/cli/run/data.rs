//! Random operands of all ranks, and what the operator should make of them.
//!
//! The GPU tests have their own, as kernels: theirs must be fast at sizes that no CPU checks, these must not depend on
//! a GPU. They have no code in common.

use super::experts::{Routing, Sizes};
use super::reference::Matrix;
use super::{attention, experts, gemm};
use mkernel::half::bf16;
use mkernel::spec::abi::Operand;
use mkernel::spec::plan::Body;
use mkernel::{Dtype, KernelPlan, Problem};

/// Elements of an operand, by rank.
type Elements<T> = (Operand, Vec<Vec<T>>);

/// What a call reads: of each operand the elements of every rank, as many as in the plan.
#[derive(Default, PartialEq)]
pub struct Inputs {
    matrices: Vec<Elements<bf16>>,
    numbers: Vec<Elements<i32>>,
    fractions: Vec<Elements<f32>>,
}

fn find<T>(all: &[Elements<T>], wanted: Operand) -> &[Vec<T>] {
    let found = all.iter().find(|(operand, _)| *operand == wanted);
    found.map_or(&[], |(_, ranks)| ranks)
}

impl Inputs {
    /// An operand's elements, by rank; none if the kernel does not have it.
    pub fn of(&self, wanted: Operand) -> &[Vec<bf16>] {
        find(&self.matrices, wanted)
    }

    /// The same of one of int32.
    pub fn numbers(&self, wanted: Operand) -> &[Vec<i32>] {
        find(&self.numbers, wanted)
    }

    /// The same of one of fp32.
    pub fn fractions(&self, wanted: Operand) -> &[Vec<f32>] {
        find(&self.fractions, wanted)
    }
}

/// Random operands that depend on plan, seed and call alone.
pub fn inputs(plan: &KernelPlan, seed: u64, call: u32) -> Inputs {
    let fill = |operand: Operand, stream: u64| {
        let is_common = match plan.spec.problem() {
            Problem::Gemm(config) => gemm::is_common(config, operand),
            _ => false,
        };
        (0..plan.spec.world())
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
    let specs = (1..).zip(&plan.operands);
    let specs = specs.filter(|(_, spec)| !spec.written && spec.dtype == Dtype::Bf16);
    let mut inputs = Inputs {
        matrices: specs
            .map(|(stream, spec)| (spec.operand, fill(spec.operand, stream)))
            .collect(),
        ..Inputs::default()
    };
    match &plan.body {
        Body::Dispatch(body) => {
            let sizes = Sizes::of_dispatch(plan, body);
            let (ids, counts) = experts::choose(sizes, seed, call);
            let counts = counts.into_iter().map(|count| vec![count]).collect();
            inputs.numbers = vec![(Operand::Ids, ids), (Operand::Count, counts)];
        }
        Body::Combine(body) => {
            let sizes = Sizes::of_combine(plan, body);
            let (ids, counts) = experts::choose(sizes, seed, call);
            let mut places = Routing::new(sizes, &ids, &counts).places;
            let choices = sizes.max_tokens * sizes.top_k;
            for places in &mut places {
                places.resize(choices, -1); // of tokens that there are not
            }
            let counts = counts.into_iter().map(|count| vec![count]).collect();
            inputs.numbers = vec![(Operand::Places, places), (Operand::Count, counts)];
            let mut random = Random(seed ^ u64::from(call));
            let gates = (0..sizes.world)
                .map(|_| (0..choices).map(|_| random.element().to_f32()).collect())
                .collect();
            inputs.fractions = vec![(Operand::Gates, gates)];
        }
        Body::Gemm(_) | Body::Attention(_) => {}
    }
    inputs
}

/// Elements of an operand on `rank`.
pub fn elems(plan: &KernelPlan, operand: Operand, rank: u32) -> usize {
    let spec = plan.operands.iter().find(|spec| spec.operand == operand);
    spec.map_or(0, |spec| spec.rows.on(rank) * spec.cols) as usize
}

/// The results of `rank`, in fp32 and in the order of the plan's operands; none for an operator that has no reference
/// here.
pub fn expected(
    plan: &KernelPlan,
    inputs: &Inputs,
    rank: u32,
    threads: usize,
) -> Option<Vec<Matrix>> {
    match &plan.body {
        Body::Gemm(body) => Some(vec![gemm::expected(plan, body, inputs, rank, threads)?]),
        Body::Attention(body) => Some(attention::expected(plan, body, inputs, rank, threads)),
        Body::Dispatch(body) => Some(experts::expected_of_dispatch(
            plan, body, inputs, rank, threads,
        )),
        Body::Combine(body) => Some(experts::expected_of_combine(plan, body, inputs, rank)),
    }
}

/// splitmix64: numbers that differ for seeds that differ little.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// In 0 .. end.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// In -1 .. 1, with all bits of a bf16.
    fn element(&mut self) -> bf16 {
        bf16::from_f32((self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mkernel::{BLayout, Device, Dim, GemmConfig, GemmOp, KernelConfig, KernelSpec};

    #[test]
    fn every_call_rank_and_operand_has_its_own_numbers() {
        let config = GemmConfig {
            m: Dim::Static(3),
            n: Dim::Static(16),
            k: Dim::Static(64),
            b_layout: BLayout::Nk,
            ..GemmConfig::new(GemmOp::AgGemm)
        };
        let spec = KernelSpec::validate(KernelConfig::new(2, config));
        let plan = KernelPlan::new(&spec.expect("valid"), &Device::simulated(4)).expect("a plan");
        let all: Vec<Inputs> = [(1, 0), (1, 1), (2, 0)]
            .map(|(seed, call)| inputs(&plan, seed, call))
            .into();
        let sizes = |matrices: &[Vec<bf16>]| matrices.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(
            sizes(all[0].of(Operand::A)),
            [2 * 64, 64],
            "the last rank has fewer rows"
        );
        assert_eq!(sizes(all[0].of(Operand::B)), [16 * 64; 2]);
        let mut starts: Vec<Vec<u16>> = all
            .iter()
            .flat_map(|inputs| inputs.matrices.iter().flat_map(|(_, ranks)| ranks))
            .map(|matrix| matrix[..8].iter().map(|x| x.to_bits()).collect())
            .collect();
        starts.sort();
        starts.dedup();
        assert_eq!(starts.len(), 12);
        assert!(inputs(&plan, 1, 0) == all[0], "equal seeds, equal numbers");
        assert!(all[0].of(Operand::Bias).is_empty());

        let reference = expected(&plan, &all[0], 1, 2).expect("a reference");
        let sizes: Vec<_> = reference.iter().map(|c| (c.values.len(), c.cols)).collect();
        assert_eq!(sizes, [(3 * 16, 16)]);
    }
}
