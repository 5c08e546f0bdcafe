//! [`Error`]: one variant per operation that can fail, with what it was about and a way out.

mod words;

use crate::bootstrap::ProtocolFault;
use crate::operands::OperandFault;
use crate::routing::RoutingFault;
use crate::simulation::Finding;
use cudarc::driver::DriverError;
use mkernel_compile::GenError;
use mkernel_fabric::FabricError;
use mkernel_spec::Violations;
use mkernel_spec::abi::Operand;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use words::{
    Are, Failures, Faults, Findings, From, GaveUp, Have, Hosts, OnHosts, Refused, Settings, Since,
    Version,
};

/// What the runtime could not do.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `dlopen("libcuda.so.1")`
    #[error(
        "no CUDA driver: libcuda.so.1 cannot be loaded; install the NVIDIA driver (580 or newer), run on a GPU host, or use simulated GPUs (MKERNEL_DEVICE=auto where there is no GPU, MKERNEL_DEVICE=sim always)"
    )]
    DriverMissing(#[source] Arc<libloading::Error>),
    /// `cuDriverGetVersion`
    #[error("the CUDA driver supports CUDA {}, kernels need {}; update the NVIDIA driver to 580 or newer", Version(*.found), Version(*.needed))]
    DriverTooOld {
        /// As `cuDriverGetVersion` counts: 1000·major + 10·minor.
        found: i32,
        /// The least that works.
        needed: i32,
    },
    /// A call of the CUDA driver.
    #[error("{call} failed")]
    Cuda {
        /// The C function, and what it was for.
        call: &'static str,
        /// What the driver said.
        source: DriverError,
    },
    /// `cuDeviceGet`
    #[error(
        "there is no GPU {ordinal}: {count} visible; check LOCAL_RANK and CUDA_VISIBLE_DEVICES"
    )]
    NoDevice {
        /// The GPU asked for.
        ordinal: usize,
        /// GPUs that this process sees.
        count: usize,
    },
    /// The GPU cannot run sm_90a code.
    #[error("GPU {ordinal} ({name}) has compute capability {}.{}, kernels need 9.0 (H100, H200)", capability.0, capability.1)]
    UnsupportedDevice {
        /// Its ordinal.
        ordinal: usize,
        /// Its name.
        name: String,
        /// Its compute capability.
        capability: (i32, i32),
    },
    /// `cuDeviceCanAccessPeer`
    #[error(
        "the GPU of rank {rank} cannot access the GPU of rank {peer}; choose GPUs that are joined by NVLink"
    )]
    NoPeerAccess {
        /// This rank.
        rank: u32,
        /// The other.
        peer: u32,
    },
    /// `cuDeviceGetP2PAttribute`
    #[error(
        "the GPUs of ranks {rank} and {peer} reach each other over PCIe alone, which carries no atomic instructions, and \
         kernels count in each other's memory with these; choose GPUs that are joined by NVLink: `mkernel-gen topology` \
         shows them"
    )]
    NoNvLink {
        /// This rank.
        rank: u32,
        /// The other.
        peer: u32,
    },
    /// Two ranks have one GPU.
    #[error(
        "ranks {first} and {second} use the same GPU ({bus_id}); give each rank its own, by LOCAL_RANK or CUDA_VISIBLE_DEVICES"
    )]
    SameDevice {
        /// One of them.
        first: u32,
        /// The other.
        second: u32,
        /// The GPU's PCI bus id.
        bus_id: String,
    },
    /// Ranks on several hosts.
    #[error(
        "ranks are on {} hosts ({}), but the kernel is declared for one node; declare nodes = {0}, or use GPUs of one host",
        hosts.len(), Hosts(hosts)
    )]
    SeveralHosts {
        /// The ranks of each host.
        hosts: Vec<Vec<u32>>,
    },
    /// Ranks that are not numbered host by host.
    #[error(
        "ranks are not numbered host by host ({}), as a kernel of several nodes has them; deal them out in blocks",
        Hosts(hosts)
    )]
    RankOrder {
        /// The ranks of each host.
        hosts: Vec<Vec<u32>>,
    },
    /// Hosts with different numbers of ranks.
    #[error(
        "hosts have different numbers of ranks ({}); start as many on each",
        Hosts(hosts)
    )]
    UnequalHosts {
        /// The ranks of each host.
        hosts: Vec<Vec<u32>>,
    },
    /// An environment variable is absent or malformed.
    #[error("environment variable {name} {}; it should be {expected}", .value.as_ref().map_or_else(|| "is not set".to_owned(), |v| format!("is {v:?}")))]
    Environment {
        /// The variable.
        name: &'static str,
        /// Its value, if it is set.
        value: Option<String>,
        /// What would be right.
        expected: &'static str,
    },
    /// The launcher's variables do not say which rank this process is: all that matter, and what is wrong with them.
    #[error(
        "environment variables do not say which rank this process is: {problem} ({}); start it by torchrun, srun or mpirun, or set RANK and WORLD_SIZE and unset the others",
        Settings(variables)
    )]
    Launch {
        /// What is wrong.
        problem: &'static str,
        /// Names and values; none for those that are not set.
        variables: Vec<(&'static str, Option<String>)>,
    },
    /// The number of ranks is not one that kernels have.
    #[error("{0} ranks were asked for on one host; use 1 to 8")]
    World(usize),
    /// Resolving or listening on the address where ranks meet.
    #[error(
        "rank 0 cannot listen on {address}; is another job using the port? Set MKERNEL_PORT to a free one"
    )]
    Listen {
        /// Where.
        address: String,
        /// Why not.
        source: Arc<std::io::Error>,
    },
    /// Looking up the name of rank 0's host, or connecting to it.
    #[error(
        "rank 0 was not found at {address} within {waited:?}; check that it runs, MASTER_ADDR and MASTER_PORT (or MKERNEL_PORT)"
    )]
    Connect {
        /// The name or address that was given, and the port.
        address: String,
        /// How long it was tried.
        waited: Duration,
        /// The last failures: of the look-up, or of every address.
        source: Arc<std::io::Error>,
    },
    /// A message of another process is not what this step expects.
    #[error("{peer} sent something unexpected during {step:?}")]
    Protocol {
        /// Who sent it.
        peer: Peer,
        /// When.
        step: &'static str,
        /// What was wrong.
        source: ProtocolFault,
    },
    /// Ranks that did not come to a collective step in time.
    #[error(
        "{} not come to {step:?} within {waited:?}; every rank must make the same calls{}",
        Have(ranks),
        Refused(refused)
    )]
    RanksMissing {
        /// The step.
        step: &'static str,
        /// Who is missing.
        ranks: Vec<u32>,
        /// How long the others waited.
        waited: Duration,
        /// On rank 0, who was refused at the rendezvous, by address, and why.
        refused: Vec<String>,
    },
    /// A rank ended, or dropped its communicator, while others needed it.
    #[error("rank {rank} left before {step:?} was complete; its own output says why")]
    RankLeft {
        /// Who.
        rank: u32,
        /// Which step.
        step: &'static str,
    },
    /// A rank ended without a word, or lost its network, and kernels of all ranks wait for it.
    #[error(
        "rank {rank} is lost: its process has ended, or its network is gone; its own output says why"
    )]
    RankLost {
        /// Who.
        rank: u32,
    },
    /// A step failed on other ranks, so it was given up on this one.
    #[error("{step:?} failed on {}", Failures(failures))]
    RanksFailed {
        /// The step.
        step: &'static str,
        /// Who, and what they said.
        failures: Vec<(u32, String)>,
    },
    /// A rank gives the others more than a step can carry.
    #[error(
        "this rank gives {bytes} bytes to the others in {step:?}, {limit} are the most; give them in several steps, or prepare a kernel for fewer nodes"
    )]
    OfferTooLong {
        /// The step.
        step: &'static str,
        /// How much.
        bytes: usize,
        /// The most.
        limit: usize,
    },
    /// Ranks prepare different kernels.
    #[error(
        "{} preparing another kernel than rank 0 ({theirs} instead of {reference}); every rank must pass the same configuration and shape",
        Are(ranks)
    )]
    Mismatch {
        /// Who differs from rank 0.
        ranks: Vec<u32>,
        /// The kernel of rank 0.
        reference: String,
        /// The kernel of the first that differs.
        theirs: String,
    },
    /// Nodes that cannot be.
    #[error(
        "{world} ranks {}cannot be put into {nodes} nodes; use {}",
        OnHosts(*.hosts), if *.hosts > 1 { "as many nodes as hosts" } else { "2 or more nodes with equal numbers of ranks" }
    )]
    Nodes {
        /// Nodes asked for.
        nodes: u32,
        /// Ranks of the job.
        world: u32,
        /// Hosts that they are on.
        hosts: u32,
    },
    /// A transport that this crate was built without.
    #[error(
        "this program was built without transport {name}; build it with feature {feature:?} of mkernel, or of mkernel-gen"
    )]
    NoTransport {
        /// Which.
        name: &'static str,
        /// What it takes.
        feature: &'static str,
    },
    /// Emulated NICs between hosts.
    #[error(
        "ranks are on {hosts} hosts, and emulated NICs reach no other host; choose transport rc or efa"
    )]
    EmulatedHosts {
        /// How many.
        hosts: u32,
    },
    /// NICs that do not exist, or do not fit.
    #[error("the NICs of this rank cannot be chosen: {reason}")]
    Nics {
        /// Why, and what to do.
        reason: String,
    },
    /// The network between nodes, or its proxy on this rank.
    #[error(transparent)]
    Fabric(FabricError),
    /// A load of the fabric test that cannot be; all mistakes.
    #[error("this test cannot be run: {}", .0.join("; "))]
    Load(Vec<String>),
    /// The configuration or the shape.
    #[error("this kernel cannot be made:\n{0}")]
    Config(Violations),
    /// The configuration is for another number of ranks.
    #[error(
        "the kernel is declared for {declared} ranks, the communicator has {world}; {}start {declared} ranks",
        declare_world(*world)
    )]
    WrongWorld {
        /// In the configuration.
        declared: u32,
        /// In the communicator.
        world: u32,
    },
    /// Rendering, compiling or loading from the store.
    #[error("kernel {id} could not be built")]
    Build {
        /// The kernel.
        id: String,
        /// Why.
        source: Arc<GenError>,
    },
    /// The compiled kernel needs more of the GPU than the plan says.
    #[error(
        "kernel {id} does not fit: {registers} registers per thread, {smem_bytes} bytes of shared memory, {ctas_per_sm} CTAs per SM, {grid_ctas} CTAs for {sm_count} SMs; are other contexts limiting this GPU (MPS, MIG)?"
    )]
    DoesNotFit {
        /// The kernel.
        id: String,
        /// Registers per thread.
        registers: u32,
        /// Static and dynamic shared memory.
        smem_bytes: u32,
        /// CTAs that an SM can hold; must be 1 or more.
        ctas_per_sm: u32,
        /// CTAs of the launch, all of which must run at once.
        grid_ctas: u32,
        /// SMs of the GPU.
        sm_count: u32,
    },
    /// The compiled kernel has another number of registers than the plan, so that its warps could not share them.
    #[error(
        "kernel {id} was compiled to {registers} registers per thread, its plan needs {planned}; compile it with NVRTC 13.0 (unset MKERNEL_NVRTC_ANY) and an empty cache, or make the bundle anew"
    )]
    Registers {
        /// The kernel.
        id: String,
        /// Registers per thread.
        registers: u32,
        /// What the plan needs.
        planned: u32,
    },
    /// Operands that the kernel cannot take: all mistakes.
    #[error("{}", Faults(.0))]
    Operands(Vec<(Operand, OperandFault)>),
    /// The number of raw operands.
    #[error("{given} operands were given, the kernel has {expected}: {}", .names.join(", "))]
    OperandCount {
        /// Operands given.
        given: usize,
        /// Operands of the kernel.
        expected: usize,
        /// Their names, in order.
        names: Vec<&'static str>,
    },
    /// A stream of another GPU than the communicator's.
    #[error(
        "the stream belongs to GPU {given}, the communicator to GPU {expected}; use one of Communicator::context()"
    )]
    WrongDevice {
        /// Its GPU.
        given: usize,
        /// The communicator's.
        expected: usize,
    },
    /// A call on a stream that is being captured, whose operands could be freed before a replay.
    #[error(
        "the stream is being captured, and nothing keeps the operands for the graph's replays; use the unsafe Call::capture, or launch_raw, and keep them yourself"
    )]
    StreamCaptured,
    /// A call to capture on a stream that is not being captured.
    #[error("the stream is not being captured; begin a capture first, or use Call::launch")]
    StreamNotCaptured,
    /// A wait in the kernel passed its deadline, or was given up because one of another rank did.
    #[error("rank {rank} waited {waited:?} for {awaited}, number {index}, {}: wanted {wanted}, saw {seen} (role {role}, CTA {cta}, call {epoch}){}", From(*.peer), GaveUp(*.aborted_by, *.lost))]
    Timeout {
        /// The rank that waited.
        rank: u32,
        /// Its CTA.
        cta: u32,
        /// What the waiting warps do: `push`, `load`, `math` or `store`.
        role: &'static str,
        /// What was awaited.
        awaited: &'static str,
        /// The rank that should have come; the own one where nobody else is involved.
        peer: u32,
        /// Which flag, stage or buffer.
        index: u32,
        /// The value awaited.
        wanted: u32,
        /// The value seen last.
        seen: u32,
        /// The call, counted from 1.
        epoch: u32,
        /// The rank whose own deadline had passed, if it was not this one's.
        aborted_by: Option<u32>,
        /// The rank whose loss ended the wait.
        lost: Option<u32>,
        /// How long.
        waited: Duration,
    },
    /// Tokens, experts or places that cannot be. Every rank returns it once, from [`check`](crate::Communicator::check) or
    /// [`synchronize`](crate::Communicator::synchronize), and the communicator stays of use: the results of that call are
    /// not written, or only as far as they are right, and the next call is one like any other. Of several such calls of an
    /// operator before the host looks, the first is returned.
    #[error("rank {rank}, call {epoch}: {fault}")]
    Routing {
        /// The rank whose operands they are, or whose room is too small.
        rank: u32,
        /// The call, counted from 1.
        epoch: u32,
        /// What is wrong.
        fault: RoutingFault,
    },
    /// A call began on a GPU while another one of the communicator was under way there, and did nothing. Launches wait for each
    /// other on all streams, and so do those that are captured into one graph; graphs, and calls beside a graph, do not.
    #[error(
        "rank {rank}: call {call} of operator {operator} began while call {other_call} of operator {other_operator} was under way; replay graphs and launch calls of one communicator on one stream, or order their streams with events (operators are numbered in the order in which they were prepared, from 1 on)"
    )]
    Overlap {
        /// The rank on whose GPU they met.
        rank: u32,
        /// The operator of the call that was refused, from 1 on in the order of `prepare`.
        operator: u32,
        /// Which of its calls, from 1 on.
        call: u32,
        /// The operator of the call that was under way.
        other_operator: u32,
        /// Which of its calls.
        other_call: u32,
    },
    /// Nothing runs on this communicator any more: a wait failed here or on a peer, or someone called `abort`.
    #[error(
        "the communicator is out of use since {}; drop it and its operators, and make a new one on every rank",
        Since(cause)
    )]
    Aborted {
        /// The first failure, if it is known on this rank. The message repeats it.
        cause: Option<Arc<Error>>,
    },
    /// The stream still works after the deadline of its kernels.
    #[error(
        "the stream was still busy after {waited:?}, without a report from a kernel; wait again, or raise the time-out"
    )]
    StillBusy {
        /// How long it was watched.
        waited: Duration,
    },
    /// Simulated GPUs and real ones in one process.
    #[error(
        "this process uses {chosen}, so it cannot use {wanted}: the choice is made once; use another process, or set MKERNEL_DEVICE at its start"
    )]
    OtherDevices {
        /// What was asked for now.
        wanted: &'static str,
        /// What was asked for first.
        chosen: &'static str,
    },
    /// The crate was built without its feature `simulator`.
    #[error(
        "this program was built without simulated GPUs; add mkernel's feature \"simulator\", or set MKERNEL_DEVICE=gpu"
    )]
    NoSimulator,
    /// The simulated driver.
    #[error("simulated GPUs cannot be used")]
    Simulator(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// An option of [`Simulation`](crate::Simulation).
    #[error("simulated GPUs cannot have {field} = {value}; it should be {expected}")]
    SimulationOption {
        /// Which.
        field: &'static str,
        /// Its value.
        value: u64,
        /// What would be right.
        expected: &'static str,
    },
    /// A process for each rank, on simulated GPUs.
    #[error(
        "{world} processes of a host cannot share simulated GPUs; start one process, with Communicator::local or Communicator::simulated, which has all ranks, or one on each host"
    )]
    SimulatedProcesses {
        /// Ranks of the host, as far as it is known.
        world: u32,
    },
    /// What the simulator found: races, deadlocks, accesses out of bounds.
    #[error("the simulator found {}", Findings(findings))]
    Simulation {
        /// All that was found so far on the ranks of this job.
        findings: Vec<Finding>,
    },
    /// `EMFILE` or `ENFILE`: this process, or the system, can have no more open files.
    #[error(
        "{call} failed: too many open files, this process may have {}; raise its limit (ulimit -n, LimitNOFILE= of a systemd unit, --ulimit nofile= of a container) or, if it is the system's, sysctl fs.file-max",
        .limit.map_or_else(|| "any number".to_owned(), |limit| limit.to_string())
    )]
    OpenFiles {
        /// What.
        call: &'static str,
        /// The soft limit of this process, which was raised to the hard one.
        limit: Option<u64>,
        /// Which of the two.
        source: Arc<std::io::Error>,
    },
    /// A call of the operating system.
    #[error("{call} failed")]
    Os {
        /// What.
        call: &'static str,
        /// Why.
        source: Arc<std::io::Error>,
    },
}

/// Who sent a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Peer {
    /// A rank.
    Rank(u32),
    /// A process at the other end of a connection, before it said which rank it is.
    Unknown,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rank(rank) => write!(f, "rank {rank}"),
            Self::Unknown => f.write_str("an unknown process"),
        }
    }
}

/// The message of `error` and of its causes, as one text that can travel to other ranks.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
/// How a kernel gets so many ranks, if it can have as many on one node.
fn declare_world(world: u32) -> String {
    match world {
        1 | 2 | 4 | 8 => format!("declare world = {world}, or "),
        _ => String::new(),
    }
}
