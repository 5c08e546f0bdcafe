//! [`Body`]: an operator, as its owner and graphs hold it, and its launches.

use super::ends::{End, Remains};
use super::{Live, Memory};
use crate::args::Bindings;
use crate::communicator::DRAIN_MARGIN;
use crate::copies::CopyThread;
use crate::driver::{self, Capture, Uncaptured, UserStream};
use crate::error::Error;
use crate::kernel::Kernel;
use crate::operands::RawOperand;
use crate::order::{self, Launcher};
use crate::reaper;
use crate::shared::Shared;
use crate::simulation::Watch;
use crate::symmetric::OwnMemory;
use mkernel_spec::KernelPlan;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An operator, as its owner and graphs hold it.
pub(super) struct Body {
    launcher: Launcher,
    state: Mutex<State>,
    pub parts: ManuallyDrop<Parts>,
}

/// What the kernel's calls use.
pub(super) struct Parts {
    pub _watch: Option<Watch>,
    pub plan: KernelPlan,
    pub live: Arc<Live>,
    pub kernel: Kernel,
    pub memory: Memory,
    pub copies: Option<Arc<CopyThread>>,
    pub gate: Arc<OwnMemory>,
    pub number: u32,
    pub shared: Arc<Shared>,
}

/// What changes with launches.
#[derive(Default)]
pub(super) struct State {
    pub args: Args,
    /// Where launches may not be over, apart from those that a stream in here comes after.
    streams: Vec<UserStream>,
    /// When the owner is gone: what its launches come before.
    ends: Vec<End>,
}

/// The argument of the last launch, and what it was made of.
#[derive(Default)]
pub(super) struct Args {
    operands: Vec<RawOperand>,
    deadline_ns: u64,
    bytes: Vec<u8>,
}

impl Parts {
    /// Renews the argument if it differs from the last launch's.
    pub fn bind(&self, args: &mut Args, operands: &[RawOperand]) -> Result<(), Error> {
        let deadline_ns = self.shared.timeout_ns();
        if args.operands == operands && args.deadline_ns == deadline_ns {
            return Ok(());
        }
        let (workspaces, local_rank) = match &self.memory {
            Memory::Host(workspace) => (workspace.addresses(), self.shared.rank),
            Memory::Node {
                workspaces,
                local_rank,
                ..
            } => (*workspaces, *local_rank),
        };
        let bindings = Bindings {
            specs: &self.plan.operands,
            operands,
            workspaces,
            local_rank,
            host_page: self.live.page.device_address(),
            gate: self.gate.address(),
            operator_number: self.number,
            deadline_ns,
            rank: self.shared.rank,
            wires: self.memory.wires(),
        };
        let bytes = bindings.fill(&self.plan.args, driver::encode_tensor_map)?;
        *args = Args {
            operands: operands.to_vec(),
            deadline_ns,
            bytes,
        };
        Ok(())
    }
}

impl Body {
    pub fn new(parts: Parts) -> Self {
        Self {
            launcher: Launcher::new(),
            state: Mutex::default(),
            parts: ManuallyDrop::new(parts),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        // What it guards is whole between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of where the owner's launches end.
    pub fn end(&self) {
        let _uncaptured = Uncaptured::new();
        let shared = &self.parts.shared;
        let mut order = order::lock(&shared.order);
        let mut state = self.state();
        for stream in std::mem::take(&mut state.streams) {
            let end = End::of(&shared.ctx, stream);
            state.ends.push(end);
        }
        order.forget(self.launcher);
    }

    /// # Safety
    /// As for [`Operator::enqueue`](super::Operator::enqueue); `state` must hold the call's arguments.
    pub unsafe fn launch(
        &self,
        stream: &UserStream,
        order: &mut order::Order,
        state: &mut State,
    ) -> Result<(), Error> {
        let parts = &self.parts;
        // SAFETY: by the caller; streams without owners are forgotten when the operator is dropped.
        unsafe { order.follow(stream, self.launcher)? };
        // The kernel comes behind the launches in the others.
        state.streams.retain(|other| order.is_end(other));
        if !state.streams.contains(stream) {
            state.streams.push(stream.clone());
        }
        // SAFETY: the bytes are laid out by the plan's table. The workspaces and the page stay until the reaper has seen
        // the end of what `state.streams` holds, of which this is a part now; the operands stay by the caller.
        unsafe {
            parts
                .kernel
                .launch(stream.handle(), &mut state.args.bytes)?
        };
        if let (Some(job), Some(thread)) = (&parts.live.job, &parts.copies) {
            job.expect();
            thread.nudge();
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Self::launch`].
    pub unsafe fn capture(
        self: &Arc<Self>,
        stream: &UserStream,
        capture: &Capture,
        order: &mut order::Order,
        state: &mut State,
    ) -> Result<(), Error> {
        reaper::start()?;
        self.parts.live.capture();
        // SAFETY: by the caller. The bytes are laid out by the plan's table; the workspaces and the page stay as long as
        // the body, of which the graph has a reference for itself, for executable graphs made of it, and for their
        // launches; the operands stay by the caller.
        unsafe {
            if !order.follow_captured(stream, capture, self.launcher)? {
                capture.retain(reaper::keep(self.clone()), reaper::release)?;
            }
            self.parts
                .kernel
                .launch(stream.handle(), &mut state.args.bytes)?;
            order.captured(stream, self.launcher)
        }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let ends = std::mem::take(&mut state.ends);
        // SAFETY: the parts are not used after this, the end of what they are in.
        let parts = unsafe { ManuallyDrop::take(&mut self.parts) };
        let limit = parts.shared.gpu_timeout() + DRAIN_MARGIN;
        reaper::retire(Box::new(Remains::new(ends, parts)), limit);
    }
}
