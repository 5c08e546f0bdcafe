//! Renders the [`CudaSource`] of a plan from templates.
//!
//! The template of an operator selects headers and policies. It extends `templates/kernel.cu.tera`, which prints
//! constants, regions and roles of the plan.

mod assembly;
mod attention;
mod buckets;
mod collective;
mod combine;
mod dispatch;
mod gemm;
mod roles;
mod scales;
#[cfg(feature = "jit")]
mod tera;
mod text;

#[cfg(feature = "jit")]
use crate::error::GenError;
use crate::kernel_template::KernelTemplate;
#[cfg(feature = "jit")]
use crate::source::CudaSource;
use assembly::AssemblyContext;
use mkernel_spec::KernelPlan;
use mkernel_spec::plan::{Body, OpPlan};
pub(crate) use text::layout_assertion;

/// Renders the kernel of a plan. The same plan always gives the same text.
///
/// # Errors
/// [`GenError::Render`] if a template is wrong, which is a defect of this crate.
#[cfg(feature = "jit")]
pub fn render(plan: &KernelPlan) -> Result<CudaSource, GenError> {
    KernelTemplate::of(plan).render()
}

impl KernelTemplate {
    /// The kernel of a plan. The same plan always gives the same template and variables.
    #[must_use]
    pub fn of(plan: &KernelPlan) -> Self {
        if plan.has_buckets() {
            let bodies = plan.bodies.iter();
            let assembled = bodies.map(|body| assembled(plan, body)).collect();
            return buckets::template(plan, assembled);
        }
        let template = format!("ops/{}.cu.tera", plan.spec.op().name());
        Self::new(
            &plan.id,
            (plan.device.arch, plan.device.backend),
            &template,
            &assembled(plan, plan.body()),
        )
    }
}

/// The variables of a body of a kernel.
fn assembled<'a>(plan: &'a KernelPlan, body: &'a Body) -> AssemblyContext<'a> {
    let topology = plan.spec.topology();
    let assembly = match &body.op_plan {
        OpPlan::Gemm(of) => gemm::assembly(body, of, topology),
        OpPlan::Attention(of) => attention::assembly(body, of, topology),
        OpPlan::Dispatch(of) => dispatch::assembly(body, of, topology),
        OpPlan::Combine(of) => combine::assembly(body, of, topology),
        OpPlan::Collective(of) => collective::assembly(body, of, topology),
    };
    AssemblyContext::new(plan, body, assembly)
}
