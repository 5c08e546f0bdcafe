//! [`World`]: the GPUs of one simulated host. One thread drives it; nothing in it waits.

use std::sync::Arc;

/// How a world behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// GPUs of the host.
    pub devices: u32,
    /// Decides every choice: who runs, what completes late. Equal seeds and equal work give equal runs.
    pub seed: u64,
    /// How unfair the schedule is to ranks, CTAs and warps, 0 (fair) to 100.
    pub skew: u32,
    /// Keep what each role did when, for [`World::timeline`].
    pub timeline: bool,
}

/// A point in the order of events: all that happened before it. What starts after a moment sees all of it.
#[derive(Clone, Debug, Default)]
pub struct Moment {
    // Filled in by the clocks.
}

impl Moment {
    /// After this moment and after `other`.
    pub fn join(&mut self, other: &Moment) {
        let _ = other;
        todo!()
    }
}

/// A kernel as code of this host: a shared object that the host's compiler made.
#[derive(Debug)]
pub struct Image {}

impl Image {
    /// Loads the shared object of one kernel.
    ///
    /// # Errors
    /// Why it is none.
    pub fn load(bytes: &[u8]) -> Result<Arc<Self>, String> {
        let _ = bytes;
        todo!()
    }

    /// Size of the kernel's one parameter, which `cuLaunchKernel` is not told.
    #[must_use]
    pub fn args_bytes(&self) -> usize {
        todo!()
    }
}

/// What a stream runs, one after the other.
#[derive(Clone, Debug)]
pub enum Work {
    /// A kernel.
    Kernel {
        /// Its code.
        image: Arc<Image>,
        /// CTAs.
        ctas: u32,
        /// CTAs of a cluster.
        cluster_ctas: u32,
        /// Threads of a CTA.
        threads: u32,
        /// Dynamic shared memory of a CTA.
        smem_bytes: u32,
        /// The one parameter.
        args: Vec<u8>,
    },
    /// Rows from one place of device memory (or pinned host memory) to another, any GPU's of this host.
    Copy {
        /// First byte written.
        to: u64,
        /// First byte read.
        from: u64,
        /// From row to row of the target.
        to_pitch_bytes: u64,
        /// From row to row of the source.
        from_pitch_bytes: u64,
        /// Of a row.
        row_bytes: u64,
        /// Rows.
        rows: u64,
    },
    /// Bytes of the host to device memory.
    Upload {
        /// First byte written.
        to: u64,
        /// What is written.
        bytes: Vec<u8>,
    },
    /// Device memory to the host: the bytes come with [`Outcome::Read`].
    Download {
        /// First byte read.
        from: u64,
        /// How many.
        bytes: u64,
    },
    /// The same byte everywhere.
    Fill {
        /// First byte written.
        to: u64,
        /// The value.
        value: u8,
        /// How many.
        bytes: u64,
    },
    /// A word, after all earlier work of the stream, for all to see.
    Write {
        /// Its address.
        to: u64,
        /// The value.
        value: u32,
    },
}

/// A piece of work on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub u64);

/// How a piece of work ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Well.
    Done,
    /// The bytes of a [`Work::Download`].
    Read(Vec<u8>),
    /// A kernel trapped, or did what would have ended it on a GPU (an access out of bounds).
    Failed(String),
}

/// What [`World::advance`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advance {
    /// Something was done; call again.
    Busy,
    /// All work is finished.
    Idle,
    /// No work can go on: all wait for each other, or for something that the host has not enqueued yet. Simulated time
    /// stands still. [`World::let_time_pass`] lets deadlines come.
    Stuck,
}

/// Something that a kernel must not do, with all that helps to mend it.
#[derive(Clone, Debug)]
pub struct Finding {
    /// In a word, such as `race` or `deadlock`.
    pub kind: &'static str,
    /// For people, several lines.
    pub text: String,
}

/// The GPUs of one simulated host.
#[derive(Debug)]
pub struct World {}

#[allow(unused_variables, reason = "the engine is being written")]
impl World {
    /// GPUs without memory or work.
    #[must_use]
    pub fn new(options: Options) -> Self {
        todo!()
    }

    /// Physical memory of a GPU; its content is undefined.
    pub fn create(&mut self, device: u32, bytes: u64) -> PhysicalId {
        todo!()
    }

    /// Frees physical memory when its last mapping goes.
    pub fn release(&mut self, memory: PhysicalId) {
        todo!()
    }

    /// Addresses that nothing is mapped at yet. They are no memory of this process: plain accesses fault.
    pub fn reserve(&mut self, bytes: u64) -> u64 {
        todo!()
    }

    /// Gives back reserved addresses.
    pub fn unreserve(&mut self, address: u64, bytes: u64) {
        todo!()
    }

    /// Maps the whole of `memory` at reserved addresses, for `device` to access.
    pub fn map(&mut self, address: u64, memory: PhysicalId, device: u32) {
        todo!()
    }

    /// Takes a mapping away.
    pub fn unmap(&mut self, address: u64) {
        todo!()
    }

    /// Lets all GPUs access this process's memory at its own address (pinned host memory), until `disown_host`.
    ///
    /// # Safety
    /// The memory must live until then, and be accessed by others through atomics only.
    pub unsafe fn adopt_host(&mut self, address: u64, bytes: u64) {
        todo!()
    }

    /// See [`Self::adopt_host`].
    pub fn disown_host(&mut self, address: u64) {
        todo!()
    }

    /// Starts `work` on `device`, after a moment. The work of a stream is started piece by piece as it finishes.
    pub fn start(&mut self, device: u32, work: Work, after: &Moment) -> TaskId {
        todo!()
    }

    /// Lets work go on for a while.
    pub fn advance(&mut self) -> Advance {
        todo!()
    }

    /// What has finished since the last call, with its moment.
    pub fn take_finished(&mut self) -> Vec<(TaskId, Outcome, Moment)> {
        todo!()
    }

    /// When stuck: lets simulated time jump, so that deadlines in kernels pass. Says who waits for what as a finding
    /// first, once per standstill, if `report` is set.
    pub fn let_time_pass(&mut self, report: bool) {
        todo!()
    }

    /// What kernels have published to host memory.
    pub fn published_to_host(&self) -> Moment {
        todo!()
    }

    /// What was found since the last call.
    pub fn take_findings(&mut self) -> Vec<Finding> {
        todo!()
    }

    /// Events of the run so far as JSON for Perfetto or chrome://tracing.
    #[must_use]
    pub fn timeline(&self) -> String {
        todo!()
    }
}

/// Memory of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PhysicalId(pub u64);
