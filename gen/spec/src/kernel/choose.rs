//! Chooses a plan for a spec.

use super::buckets;
use super::op_plan::OpPlan;
use super::plan::{Body, KernelPlan};
use super::problem::SizedProblem;
use super::sized::SizedSpec;
use super::tuned::Tuned;
use crate::abi::MAX_OPERANDS;
use crate::config::Problem;
use crate::device::Device;
use crate::diagnostic::Diagnostics;
use crate::ops::{attention, collective, combine, dispatch, gemm};

/// The step of the number of SMs of operators that add up partial sums, unless these operators use all SMs.
const SMS_STEP: u32 = 4;

impl KernelPlan {
    /// Chooses the plan that was measured to be fastest ([`Tuned::shipped`]). Without a measurement it is the plan that the cost
    /// model expects to be fastest among those that `spec` allows. If each call gives the rows, there may be several bodies, each
    /// for a range of rows.
    ///
    /// # Errors
    /// Fixed choices that fit no plan, or operands and workspace that the device's memory cannot hold.
    pub fn new(spec: &SizedSpec, device: &Device) -> Result<Self, Diagnostics> {
        Self::with_tuned(spec, device, Tuned::shipped())
    }

    /// Chooses a plan as [`Self::new`] does, with these measured choices in place of the shipped ones.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_tuned(
        spec: &SizedSpec,
        device: &Device,
        tuned: &Tuned,
    ) -> Result<Self, Diagnostics> {
        let measured = tuned.choices(spec, device).and_then(|(chosen, times)| {
            let plan = Self::of_model(&chosen, device).ok()?;
            Some(Self {
                spec: spec.clone(),
                tuned: Some(times),
                ..plan
            })
        });
        measured.map_or_else(|| Self::of_model(spec, device), Ok)
    }

    /// Leaves all choices that `spec` does not fix to the cost model.
    fn of_model(spec: &SizedSpec, device: &Device) -> Result<Self, Diagnostics> {
        let device = &device.limited_to(most_sms(spec));
        let whole = fastest(spec, device)?;
        let plan = buckets::divided(spec, device, whole, |spec| fastest(spec, device).ok());
        debug_assert!(plan.operands().len() <= MAX_OPERANDS, "{}", plan.id);
        plan.check_memory()?;
        if let Some(network) = &plan.body().network {
            network.check()?;
        }
        Ok(plan)
    }
}

/// The largest number of SMs that a kernel may use and that suits the kernel.
///
/// An operator that adds up partial sums gets a multiple of four. A rank computes its own tiles a round of tiles later than the
/// corresponding tiles of other owners. A CTA that has own tiles in many successive rounds waits in each of these rounds for
/// another rank, which waits too. This happens if the number of CTAs exceeds whole rounds of all owners by 1 to 3
/// (`docs/performance.md#sms-of-operators-that-reduce`).
fn most_sms(spec: &SizedSpec) -> Option<u32> {
    let most = spec.config().max_sms?;
    Some(match spec.problem() {
        Problem::Gemm(config) if config.op.reduces() && spec.world() > 1 && most > SMS_STEP => {
            most - most % SMS_STEP
        }
        _ => most,
    })
}

/// The fastest body for all numbers of rows.
fn fastest(spec: &SizedSpec, device: &Device) -> Result<Body, Diagnostics> {
    let topology = spec.topology();
    Ok(match spec.sized_problem() {
        SizedProblem::Gemm(config, shape) => {
            gemm::plan::plan(config, *shape, topology, device)?.map(OpPlan::Gemm)
        }
        SizedProblem::Attention(config, shape) => {
            attention::plan::plan(config, *shape, topology, device)?.map(OpPlan::Attention)
        }
        SizedProblem::Dispatch(config, shape) => {
            dispatch::plan::plan(config, *shape, topology, device)?.map(OpPlan::Dispatch)
        }
        SizedProblem::Combine(config, shape) => {
            combine::plan::plan(config, *shape, topology, device)?.map(OpPlan::Combine)
        }
        SizedProblem::Collective(config, shape) => {
            collective::plan::plan(config, *shape, topology, device)?.map(OpPlan::Collective)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{GemmConfig, GemmOp, KernelConfig};
    use crate::config::{GemmShape, Tuning};

    fn grid_ctas(op: GemmOp, world: u32, max_sms: Option<u32>) -> u32 {
        let config = GemmConfig {
            tuning: Tuning {
                shots: op.reduces().then_some(2),
                ..Tuning::default()
            },
            ..GemmConfig::new(op)
        };
        let config = KernelConfig {
            max_sms,
            ..KernelConfig::new(world, config)
        };
        let shape = GemmShape {
            m: 8192,
            n: 8192,
            k: 2048,
        };
        let spec = SizedSpec::for_sizes(config, shape);
        let plan = KernelPlan::new(&spec.expect("valid"), &Device::h200());
        plan.expect("a plan").launch().grid_ctas
    }

    #[test]
    fn sums_of_several_ranks_leave_a_multiple_of_four_sms() {
        for (max_sms, ctas) in [
            (None, 132),
            (Some(131), 128),
            (Some(128), 128),
            (Some(3), 3),
        ] {
            assert_eq!(grid_ctas(GemmOp::GemmRs, 2, max_sms), ctas, "{max_sms:?}");
        }
        assert_eq!(grid_ctas(GemmOp::AgGemm, 2, Some(130)), 130);
    }
}
