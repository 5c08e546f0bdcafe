//! [`Kernel`]: a compiled kernel that is loaded, checked against its plan, and launched.

use crate::driver::{Function, LaunchDims, LaunchMode};
use crate::error::{Error, KernelError};
use crate::shared::Shared;
use cudarc::driver::sys;
use mkernel_spec::KernelPlan;

/// A loaded kernel and its launch dimensions.
pub(crate) struct Kernel {
    function: Function,
    dims: LaunchDims,
}

impl Kernel {
    /// Loads the kernel of `plan` from a CUBIN in memory.
    pub fn load(shared: &Shared, cubin: &[u8], plan: &KernelPlan) -> Result<Self, Error> {
        let function = Function::load(&shared.ctx, cubin, &plan.id)?;
        let (launch, smem_bytes) = (plan.launch(), plan.smem_bytes());
        function.allow_dynamic_smem(smem_bytes)?;
        let ctas_per_sm = function.ctas_per_sm(launch.threads, smem_bytes)?;
        // CTAs wait for each other, so all of them must be resident at the same time.
        if ctas_per_sm == 0 || launch.grid_ctas > ctas_per_sm.saturating_mul(plan.device.sm_count) {
            return Err(Error::Kernel(KernelError::DoesNotFit {
                id: plan.id.clone(),
                registers: function.registers()?,
                smem_bytes: function.static_smem_bytes()? + smem_bytes,
                ctas_per_sm,
                grid_ctas: launch.grid_ctas,
                sm_count: plan.device.sm_count,
            }));
        }
        check_registers(plan, function.registers()?)?;
        let dims = LaunchDims {
            ctas: launch.grid_ctas,
            cluster_ctas: launch.cluster_ctas,
            threads: launch.threads,
            smem_bytes,
        };
        check_clusters(plan, &function, dims)?;
        Ok(Self { function, dims })
    }

    /// Returns the driver's handle of the function.
    pub fn handle(&self) -> u64 {
        self.function.handle()
    }

    /// Enqueues one call.
    ///
    /// # Safety
    /// `args` must hold the kernel's arguments, and everything that they point to must stay alive until the call has
    /// ended. `stream` must be alive and belong to the kernel's context, which must be current.
    pub unsafe fn launch(
        &self,
        stream: sys::CUstream,
        args: &mut [u8],
        mode: LaunchMode,
    ) -> Result<(), Error> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            self.function
                .launch(stream, self.dims, args.as_mut_ptr().cast(), mode)
        }
    }
}

/// Checks the number of registers. The warpgroups redistribute registers as the plan says. In a kernel that was
/// compiled to another number, some warpgroups would wait for registers until the deadline, because they never become
/// available.
fn check_registers(plan: &KernelPlan, registers: u32) -> Result<(), Error> {
    if plan.launch().registers.fit(registers) || plan.device.backend.is_simulated() {
        return Ok(());
    }
    Err(Error::Kernel(KernelError::Registers {
        id: plan.id.clone(),
        registers,
        planned: plan.launch().registers.entry,
    }))
}

/// Checks that all clusters can be resident at the same time. The SMs of a cluster belong to one GPC, so the GPU may have room
/// for fewer clusters than its SMs suggest. If the process is limited to a part of the GPU, the number may also be smaller than
/// the number that the plan took from the driver.
fn check_clusters(plan: &KernelPlan, function: &Function, dims: LaunchDims) -> Result<(), Error> {
    let cluster_ctas = dims.cluster_ctas;
    if cluster_ctas == 1 {
        return Ok(());
    }
    let (clusters, resident) = (dims.ctas / cluster_ctas, function.resident_clusters(dims)?);
    if clusters <= resident {
        return Ok(());
    }
    Err(Error::Kernel(KernelError::ClustersDoNotFit {
        id: plan.id.clone(),
        cluster_ctas,
        clusters,
        resident,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mkernel_spec::{
        Device, Dim, GemmConfig, GemmOp, GemmShape, KernelConfig, SizedSpec, plan::Registers,
    };

    fn plan(device: &Device) -> KernelPlan {
        let (m, n, k) = (1024, 1024, 1024);
        let config = GemmConfig {
            n: Dim::Static(n),
            k: Dim::Static(k),
            ..GemmConfig::new(GemmOp::AgGemm)
        };
        let shape = GemmShape { m, n, k };
        let spec = SizedSpec::for_sizes(KernelConfig::new(1, config), shape).expect("valid");
        KernelPlan::new(&spec, device).expect("a plan")
    }

    #[test]
    fn another_number_of_registers_is_an_error() {
        let plan = plan(&Device::h200());
        let Registers {
            entry, producer, ..
        } = plan.launch().registers;
        assert_ne!(producer, entry, "the plan redistributes registers");
        check_registers(&plan, entry).expect("as planned");
        for registers in [entry - 8, entry + 8] {
            let text = check_registers(&plan, registers).expect_err("it would hang");
            let text = text.to_string();
            for part in [&plan.id, &registers.to_string(), "MKERNEL_NVRTC_ANY"] {
                assert!(text.contains(part), "{part:?} in {text:?}");
            }
        }
    }

    #[test]
    fn simulated_gpus_have_no_registers_to_check() {
        check_registers(&plan(&Device::simulated(8)), 0).expect("none");
    }
}
