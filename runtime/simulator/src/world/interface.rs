//! The values that a [`World`](super::World) takes and returns: its options, pieces of work, outcomes and findings.

use super::clock::Clock;
use super::image::Image;
use std::sync::Arc;

/// The options of a world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The number of GPUs of the host.
    pub devices: u32,
    /// The seed of every choice: which thread runs, and which copy completes late. Equal seeds and equal work give
    /// equal runs.
    pub seed: u64,
    /// The unfairness of the schedule to ranks, CTAs and warps, from 0 (fair) to 100.
    pub skew: u32,
    /// Whether events of roles are recorded for [`World::timeline`](super::World::timeline).
    pub timeline: bool,
}

/// A point in the happens-before order. Work that starts after a moment sees everything that happened before it.
#[derive(Clone, Debug, Default)]
pub struct Moment(pub(super) Clock);

impl Moment {
    /// Extends this moment by everything that happened before `other`.
    pub fn join(&mut self, other: &Moment) {
        self.0.join(&other.0);
    }
}

/// A piece of work, with kernels' code of the type `I`. A stream runs its pieces of work one after the other.
#[derive(Clone, Debug)]
pub enum Work<I = Arc<Image>> {
    /// A launch of a kernel.
    Kernel {
        /// The kernel's code.
        image: I,
        /// The number of CTAs.
        ctas: u32,
        /// The number of CTAs of a cluster.
        cluster_ctas: u32,
        /// The number of threads of a CTA.
        threads: u32,
        /// Dynamic shared memory of a CTA in bytes.
        smem_bytes: u32,
        /// The bytes of the kernel's only parameter.
        args: Vec<u8>,
        /// Whether the kernel may start while the kernel before it on its stream still runs.
        overlaps: bool,
    },
    /// A copy of rows. Source and target may be the memory of any GPU of this host, or pinned host memory.
    Copy {
        /// Address of the first byte written.
        to: u64,
        /// Address of the first byte read.
        from: u64,
        /// Bytes from one row of the target to the next.
        to_pitch_bytes: u64,
        /// Bytes from one row of the source to the next.
        from_pitch_bytes: u64,
        /// Bytes of a row.
        row_bytes: u64,
        /// The number of rows.
        rows: u64,
    },
    /// A copy of bytes of the program to device memory.
    Upload {
        /// Address of the first byte written.
        to: u64,
        /// The bytes to write.
        bytes: Vec<u8>,
    },
    /// A copy of device memory to the program. [`Outcome::Read`] holds the bytes.
    Download {
        /// Address of the first byte read.
        from: u64,
        /// The number of bytes.
        bytes: u64,
    },
    /// A write of the same value to every byte of a range.
    Fill {
        /// Address of the first byte written.
        to: u64,
        /// The value of each byte.
        value: u8,
        /// The number of bytes.
        bytes: u64,
    },
    /// A write of a word. It releases all earlier work of the stream at system scope.
    Write {
        /// Address of the word.
        to: u64,
        /// The value.
        value: u32,
    },
    /// A call of a function of the program, which accesses no memory of GPUs.
    Call(HostFunction),
}

/// A function of the program.
#[derive(Clone)]
pub struct HostFunction(pub Arc<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for HostFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HostFunction")
    }
}

/// The number of a piece of work that has been started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub u64);

/// The outcome of a piece of work.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The work is complete.
    Done,
    /// The bytes of a [`Work::Download`].
    Read(Vec<u8>),
    /// The kernel trapped or did something that ends a kernel on a GPU, such as an access out of bounds. Holds the
    /// reason.
    Failed(String),
}

/// The result of [`World::advance`](super::World::advance).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advance {
    /// Some work was done. The caller should advance again.
    Busy,
    /// All work is complete.
    Idle,
    /// No work can continue. All threads wait for each other, or for work that the host has not enqueued yet. Simulated
    /// time stands still until [`World::let_time_pass`](super::World::let_time_pass).
    Stuck,
}

/// A mistake of a kernel that the simulator has found.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The kind of the mistake, such as `race` or `deadlock`.
    pub kind: &'static str,
    /// A description of several lines: the mistake, the threads that are involved, and the lines of the kernel.
    pub text: String,
}
