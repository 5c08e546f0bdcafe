//! [`Error`]: the failures of this crate. Details on which callers rarely act are in an enum per subject.

mod call;
mod causes;
mod cluster;
mod device;
mod display;
mod environment;
mod finding;
mod kernel;
mod kind;
mod kind_of;
mod network;
mod operand;
mod operator_id;
mod protocol;
mod rendezvous;
mod routing;
mod simulator;

pub use call::CallError;
pub(crate) use causes::with_causes;
pub use cluster::ClusterError;
pub use device::DeviceError;
pub use environment::EnvironmentError;
pub use finding::Finding;
pub use kernel::KernelError;
pub use kind::ErrorKind;
pub use network::NetworkError;
pub(crate) use operand::elems_of;
pub use operand::{InPlace, OperandFault};
pub use operator_id::{OperatorCalls, OperatorId};
pub use protocol::{Peer, ProtocolFault};
pub use rendezvous::RendezvousError;
pub use routing::{OffsetFault, RoutingFault, RowOfTwoTokens};
pub use simulator::SimulatorError;

pub use mkernel_compile::GenError;
pub use mkernel_fabric::FabricError;

use cudarc::driver::DriverError;
use display::{Are, Cause, Failures, Faults, Findings, Have, Loss, Refused, WaitEnd, WaitOutcome};
use mkernel_spec::Diagnostics;
use mkernel_spec::abi::Operand;
use operator_id::{DifferentCalls, RunningCall};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// An error of this crate. The text includes the causes. `Debug` shows this text too, since a program whose `main` returns the
/// error prints its `Debug` form.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The GPUs of this process cannot be used.
    #[error(transparent)]
    Device(DeviceError),
    /// A call of the CUDA driver failed.
    #[error("{call} failed: {source}")]
    Cuda {
        /// The name of the C function, or the purpose of the call.
        call: &'static str,
        /// The error that the driver returned.
        r#source: DriverError,
    },
    /// The environment variables of this process are absent, malformed or contradictory.
    #[error(transparent)]
    Environment(EnvironmentError),
    /// The number of ranks or their hosts do not fit the kernel.
    #[error(transparent)]
    Cluster(ClusterError),
    /// The processes of the job cannot connect to rank 0.
    #[error(transparent)]
    Rendezvous(RendezvousError),
    /// A message of another process is not valid in this step.
    #[error("{peer} sent an unexpected message during {step:?}: {source}")]
    Protocol {
        /// The sender of the message.
        peer: Peer,
        /// The step that this rank was in.
        step: &'static str,
        /// The fault of the message.
        r#source: ProtocolFault,
    },
    /// Some ranks did not enter a collective step before its deadline.
    #[error(
        "{} not entered {step:?} within {waited:?}. Check that every rank makes the same calls{}",
        Have(ranks),
        Refused(refused)
    )]
    RanksMissing {
        /// The name of the step.
        step: &'static str,
        /// The ranks that are missing.
        ranks: Vec<u32>,
        /// The time that the other ranks waited.
        waited: Duration,
        /// On rank 0, the connections that were refused during the rendezvous: the address and the reason of each.
        refused: Vec<String>,
    },
    /// A rank exited or dropped its communicator while other ranks needed it.
    #[error("rank {rank} left before {step:?} was complete; the output of that rank has the cause")]
    RankLeft {
        /// The rank that left.
        rank: u32,
        /// The name of the step.
        step: &'static str,
    },
    /// A rank ended without closing its connections, its process is stopped, or it lost its network. Kernels of all ranks wait for
    /// it.
    #[error(
        "rank {rank} is lost: {}, or its network has failed; the output of that rank has the cause",
        Loss(*.is_thread)
    )]
    RankLost {
        /// The rank that is lost.
        rank: u32,
        /// Whether the rank is a thread of this process.
        is_thread: bool,
    },
    /// A rank dropped its communicator, or its process ended, before it made a call that this rank has begun.
    #[error(
        "rank {rank} has left and did not make call {call} of {operator}. Every rank must make the same calls; if rank {rank} \
         left because of an error, that error is the cause"
    )]
    LeftWithoutCall {
        /// The rank that left.
        rank: u32,
        /// The operator of the call.
        operator: OperatorId,
        /// The number of the operator's call, counted from 1.
        call: u32,
    },
    /// A collective step failed on other ranks, so it was aborted on this one.
    #[error("{step:?} failed on {}", Failures(failures))]
    RanksFailed {
        /// The name of the step.
        step: &'static str,
        /// The ranks that failed, each with the text of its error.
        failures: Vec<(u32, String)>,
    },
    /// A rank contributes more bytes than a collective step can carry.
    #[error(
        "this rank contributes {bytes} bytes to {step:?}, but {limit} bytes are the limit. Send them in several steps, or \
         prepare a kernel for fewer nodes"
    )]
    ContributionTooLong {
        /// The name of the step.
        step: &'static str,
        /// The length of the contribution.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The ranks prepare different kernels, allocate different tensors, or put tensors or workspaces at different places.
    #[error(
        "{} out of step with rank 0 ({}{theirs} instead of {reference}). Prepare the same operators and allocate \
         the same tensors in the same order on every rank, with the same configurations, shapes and lengths",
        Are(ranks),
        .difference.as_ref().map_or_else(String::new, |difference| format!("{difference}; "))
    )]
    Mismatch {
        /// The ranks that differ from rank 0.
        ranks: Vec<u32>,
        /// A description of rank 0's kernel, tensor or place.
        reference: String,
        /// A description of the kernel, tensor or place of the first rank that differs.
        theirs: String,
        /// The first option or size that differs between that rank's kernel and rank 0's kernel, as in `m: 33 instead of 32`.
        /// `None` if the difference is not an option or a size.
        difference: Option<String>,
    },
    /// A transport between nodes cannot be used.
    #[error(transparent)]
    Network(NetworkError),
    /// The network between nodes failed, or its proxy thread on this rank.
    #[error(transparent)]
    Fabric(FabricError),
    /// The configuration or the shape of a kernel is invalid.
    #[error("this kernel cannot be made:\n{0}")]
    Config(Diagnostics),
    /// A kernel could not be rendered, compiled or loaded from the store.
    #[error("kernel {id} could not be built: {}", with_causes(&**source))]
    Build {
        /// The id of the kernel.
        id: String,
        /// The reason.
        r#source: Arc<GenError>,
    },
    /// A compiled kernel cannot run on this GPU.
    #[error(transparent)]
    Kernel(KernelError),
    /// The operands of a call are invalid. All mistakes are listed.
    #[error("{}", Faults(.0))]
    Operands(Vec<(Operand, OperandFault)>),
    /// A call cannot be enqueued on this stream, or with this number of operands.
    #[error(transparent)]
    Call(CallError),
    /// A wait in a kernel passed its deadline, or was aborted because another rank's wait passed its deadline.
    #[error(
        "{}: rank {rank} was waiting in call {epoch} of {operator} for {awaited} (index {index}, rank {peer}; expected \
         {wanted}, found {seen}; role={role} cta={cta}). {}{}",
        WaitEnd { waited: *.waited, aborted_by: *.aborted_by, lost: *.lost },
        DifferentCalls(calls),
        WaitOutcome { rank: *.rank, peer: *.peer, aborted_by: *.aborted_by, lost: *.lost }
    )]
    Timeout {
        /// The rank that waited.
        rank: u32,
        /// The CTA that waited.
        cta: u32,
        /// The role of the waiting warps, such as `push`, `load`, `multiply` or `store`.
        role: &'static str,
        /// A description of the awaited event.
        awaited: &'static str,
        /// The rank that should have signalled. This is the waiting rank itself if no other rank is involved.
        peer: u32,
        /// The index of the flag, stage or buffer.
        index: u32,
        /// The value that the wait expected.
        wanted: u32,
        /// The last value that the wait found.
        seen: u32,
        /// The operator of the call.
        operator: OperatorId,
        /// The number of the call, counted from 1.
        epoch: u32,
        /// The begun calls of each operator whose number of begun calls differed between ranks when the failure was noticed.
        calls: Arc<Vec<OperatorCalls>>,
        /// The rank whose own deadline passed, if that ended the wait.
        aborted_by: Option<u32>,
        /// The rank whose loss ended the wait, if a rank was lost.
        lost: Option<u32>,
        /// The duration of the wait.
        waited: Duration,
    },
    /// The tokens, experts or row indices of a call are invalid.
    ///
    /// Every rank returns this error once, from [`check`](crate::Communicator::check) or
    /// [`synchronize`](crate::Communicator::synchronize). The communicator remains usable. The call has no results, or only
    /// results that are not affected, and the next call works as usual. If several calls of an operator are invalid before the
    /// host checks, the error of the first invalid call is returned.
    #[error("rank {rank}, call {epoch} of {operator}: {fault}")]
    Routing {
        /// The rank whose operands are invalid, or whose `max_rows` is too small.
        rank: u32,
        /// The operator of the call.
        operator: OperatorId,
        /// The number of the call, counted from 1.
        epoch: u32,
        /// The fault of the operands.
        fault: RoutingFault,
    },
    /// Two tokens of a call of `combine` have one row index.
    #[error(transparent)]
    RowOfTwoTokens(RowOfTwoTokens),
    /// A call began on a GPU while another call of the communicator was running there. The second call did nothing.
    ///
    /// A call that begins when a GEMM, attention or `dispatch_gemm` on few SMs is about to end may not be noticed.
    ///
    /// Launches are ordered after each other on all streams, and so are launches that are captured into one graph. Replays of
    /// graphs are not ordered after other replays or after launches.
    #[error(
        "rank {rank}: call {call} of {operator} began while {} was running. Replay graphs and launch calls of one communicator on one stream, or order their streams by events \
         (operators are numbered from 1 as they are created; equal operators have one number, and their calls are counted \
         together)",
        RunningCall(.other_operator, *.other_call)
    )]
    Overlap {
        /// The rank on whose GPU the calls overlapped.
        rank: u32,
        /// The operator of the call that began second.
        operator: OperatorId,
        /// The number of the call that began second, counted from 1.
        call: u32,
        /// The operator of the running call. Its number is 0 if both calls began at once, in which case the running call is
        /// unknown.
        other_operator: OperatorId,
        /// The number of the running call, counted from 1.
        other_call: u32,
    },
    /// Ranks have made one call with different numbers of rows.
    #[error(
        "rank {rank} has made call {call} of {operator} with {rows} rows, and rank {peer} with {peer_rows}. Give \
         the same number on all ranks"
    )]
    DifferentRows {
        /// The rank that found the difference.
        rank: u32,
        /// The rows of the call on that rank.
        rows: u32,
        /// A rank with another number of rows.
        peer: u32,
        /// The rows of the call on `peer`.
        peer_rows: u32,
        /// The number of the operator's call, counted from 1.
        call: u32,
        /// The operator of the call.
        operator: OperatorId,
    },
    /// Ranks have made one call with results at different places of symmetric memory.
    #[error(
        "ranks {rank} and {peer} have made call {call} of {operator} with results at different places of symmetric \
         memory. That of rank {peer} is at offset {offset_bytes} of extent {extent}. Pass the same tensor of \
         Communicator::alloc on all ranks"
    )]
    DifferentPlaces {
        /// The rank that found the difference.
        rank: u32,
        /// A rank whose result lies elsewhere.
        peer: u32,
        /// The number of the extent that contains the result of `peer`.
        extent: u64,
        /// The offset of that result in the extent, in bytes.
        offset_bytes: u64,
        /// The number of the operator's call, counted from 1.
        call: u32,
        /// The operator of the call.
        operator: OperatorId,
    },
    /// Ranks have made one call with different offsets of packed sequences, or with different rows or cached rows.
    #[error(
        "rank {rank} and rank {peer} have made call {call} of {operator} with different offsets in cu_seqlens, or \
         different rows or cached_rows. Give the same on all ranks"
    )]
    DifferentOffsets {
        /// The rank that found the difference.
        rank: u32,
        /// A rank with other offsets.
        peer: u32,
        /// The number of the operator's call, counted from 1.
        call: u32,
        /// The operator of the call.
        operator: OperatorId,
    },
    /// The communicator failed earlier: a wait failed on this rank or on a peer, or `abort` was called.
    #[error(
        "the communicator cannot be used any more: {}. Rebuild it with the ranks that are left, or drop it \
         and its operators and create a new one on every rank",
        Cause(.cause.as_deref().map(|cause| cause as _))
    )]
    Aborted {
        /// The first failure, or `None` if this rank does not know it. The text of this error includes the first failure.
        cause: Option<Arc<Error>>,
    },
    /// The stream was still busy after the deadline of its kernels.
    #[error(
        "the stream was still busy after {waited:?}, and no kernel reported a failure. Synchronize again, or raise the \
         timeout"
    )]
    StillBusy {
        /// The time for which the stream was polled.
        waited: Duration,
    },
    /// Simulated GPUs cannot be used.
    #[error(transparent)]
    Simulator(SimulatorError),
    /// The simulator found mistakes of a kernel: races, deadlocks, accesses out of bounds.
    #[error("the simulator found {}", Findings(findings))]
    Simulation {
        /// All findings so far on the ranks of this job.
        findings: Vec<Finding>,
    },
    /// This process, or the system, cannot have more open files (`EMFILE` or `ENFILE`).
    #[error(
        "{call} failed: {source}. This process may have {} open files. Raise that limit (ulimit -n, LimitNOFILE= of a \
         systemd unit, --ulimit nofile= of a container), or the limit of the system (sysctl fs.file-max)",
        .limit.map_or_else(|| "any number".to_owned(), |limit| limit.to_string())
    )]
    OpenFiles {
        /// The purpose of the call.
        call: &'static str,
        /// The soft limit of this process, after it was raised to the hard limit.
        limit: Option<u64>,
        /// The error of the system call. It distinguishes the two limits.
        r#source: Arc<std::io::Error>,
    },
    /// A call of the operating system failed.
    #[error("{call} failed: {source}")]
    Os {
        /// The purpose of the call.
        call: &'static str,
        /// The error of the system call.
        r#source: Arc<std::io::Error>,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&with_causes(self))
    }
}
