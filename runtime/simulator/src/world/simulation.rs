//! [`World`]: the GPUs of one simulated host, and the interface through which the driver uses them.

use super::clock::Clock;
use super::fiber::{Fiber, Stacks};
use super::host_copies::PendingCopy;
use super::interface::{Finding, Moment, Options, Outcome, TaskId, Work};
use super::launch::LaunchConfig;
use super::machine::Machine;
use super::memory::PhysicalId;
use super::signals;
use super::speeds::Speeds;

/// The first jump of simulated time when no work can continue.
pub(super) const FIRST_JUMP_NS: u64 = 1_000_000;

/// The GPUs of one simulated host.
pub struct World {
    pub(super) machine: Box<Machine>,
    /// The fiber of each thread of the machine.
    pub(super) fibers: Vec<Option<Fiber>>,
    pub(super) stacks: Stacks,
    /// Copies and other work of the host that has been started and not been done.
    pub(super) copies: Vec<PendingCopy>,
    pub(super) finished: Vec<(TaskId, Outcome, Moment)>,
    next_task: u64,
    pub(super) speeds: Speeds,
    /// The next jump of simulated time if no work is started before the jump.
    pub(super) jump_ns: u64,
    /// The number of jumps of simulated time since work was last started.
    pub(super) jumps: u32,
    /// Whether waits at barriers see time pass while threads poll words.
    pub(super) barriers_see_time: bool,
}

// SAFETY: fibers run on the thread that calls `advance`, one at a time. The data on their stacks belongs to the kernel,
// and the raw pointers in the machine point into those stacks.
unsafe impl Send for World {}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "World({:?})", self.machine.options)
    }
}

impl World {
    /// Creates GPUs without memory or work.
    #[must_use]
    pub fn new(options: Options) -> Self {
        signals::install_handlers();
        Self {
            speeds: Speeds::new(&options),
            machine: Box::new(Machine::new(options)),
            fibers: Vec::new(),
            stacks: Stacks::default(),
            copies: Vec::new(),
            finished: Vec::new(),
            next_task: 0,
            jump_ns: FIRST_JUMP_NS,
            jumps: 0,
            barriers_see_time: false,
        }
    }

    /// Lets waits at barriers see time pass even while threads poll words. Without this, waits at barriers do not end
    /// before the waits for words that they depend on, and a standstill costs less CPU time.
    pub fn let_barriers_see_time(&mut self) {
        self.barriers_see_time = true;
    }

    /// Creates physical memory of a GPU. Its content is undefined.
    ///
    /// Returns `None` if the machine that runs the simulator has too little memory.
    pub fn create(&mut self, device: u32, bytes: u64) -> Option<PhysicalId> {
        self.machine.memory.create(device, bytes)
    }

    /// Frees physical memory as soon as it has no mapping.
    pub fn release(&mut self, memory: PhysicalId) {
        self.machine.memory.release(memory);
    }

    /// Reserves addresses at which nothing is mapped. The addresses are not memory of this process, so a plain access
    /// faults.
    pub fn reserve(&mut self, bytes: u64) -> u64 {
        self.machine.memory.reserve(bytes)
    }

    /// Gives reserved addresses back. The addresses are not used again, so that a late access is noticed.
    pub fn unreserve(&mut self, _address: u64, _bytes: u64) {}

    /// Maps the whole of `memory` at reserved addresses. Kernels of `device` may then access it.
    pub fn map(&mut self, address: u64, memory: PhysicalId, device: u32) {
        self.machine.memory.map(address, memory, device);
    }

    /// Removes a mapping.
    pub fn unmap(&mut self, address: u64) {
        self.machine.memory.unmap(address);
    }

    /// Lets all GPUs access memory of this process at its own address, as pinned host memory, until `disown_host`.
    ///
    /// # Safety
    /// The memory must live until then. Others must access it through atomics only.
    pub unsafe fn adopt_host(&mut self, address: u64, bytes: u64) {
        self.machine.memory.map_host(address, bytes);
    }

    /// Reverts [`Self::adopt_host`].
    pub fn disown_host(&mut self, address: u64) {
        self.machine.memory.unmap(address);
    }

    /// Starts `work` on `device`, ordered after a moment. The driver starts the next work of a stream when the previous
    /// one has finished.
    pub fn start(&mut self, device: u32, work: Work, after: &Moment) -> TaskId {
        self.start_behind(device, work, after, None)
    }

    /// Starts `work` as [`start`](Self::start) does. A kernel may start while the kernel `before` still runs, if that kernel
    /// [allows it].
    ///
    /// [allows it]: Self::allows_overlap
    pub fn start_behind(
        &mut self,
        device: u32,
        work: Work,
        after: &Moment,
        before: Option<TaskId>,
    ) -> TaskId {
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
                overlaps: _,
            } => {
                let config = LaunchConfig {
                    image,
                    ctas,
                    cluster_ctas,
                    threads,
                    smem_bytes,
                    args,
                };
                self.start_kernel(task, device, &config, (after, before));
            }
            work => self.copies.push(PendingCopy {
                task,
                device,
                work,
                after: after.0.clone(),
            }),
        }
        self.jump_ns = FIRST_JUMP_NS;
        self.jumps = 0;
        task
    }

    /// Returns whether the kernel behind a running one may start.
    #[must_use]
    pub fn allows_overlap(&self, task: TaskId) -> bool {
        let launch = self.machine.launch_of(task);
        launch.is_some_and(|launch| self.machine.allows_overlap(launch))
    }

    fn start_kernel(
        &mut self,
        task: TaskId,
        device: u32,
        config: &LaunchConfig,
        (after, before): (&Moment, Option<TaskId>),
    ) {
        let fibers = (&mut self.fibers, &mut self.stacks);
        let clock: &Clock = &after.0;
        let started = self
            .machine
            .start_kernel(task, device, config, (clock, before), fibers);
        if let Err(why) = started {
            let failed = Outcome::Failed(why);
            self.finished.push((task, failed, after.clone()));
        }
    }

    /// Returns the work that has finished since the last call, each with the moment of its end.
    pub fn take_finished(&mut self) -> Vec<(TaskId, Outcome, Moment)> {
        std::mem::take(&mut self.finished)
    }

    /// Returns the moment after everything that kernels have published to host memory.
    #[must_use]
    pub fn published_to_host(&self) -> Moment {
        Moment(self.machine.host.clone())
    }

    /// Returns whether a kernel has aborted.
    #[must_use]
    pub fn has_aborted(&self) -> bool {
        self.machine.is_aborted
    }

    /// Returns the findings since the last call.
    pub fn take_findings(&mut self) -> Vec<Finding> {
        self.machine.reports.take()
    }

    /// Makes memory a block whose bytes have names by offset, for findings. In memory with blocks, kernels may only access
    /// blocks.
    pub fn name_memory(
        &mut self,
        address: u64,
        bytes: u64,
        names: impl Fn(u64) -> Option<String> + Send + 'static,
    ) {
        self.machine.memory.name(address, bytes, Box::new(names));
    }

    /// Returns the events so far as JSON for Perfetto or chrome://tracing. Requires [`Options::timeline`].
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
