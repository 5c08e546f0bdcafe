//! Random operands, expected results, and another batch of every operator.

use super::inputs::Inputs;
use super::other_batch::{OtherBatch, of_rows};
use super::reference::{Matrix, matrix_sums_bytes};
use super::routing::TokenLoad;
use super::{attention, collective, combine, dispatch, gemm, gemm_combine, moe_layer};
use mkernel::spec::plan::OpPlan;
use mkernel::{KernelConfig, KernelPlan};

/// Random operands. They depend on nothing but the arguments.
pub fn inputs(plan: &KernelPlan, load: TokenLoad, seed: u64, call: u32) -> Inputs {
    match &plan.body().op_plan {
        OpPlan::Gemm(of) => gemm::inputs(plan, of, seed, call),
        OpPlan::Attention(of) => attention::inputs(plan, of, seed, call),
        OpPlan::Dispatch(of) if !of.dispatches() => {
            gemm_combine::inputs(plan, of, load, seed, call)
        }
        OpPlan::Dispatch(of) if of.returns() => moe_layer::inputs(plan, of, load, seed, call),
        OpPlan::Dispatch(of) => dispatch::inputs(plan, of, load, seed, call),
        OpPlan::Combine(of) => combine::inputs(plan, of, load, seed, call),
        OpPlan::Collective(of) => collective::inputs(plan, of, seed, call),
    }
}

/// The expected results of `rank`, in the order of the plan's operands. None if the operator has no reference.
pub fn expected(
    plan: &KernelPlan,
    inputs: &Inputs,
    rank: u32,
    threads: usize,
) -> Option<Vec<Matrix>> {
    match &plan.body().op_plan {
        OpPlan::Gemm(of) => gemm::expected(plan, of, inputs, rank, threads),
        OpPlan::Attention(of) => attention::expected(plan, of, inputs, rank, threads),
        OpPlan::Dispatch(of) if !of.dispatches() => {
            gemm_combine::expected(plan, of, inputs, rank, threads)
        }
        OpPlan::Dispatch(of) if of.returns() => {
            moe_layer::expected(plan, of, inputs, rank, threads)
        }
        OpPlan::Dispatch(of) => dispatch::expected(plan, of, inputs, rank, threads),
        OpPlan::Combine(of) => combine::expected(plan, of, inputs, rank, threads),
        OpPlan::Collective(of) => collective::expected(plan, of, inputs, rank, threads),
    }
}

/// Some lines of the first call in a call of another kernel. `None` if the kernel does not promise that they have equal bits there.
pub fn other_batch(config: &KernelConfig, plan: &KernelPlan, first: &Inputs) -> Option<OtherBatch> {
    match &plan.body().op_plan {
        OpPlan::Gemm(_) | OpPlan::Collective(_) => of_rows(config, plan, first),
        OpPlan::Attention(of) => attention::other_batch(config, plan, of, first),
        OpPlan::Dispatch(of) if !of.dispatches() => {
            gemm_combine::other_batch(config, plan, of, first)
        }
        OpPlan::Dispatch(of) => dispatch::other_batch(config, plan, of, first),
        OpPlan::Combine(of) => combine::other_batch(config, plan, of, first),
    }
}

/// Bytes that the references of all ranks need at the same time, besides operands and results.
pub fn reference_bytes(plan: &KernelPlan) -> u64 {
    match &plan.body().op_plan {
        OpPlan::Gemm(of) if of.config.op.reduces() => gemm::partial_sums_bytes(plan, of),
        _ => matrix_sums_bytes(plan),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mkernel::Operand;
    use mkernel::{
        KernelConfig,
        spec::{BLayout, Device, Dim, GemmConfig, GemmOp, SizedSpec},
    };

    #[test]
    fn every_call_rank_and_operand_has_its_own_numbers() {
        let config = GemmConfig {
            m: Dim::Static(3),
            n: Dim::Static(16),
            k: Dim::Static(64),
            b_layout: BLayout::Nk,
            ..GemmConfig::new(GemmOp::AgGemm)
        };
        let spec = SizedSpec::validate(KernelConfig::new(2, config));
        let plan = KernelPlan::new(&spec.expect("valid"), &Device::simulated(4)).expect("a plan");
        let all: Vec<Inputs> = [(1, 0), (1, 1), (2, 0)]
            .map(|(seed, call)| inputs(&plan, TokenLoad::Any, seed, call))
            .into();
        let sizes = |matrices: &[Vec<f32>]| matrices.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(
            sizes(all[0].of(Operand::A)),
            [2 * 64, 64],
            "the last rank has fewer rows"
        );
        assert_eq!(sizes(all[0].of(Operand::B)), [16 * 64; 2]);
        let mut starts: Vec<Vec<u32>> = all
            .iter()
            .flat_map(|inputs| inputs.floats.iter().flat_map(|(_, ranks)| ranks))
            .map(|matrix| matrix[..8].iter().map(|x| x.to_bits()).collect())
            .collect();
        starts.sort();
        starts.dedup();
        assert_eq!(starts.len(), 12);
        assert!(
            inputs(&plan, TokenLoad::Any, 1, 0) == all[0],
            "equal seeds, equal numbers"
        );
        assert!(all[0].of(Operand::Bias).is_empty());

        let reference = expected(&plan, &all[0], 1, 2).expect("a reference");
        let sizes: Vec<_> = reference.iter().map(|c| (c.values.len(), c.cols)).collect();
        assert_eq!(sizes, [(3 * 16, 16)]);
    }
}
