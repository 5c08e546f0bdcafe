//! The documentation of structs with `#[fused_kernel]`.

mod attention;
mod collective;
mod combine;
mod dispatch;
mod gemm;
mod phrases;

use mkernel_spec::by_problem;
use mkernel_spec::plan::OpPlan;
use mkernel_spec::{KernelConfig, KernelPlan, Problem};

/// Lines of Markdown with the semantics, the operands of each rank, and the plan if all sizes are known.
pub fn lines(config: &KernelConfig, plan: Option<&KernelPlan>) -> Vec<String> {
    let mut lines = vec![
        String::new(),
        format!("# Fused kernel: `{}`", config.op()),
        String::new(),
    ];
    lines.extend(by_problem!(&config.problem, Problem(of) => lines(of, config)));
    lines.push(String::new());
    lines.push(match plan {
        Some(plan) => planned(plan),
        None => "Planned and compiled by `prepare`, when all sizes are known.".to_owned(),
    });
    lines
}

fn planned(plan: &KernelPlan) -> String {
    let how = by_problem!(&plan.op_plan, OpPlan(op_plan) => planned(op_plan));
    format!(
        "Planned for {}: {how}; bound {:.0} µs ({}), estimate {:.0} µs.",
        plan.device.name,
        plan.bound.us(),
        plan.bound.reason(),
        plan.estimate_us,
    )
}
