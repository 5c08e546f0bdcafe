//! [`World`]: the GPUs of one simulated host. One thread drives it; nothing in it waits.

mod access;
mod barrier;
mod calls;
mod clock;
mod cluster;
mod collective;
mod complete;
mod copies;
mod fiber;
mod gather;
mod image;
mod launch;
mod machine;
mod memory;
mod mma;
mod operand;
mod report;
mod schedule;
mod shadow;
mod signals;
mod sync;
mod tensor;
mod tma;

pub use image::Image;
pub use memory::host_bytes;

use clock::Clock;
use fiber::{Fiber, Stacks};
use launch::Grid;
use machine::Machine;
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
pub struct Moment(Clock);

impl Moment {
    /// After this moment and after `other`.
    pub fn join(&mut self, other: &Moment) {
        self.0.join(&other.0);
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
pub struct World {
    machine: Box<Machine>,
    /// By thread of the machine.
    fibers: Vec<Option<Fiber>>,
    stacks: Stacks,
    /// Copies and the like that have not been made.
    copies: Vec<copies::Pending>,
    finished: Vec<(TaskId, Outcome, Moment)>,
    next_task: u64,
    speeds: schedule::Speeds,
    /// By how much time jumps next, if nothing else happens.
    jump_ns: u64,
    /// How often it has jumped since work was started last.
    jumps: u32,
}

// SAFETY: fibers run on whichever thread calls `advance`, one at a time; what they keep on their stacks is the kernel's
// own, and raw pointers in the machine lead into those stacks.
unsafe impl Send for World {}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "World({:?})", self.machine.options)
    }
}

impl World {
    /// GPUs without memory or work.
    #[must_use]
    pub fn new(options: Options) -> Self {
        signals::handle();
        Self {
            speeds: schedule::Speeds::new(&options),
            machine: Box::new(Machine::new(options)),
            fibers: Vec::new(),
            stacks: Stacks::default(),
            copies: Vec::new(),
            finished: Vec::new(),
            next_task: 0,
            jump_ns: schedule::FIRST_JUMP_NS,
            jumps: 0,
        }
    }

    /// Physical memory of a GPU; its content is undefined.
    ///
    /// None if this host has not enough memory.
    pub fn create(&mut self, device: u32, bytes: u64) -> Option<PhysicalId> {
        self.machine.memory.create(device, bytes)
    }

    /// Frees physical memory when its last mapping goes.
    pub fn release(&mut self, memory: PhysicalId) {
        self.machine.memory.release(memory);
    }

    /// Addresses that nothing is mapped at yet. They are no memory of this process: plain accesses fault.
    pub fn reserve(&mut self, bytes: u64) -> u64 {
        self.machine.memory.reserve(bytes)
    }

    /// Gives back reserved addresses. They are not used again, so that a late access is noticed.
    pub fn unreserve(&mut self, _address: u64, _bytes: u64) {}

    /// Maps the whole of `memory` at reserved addresses, for `device` to access.
    pub fn map(&mut self, address: u64, memory: PhysicalId, device: u32) {
        self.machine.memory.map(address, memory, device);
    }

    /// Takes a mapping away.
    pub fn unmap(&mut self, address: u64) {
        self.machine.memory.unmap(address);
    }

    /// Lets all GPUs access this process's memory at its own address (pinned host memory), until `disown_host`.
    ///
    /// # Safety
    /// The memory must live until then, and be accessed by others through atomics only.
    pub unsafe fn adopt_host(&mut self, address: u64, bytes: u64) {
        self.machine.memory.map_host(address, bytes);
    }

    /// See [`Self::adopt_host`].
    pub fn disown_host(&mut self, address: u64) {
        self.machine.memory.unmap(address);
    }

    /// Starts `work` on `device`, after a moment. The work of a stream is started piece by piece as it finishes.
    pub fn start(&mut self, device: u32, work: Work, after: &Moment) -> TaskId {
        let task = TaskId(self.next_task);
        self.next_task += 1;
        match work {
            Work::Kernel {
                image,
                ctas,
                cluster_ctas,
                threads,
                smem_bytes,
                args,
            } => {
                let grid = Grid {
                    image,
                    ctas,
                    cluster_ctas,
                    threads,
                    smem_bytes,
                    args,
                };
                let fibers = (&mut self.fibers, &mut self.stacks);
                if let Err(why) = self
                    .machine
                    .start_kernel(task, device, &grid, &after.0, fibers)
                {
                    self.finished
                        .push((task, Outcome::Failed(why), after.clone()));
                }
            }
            work => self.copies.push(copies::Pending {
                task,
                device,
                work,
                after: after.0.clone(),
            }),
        }
        self.jump_ns = schedule::FIRST_JUMP_NS;
        self.jumps = 0;
        task
    }

    /// What has finished since the last call, with its moment.
    pub fn take_finished(&mut self) -> Vec<(TaskId, Outcome, Moment)> {
        std::mem::take(&mut self.finished)
    }

    /// What kernels have published to host memory.
    #[must_use]
    pub fn published_to_host(&self) -> Moment {
        Moment(self.machine.host.clone())
    }

    /// What was found since the last call.
    pub fn take_findings(&mut self) -> Vec<Finding> {
        self.machine.reports.take()
    }

    /// Gives places of the allocation at `address` names by their offsets, for findings.
    pub fn name_memory(
        &mut self,
        address: u64,
        names: impl Fn(u64) -> Option<String> + Send + 'static,
    ) {
        self.machine.memory.name(address, Box::new(names));
    }

    /// What happened so far as JSON for Perfetto or chrome://tracing; with [`Options::timeline`].
    #[must_use]
    pub fn timeline(&self) -> String {
        self.machine.reports.timeline()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for fiber in self.fibers.drain(..).flatten() {
            fiber.end(&mut self.stacks);
        }
    }
}

/// Memory of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PhysicalId(pub u64);
