//! Launches, their CTAs, and shared memory.

use super::barrier::Barrier;
use super::convergence::ConvergencePoint;
use super::counters::CtaCounters;
use super::mma::WarpgroupMma;
use crate::world::clock::Clock;
use crate::world::interface::TaskId;
use crate::world::shadow::{ShadowCell, WORD_BYTES};

/// The address at which shared memory begins in its window. The C++ headers of the simulator start dynamic shared
/// memory at the same address.
pub const SHARED_START: u32 = 1040;
/// The number of bits of an address within the shared memory of one CTA. The bits above it select a CTA of the cluster.
pub const SHARED_BITS: u32 = 24;

/// A kernel that has been started and has not ended.
#[derive(Debug)]
pub struct Launch {
    pub task: TaskId,
    pub device: u32,
    /// The indices of the launch's CTAs in the machine.
    pub ctas: Vec<usize>,
    /// The number of threads that have not ended.
    pub running: u32,
    /// The reason why the kernel has failed; `None` if it has not failed.
    pub failed: Option<String>,
    /// The knowledge at the start of the kernel. At the end of the kernel, the knowledge of its threads is added.
    pub known: Clock,
    /// The previous launch on the stream, if that launch has not ended and this launch overlaps with it. Otherwise `None`.
    pub before: Option<usize>,
    /// The knowledge at the end of the launch `before`.
    pub known_before: Clock,
}

/// A CTA of a launch.
#[derive(Debug)]
pub struct Cta {
    /// The index of the CTA's launch in the machine.
    pub launch: usize,
    pub device: u32,
    /// The number of the CTA within the launch.
    pub index: u32,
    /// The CTAs of the cluster by rank, this CTA included.
    pub cluster: Vec<usize>,
    pub smem: SharedMemory,
    /// The mbarriers in its shared memory.
    pub barriers: Vec<Barrier>,
    /// The named barriers of the CTA.
    pub named: Vec<ConvergencePoint>,
    /// The barrier of the cluster. Only the first CTA of a cluster uses this field.
    pub cluster_convergence: ConvergencePoint,
    /// The index of the CTA's first thread in the machine.
    pub threads: usize,
    pub thread_count: u32,
    /// The number of threads that have not ended.
    pub running: u32,
    /// Whether this CTA lets the next kernel start.
    pub allows_grid_behind: bool,
    /// The tensor-core products of each warpgroup.
    pub mmas: Vec<WarpgroupMma>,
    pub counters: CtaCounters,
}

/// The shared memory of a CTA, and the last accesses to each word of this memory.
#[derive(Debug, Default)]
pub struct SharedMemory {
    pub bytes: Vec<u8>,
    pub cells: Vec<ShadowCell>,
}

impl SharedMemory {
    /// Resets the memory for a new CTA, to `bytes` bytes that were never written.
    pub fn reset(&mut self, bytes: usize) {
        self.bytes.clear();
        self.bytes.resize(bytes, 0xff);
        self.cells.clear();
        self.cells
            .resize(bytes.div_ceil(WORD_BYTES), ShadowCell::default());
    }
}
