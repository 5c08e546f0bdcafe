//! Renders the [`CudaSource`] of a plan from templates.
//!
//! The template of an operator selects headers and policies. It extends `templates/kernel.cu.tera`, which prints
//! constants, regions and roles of the plan.

mod assembly;
mod attention;
mod collective;
mod combine;
mod dispatch;
mod fabric_test;
mod gemm;
mod roles;
mod template;
mod text;

use crate::error::GenError;
use crate::source::CudaSource;
use assembly::AssemblyContext;
use mkernel_spec::KernelPlan;
use mkernel_spec::by_problem;
use mkernel_spec::plan::OpPlan;
use template::print;

pub use fabric_test::render_fabric_test;

/// Renders the kernel of a plan. The same plan always gives the same text.
///
/// # Errors
/// [`GenError::Render`] if a template is wrong, which is a defect of this crate.
pub fn render(plan: &KernelPlan) -> Result<CudaSource, GenError> {
    let assembly = by_problem!(&plan.op_plan, OpPlan(op_plan) => assembly(plan, op_plan));
    let template = format!("ops/{}.cu.tera", plan.spec.op().name());
    let context = AssemblyContext::new(plan, assembly);
    print(&plan.id, plan.device.target, &template, &context)
}
