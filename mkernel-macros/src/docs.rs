//! What rustdoc shows on a `#[fused_kernel]` struct.

mod attention;
mod collective;
mod combine;
mod dispatch;
mod gemm;

use mkernel_spec::by_problem;
use mkernel_spec::plan::OpPlan;
use mkernel_spec::{Dim, KernelConfig, KernelPlan, Problem};

/// Lines of Markdown: semantics, what each rank passes, and the plan where all sizes are known.
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
        None => "Planned and compiled at `prepare`, when every size is known.".to_owned(),
    });
    lines
}

/// `8 ranks of one node`, `16 ranks of 2 nodes`
fn ranks_on(world: u32, nodes: u32) -> String {
    match (world, nodes) {
        (1, _) => "One rank".to_owned(),
        (_, 1) => format!("{world} ranks of one node"),
        _ => format!("{world} ranks of {nodes} nodes"),
    }
}

/// What one rank has of a dimension that all have equal parts of.
fn part(dim: Dim, world: u32, name: &str) -> String {
    match dim.fixed() {
        Some(size) => (size / u64::from(world)).to_string(),
        None => format!("{name}/{world}"),
    }
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
