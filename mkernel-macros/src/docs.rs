//! The documentation of structs with `#[fused_kernel]`.

mod attention;
mod collective;
mod combine;
mod dispatch;
mod gemm;
mod operand;
mod phrases;

pub use operand::OperandDoc;
pub use phrases::Ranks;

use mkernel_spec::plan::OpPlan;
use mkernel_spec::{KernelConfig, KernelPlan, Problem};

/// The operands of a kernel, in the order of its plan.
pub fn operands(config: &KernelConfig, ranks: Ranks) -> Vec<OperandDoc> {
    match &config.problem {
        Problem::Gemm(of) => gemm::operands(of, ranks),
        Problem::Attention(of) => attention::operands(of, ranks),
        Problem::Dispatch(of) => dispatch::operands(of, ranks),
        Problem::Combine(of) => combine::operands(of, ranks),
        Problem::Collective(of) => collective::operands(of, ranks),
    }
}

/// Paragraphs about the computation of the kernel.
fn semantics(config: &KernelConfig, ranks: Ranks) -> Vec<String> {
    match &config.problem {
        Problem::Gemm(of) => gemm::semantics(of, ranks),
        Problem::Attention(of) => attention::semantics(of, ranks),
        Problem::Dispatch(of) => dispatch::semantics(of, ranks),
        Problem::Combine(of) => combine::semantics(of, ranks),
        Problem::Collective(of) => collective::semantics(of, ranks),
    }
}

/// Lines of Markdown with the semantics, the operands of each rank, and the plan if all sizes are known.
pub fn lines(config: &KernelConfig, ranks: Ranks, plan: Option<&KernelPlan>) -> Vec<String> {
    let mut lines = vec![
        String::new(),
        format!("# Fused kernel: `{}`", config.op()),
        String::new(),
    ];
    for paragraph in semantics(config, ranks) {
        lines.extend([paragraph, String::new()]);
    }
    lines.push("| operand | on each rank |".to_owned());
    lines.push("|---|---|".to_owned());
    for operand in operands(config, ranks) {
        let name = operand.operand.name();
        lines.push(format!("| `{name}` | {} |", operand.summary()));
    }
    lines.push(String::new());
    lines.push(match plan {
        Some(plan) => planned(plan),
        None => "Planned and compiled by `prepare`, when all sizes are known.".to_owned(),
    });
    lines
}

fn planned(plan: &KernelPlan) -> String {
    let how = match &plan.body().op_plan {
        OpPlan::Gemm(of) => gemm::planned(of),
        OpPlan::Attention(of) => attention::planned(of),
        OpPlan::Dispatch(of) => dispatch::planned(of),
        OpPlan::Combine(of) => combine::planned(of),
        OpPlan::Collective(of) => collective::planned(of),
    };
    format!(
        "Planned for {}: {how}; bound {:.0} µs ({}), estimate {:.0} µs.",
        plan.device.name,
        plan.body().bound.us(),
        plan.body().bound.reason(),
        plan.body().estimate_us,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use mkernel_spec::{
        CollectiveOp, Dim, DispatchOp, Dtype, Epilogue, GemmOp, Norm, Op, SizedSpec,
    };

    /// Configurations of all operators with known sizes, of GEMM operators with an epilogue, and of operators that normalise
    /// rows.
    fn configs() -> Vec<KernelConfig> {
        let sized = |op: Op| {
            let mut config = KernelConfig::new(2, op.problem());
            if let Problem::Dispatch(of) = &mut config.problem {
                of.swiglu = of.op == DispatchOp::MoeLayer;
            }
            for (field, dim) in config.problem.dims_mut() {
                *dim = Dim::Static(match field.name() {
                    "batch" => 1,
                    "top_k" => 2,
                    "experts" | "heads" | "kv_heads" => 8,
                    "head_dim" => 128,
                    _ => 1024,
                });
            }
            config
        };
        let mut configs: Vec<_> = Op::ALL.into_iter().map(sized).collect();
        let finished = configs.clone().into_iter().filter_map(|mut config| {
            if let Problem::Gemm(gemm) = &mut config.problem {
                gemm.epilogue = Epilogue {
                    bias: true,
                    residual: true,
                    output: Some(Dtype::Fp32),
                    ..Epilogue::default()
                };
                return Some(config);
            }
            None
        });
        let finished: Vec<_> = finished.collect();
        let normalised = configs.clone().into_iter().filter_map(|mut config| {
            match &mut config.problem {
                Problem::Gemm(gemm) if gemm.op == GemmOp::GemmAr => {
                    (gemm.epilogue.residual, gemm.epilogue.norm) = (true, Norm::Rms);
                }
                Problem::Collective(sum) if sum.op == CollectiveOp::AllReduce => {
                    let epilogue = &mut sum.epilogue;
                    (epilogue.bias, epilogue.residual) = (true, true);
                    epilogue.norm = Norm::Rms;
                }
                _ => return None,
            }
            Some(config)
        });
        let normalised: Vec<_> = normalised.collect();
        assert_eq!(normalised.len(), 2);
        configs.extend(finished);
        configs.extend(normalised);
        configs
    }

    #[test]
    fn operands_are_those_of_the_plan() {
        for config in configs() {
            let ranks = Ranks {
                world: None,
                nodes: None,
            };
            let documented = operands(&config, ranks);
            let documented: Vec<_> = documented
                .iter()
                .map(|operand| (operand.operand, operand.dtype, operand.written))
                .collect();
            let plan = SizedSpec::validate(config)
                .and_then(|spec| KernelPlan::new(&spec, &mkernel_spec::Device::h200()))
                .expect("a plan");
            let planned = plan.operands().iter();
            let planned: Vec<_> = planned
                .map(|spec| (spec.operand, spec.dtype, spec.written))
                .collect();
            assert_eq!(documented, planned, "{}", plan.id);
        }
    }
}
