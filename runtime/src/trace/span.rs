//! [`Trace`] and [`Span`].

use mkernel_spec::abi::{Activity, Wait};
use mkernel_spec::plan::RoleKind;

/// The trace of the last call of an operator on one rank, from [`Operator::trace`](crate::Operator::trace).
///
/// Times are ns of the clock of the rank's GPU. Clocks of GPUs differ: [`offsets`](Self::offsets) aligns them.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The rank.
    pub rank: u32,
    /// The number of the call among all calls of the operator, from 1.
    pub call: u32,
    /// The begin of the first CTA.
    pub begin_ns: u64,
    /// Steps, waits and raised flags, by CTA, warp and begin. A step comes before the events inside it.
    pub spans: Vec<Span>,
    /// The number of events for which there was no room. See
    /// [`Communicator::set_trace_events`](crate::Communicator::set_trace_events).
    pub dropped: u64,
    /// The smallest step of the clock that the SMs of the GPU share, as far as the trace shows it. Times on different SMs are
    /// exact to one step.
    pub clock_step_ns: u64,
}

/// A step or a wait of a warp. A raised flag has equal begin and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The CTA.
    pub cta: u32,
    /// The SM that ran the CTA.
    pub sm: u32,
    /// The warp of the CTA.
    pub warp: u32,
    /// The role of the warp; `None` outside of roles.
    pub role: Option<RoleKind>,
    /// The step of the role, or a wait, or a raised flag.
    pub activity: Activity,
    /// The awaited event, if the activity is a wait. The event that another rank awaits, if it is a raised flag.
    pub wait: Option<Wait>,
    /// The awaited rank, or the rank whose flag was raised. In waits for other warps of the GPU, the rank itself.
    pub peer: u32,
    /// The index of the tile, chunk, stage or flag.
    pub index: u32,
    /// The begin.
    pub begin_ns: u64,
    /// The end.
    pub end_ns: u64,
}

impl Span {
    /// The duration.
    #[must_use]
    pub const fn ns(&self) -> u64 {
        self.end_ns - self.begin_ns
    }
}
