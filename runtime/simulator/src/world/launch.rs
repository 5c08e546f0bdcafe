//! The start of kernels: their CTAs, warps, threads and fibers.

use super::calls;
use super::clock::{Clock, View};
use super::fiber::{ArgsBlock, Fiber, Stacks};
use super::image::Image;
use super::interface::TaskId;
use super::machine::Machine;
use super::state::convergence::{WARP, WARPGROUP_WARPS, Warp};
use super::state::counters::{CtaCounters, StepCounter};
use super::state::launch::{Cta, Launch};
use super::state::thread::{Thread, ThreadInfo, ThreadState};
use std::sync::Arc;

/// The kernel, the grid and the argument of a launch.
#[derive(Clone, Debug)]
pub(super) struct LaunchConfig {
    pub image: Arc<Image>,
    pub ctas: u32,
    pub cluster_ctas: u32,
    pub threads: u32,
    pub smem_bytes: u32,
    pub args: Vec<u8>,
}

impl LaunchConfig {
    /// Returns the reason why the launch would fail on a GPU, or why it cannot be simulated.
    fn fault(&self) -> Option<String> {
        let Self {
            ctas,
            cluster_ctas,
            threads,
            args,
            image,
            ..
        } = self;
        if args.len() < image.args_bytes() {
            return Some(format!(
                "{} bytes of arguments were passed to a kernel that takes {}",
                args.len(),
                image.args_bytes()
            ));
        }
        if *threads == 0
            || !(*threads as usize).is_multiple_of(WARP)
            || *threads > 1024
            || *ctas == 0
        {
            return Some(format!(
                "{ctas} CTAs of {threads} threads: a launch needs at least 1 CTA, and 32 to 1024 threads in whole warps"
            ));
        }
        let clusters = (*cluster_ctas).max(1);
        (!ctas.is_multiple_of(clusters))
            .then(|| format!("{ctas} CTAs are not a multiple of clusters of {clusters} CTAs"))
    }
}

impl Machine {
    /// Takes an unused step counter of `device`, or creates one.
    pub fn take_counter(&mut self, device: u32) -> StepCounter {
        match self.free_counters[device as usize].counters.pop() {
            Some(counter) => counter,
            None => StepCounter {
                component: self.new_component(),
                base: 0,
            },
        }
    }

    /// Returns a counter whose user has counted `used` steps.
    pub fn return_counter(&mut self, device: u32, counter: StepCounter, used: u32) {
        self.free_counters[device as usize]
            .counters
            .push(StepCounter {
                base: counter.base + used,
                ..counter
            });
    }

    /// Starts a kernel, which overlaps with `before` if `before` is given and has not ended. Adds a fiber for each of
    /// its threads to `fibers`.
    pub fn start_kernel(
        &mut self,
        task: TaskId,
        device: u32,
        config: &LaunchConfig,
        (after, before): (&Clock, Option<TaskId>),
        (fibers, stacks): (&mut Vec<Option<Fiber>>, &mut Stacks),
    ) -> Result<(), String> {
        if let Some(fault) = config.fault() {
            return Err(fault);
        }
        let launch = self.launches.len();
        let args: Arc<[ArgsBlock]> = config
            .args
            .chunks(ArgsBlock::BYTES)
            .map(ArgsBlock::new)
            .collect();
        let first_cta = self.ctas.len();
        let known = View::all(after);
        for index in 0..config.ctas {
            self.add_cta(launch, device, index, config, &known);
            for _ in 0..config.threads {
                let fiber = Fiber::new(stacks, config.image.clone(), args.clone(), calls::started);
                fibers.push(Some(fiber));
            }
        }
        self.reports.add_launch(&config.image);
        self.launches.push(Some(Launch {
            task,
            device,
            ctas: (first_cta..self.ctas.len()).collect(),
            running: config.ctas * config.threads,
            failed: None,
            known: after.clone(),
            before: before.and_then(|task| self.launch_of(task)),
            known_before: Clock::default(),
        }));
        Ok(())
    }

    /// Adds a CTA of a launch, with its warps and threads.
    fn add_cta(
        &mut self,
        launch: usize,
        device: u32,
        index: u32,
        config: &LaunchConfig,
        known: &View,
    ) {
        let counters = self.take_cta_counters(device, config.threads);
        let cta = self.ctas.len();
        let size = config.cluster_ctas.max(1);
        let first = cta - (index % size) as usize;
        let mut smem = self.unused_smem.pop().unwrap_or_default();
        smem.reset(config.smem_bytes as usize);
        self.ctas.push(Cta {
            launch,
            device,
            index,
            cluster: (first..first + size as usize).collect(),
            smem,
            barriers: Vec::new(),
            named: Vec::new(),
            cluster_convergence: Default::default(),
            threads: self.threads.len(),
            thread_count: config.threads,
            running: config.threads,
            allows_grid_behind: false,
            mmas: (0..(config.threads as usize).div_ceil(WARP * WARPGROUP_WARPS))
                .map(|_| Default::default())
                .collect(),
            counters: counters.clone(),
        });
        for thread in 0..config.threads {
            if (thread as usize).is_multiple_of(WARP) {
                let (component, step) = counters.warps[thread as usize / WARP];
                self.ready.push(self.warps.len());
                self.warps.push(Warp {
                    cta,
                    component,
                    step: step + 1,
                    first_thread: self.threads.len(),
                    ready: u32::MAX,
                    convergence: Default::default(),
                });
            }
            let info = ThreadInfo {
                thread,
                threads: config.threads,
                cta: index,
                ctas: config.ctas,
                cluster_rank: index % size,
            };
            let warp = self.warps.len() - 1;
            self.threads
                .push(new_thread(info, (cta, warp), &counters, known));
        }
    }

    /// Takes the counters of an earlier CTA with the same number of threads, or creates new counters.
    fn take_cta_counters(&mut self, device: u32, threads: u32) -> CtaCounters {
        let free = &mut self.free_counters[device as usize].ctas;
        if let Some(index) = free
            .iter()
            .position(|counters| counters.solo_steps.len() == threads as usize)
        {
            return free.swap_remove(index);
        }
        let first_slot = self.shadow.solos.len() as u32;
        self.shadow
            .solos
            .resize(first_slot as usize + threads as usize, None);
        let warps = (0..threads as usize / WARP)
            .map(|_| (self.new_component(), 0))
            .collect();
        CtaCounters {
            warps,
            first_slot,
            solo_steps: vec![0; threads as usize],
        }
    }
}

/// Returns a thread that is ready to run and knows `known`.
fn new_thread(
    info: ThreadInfo,
    (cta, warp): (usize, usize),
    counters: &CtaCounters,
    known: &View,
) -> Thread {
    Thread {
        info,
        cta,
        warp,
        state: ThreadState::Ready,
        pc: 0,
        view: known.clone(),
        slot: counters.first_slot + info.thread,
        solo_step: counters.solo_steps[info.thread as usize] + 1,
        fenced_shared: 0,
        fenced_global: 0,
        unfenced_shared: false,
        unfenced_global: false,
        seen: View::default(),
        published: None,
        recent: Default::default(),
        polled: Vec::new(),
        slept: false,
        wait_site: Default::default(),
        free_polls: 0,
        bulk: Default::default(),
        async_copies: Default::default(),
        result: 0,
        exchange: [0; 5],
        yielder: std::ptr::null(),
        frame: std::ptr::null(),
    }
}
