//! Chooses a plan for a spec.

use super::buckets;
use super::kernel::KernelPlan;
use crate::by_problem;
use crate::config::Problem;
use crate::device::Device;
use crate::diagnostic::Diagnostics;
use crate::ops::attention::plan as attention;
use crate::ops::collective::plan as collective;
use crate::ops::combine::plan as combine;
use crate::ops::dispatch::plan as dispatch;
use crate::ops::gemm::plan as gemm;
use crate::spec::KernelSpec;

impl KernelPlan {
    /// Chooses the plan that the cost model expects to be fastest among those that `spec` allows. If each call gives the rows,
    /// there may be several plans, each for a range of rows.
    ///
    /// # Errors
    /// A dimension that is still dynamic, or a fixed choice that fits no plan: all at once; or operands and workspace that
    /// the device's memory cannot hold.
    pub fn new(spec: &KernelSpec, device: &Device) -> Result<Self, Diagnostics> {
        let device = &device.limited_to(spec.config().max_sms);
        let plan = buckets::divided(fastest(spec, device)?, |spec| fastest(spec, device).ok());
        plan.check_memory()?;
        if let Some(network) = &plan.network {
            network.check()?;
        }
        Ok(plan)
    }
}

/// The fastest plan for all numbers of rows.
fn fastest(spec: &KernelSpec, device: &Device) -> Result<KernelPlan, Diagnostics> {
    let planned = by_problem!(spec.problem(), Problem(config) => plan(spec, config, device));
    planned.unwrap_or_else(|| Err(unknown_dims(spec)))
}

fn unknown_dims(spec: &KernelSpec) -> Diagnostics {
    let mut found = Diagnostics::default();
    for field in spec.unknown_dims() {
        found.push(
            field,
            "a dynamic dimension has no plan before its size is known",
            format!("give its size, as in --{field} 4096"),
        );
    }
    found
}
