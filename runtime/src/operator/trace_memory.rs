//! [`TraceMemory`]: the device memory to which a kernel writes its trace.

use crate::driver::bind;
use crate::error::Error;
use crate::shared::Shared;
use crate::symmetric::OwnMemory;
use crate::trace::{Trace, decode};
use mkernel_spec::KernelPlan;
use mkernel_spec::abi::{TraceBuffer, TraceLayout, TraceRoom};

/// The most events of the first thread of a warp by default, on GPUs and on simulated GPUs, for which hosts have less memory.
const EVENTS: u32 = 2048;
const SIMULATED_EVENTS: u32 = 256;

/// The device memory of an operator that is traced. Each call overwrites the trace of the previous call.
pub(crate) struct TraceMemory {
    memory: OwnMemory,
    layout: TraceLayout,
}

impl TraceMemory {
    /// Allocates the memory if the kernel of `plan` is traced.
    pub fn of_plan(shared: &Shared, plan: &KernelPlan) -> Result<Option<Self>, Error> {
        if !plan.spec.config().traced {
            return Ok(None);
        }
        let events = shared.trace_events();
        let room = match shared.simulated {
            Some(_) => TraceRoom::equal(events.unwrap_or(SIMULATED_EVENTS)),
            None => TraceRoom::of(events.unwrap_or(EVENTS)),
        };
        let launch = plan.launch();
        let layout = TraceLayout::new(launch.grid_ctas, launch.threads, room);
        let timeout = shared.gpu_timeout();
        let memory = OwnMemory::allocate(&shared.ctx, &shared.stream, layout.bytes, timeout)?;
        Ok(Some(Self { memory, layout }))
    }

    /// Returns the argument of the kernel.
    pub fn buffer(&self) -> TraceBuffer {
        TraceBuffer {
            address: self.memory.address(),
            ..self.layout.buffer
        }
    }

    /// Reads the trace of the last call, which must have ended.
    pub fn read(&self, shared: &Shared, plan: &KernelPlan) -> Result<Trace, Error> {
        bind(&shared.ctx)?;
        let mut bytes = vec![0; self.layout.bytes as usize];
        // SAFETY: the memory is mapped as long as `self` lives. After a timeout, the target is leaked.
        let copied = unsafe { shared.stream.read(&mut bytes, self.memory.address()) };
        match copied.and_then(|()| shared.stream.wait(shared.gpu_timeout())) {
            Ok(()) => Ok(decode((shared.rank, plan), &self.layout, &bytes)),
            Err(error) => {
                std::mem::forget(bytes);
                Err(error)
            }
        }
    }
}
