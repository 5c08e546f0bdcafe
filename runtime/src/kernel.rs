//! [`Kernel`]: a compiled kernel, loaded, checked against its plan, and launched.

use crate::driver::Function;
use crate::error::Error;
use cudarc::driver::{CudaContext, sys};
use mkernel_spec::KernelPlan;
use mkernel_spec::device::Target;
use std::sync::Arc;

/// A loaded kernel and the shape of its launch.
pub(crate) struct Kernel {
    function: Function,
    grid_ctas: u32,
    threads: u32,
    smem_bytes: u32,
}

impl Kernel {
    /// Loads the kernel of `plan` from a CUBIN in memory.
    pub fn load(ctx: &Arc<CudaContext>, cubin: &[u8], plan: &KernelPlan) -> Result<Self, Error> {
        let function = Function::load(ctx, cubin, &plan.id)?;
        function.allow_dynamic_smem(plan.smem_bytes)?;
        let ctas_per_sm = function.ctas_per_sm(plan.threads, plan.smem_bytes)?;
        // CTAs wait for each other, so all must be resident at once.
        if ctas_per_sm == 0 || plan.grid_ctas > ctas_per_sm.saturating_mul(plan.device.sm_count) {
            return Err(Error::DoesNotFit {
                id: plan.id.clone(),
                registers: function.registers()?,
                smem_bytes: function.static_smem_bytes()? + plan.smem_bytes,
                ctas_per_sm,
                grid_ctas: plan.grid_ctas,
                sm_count: plan.device.sm_count,
            });
        }
        let registers = function.registers()?;
        if !plan.registers.fit(registers) && plan.device.target != Target::Simulator {
            // Setmaxnreg hands out what the plan says, so the kernel would not be the planned one.
            tracing::warn!(
                kernel = plan.id,
                registers,
                planned = plan.registers.entry,
                "registers differ from the plan"
            );
        }
        Ok(Self {
            function,
            grid_ctas: plan.grid_ctas,
            threads: plan.threads,
            smem_bytes: plan.smem_bytes,
        })
    }

    /// Enqueues one call.
    ///
    /// # Safety
    /// `args` must hold the kernel's arguments, and what they point to must stay until the call is over;
    /// `stream` must be alive and of the kernel's context, which must be current.
    pub unsafe fn launch(&self, stream: sys::CUstream, args: &mut [u8]) -> Result<(), Error> {
        // SAFETY: by the caller.
        unsafe {
            self.function.launch(
                stream,
                (self.grid_ctas, self.threads, self.smem_bytes),
                args.as_mut_ptr().cast(),
            )
        }
    }
}
