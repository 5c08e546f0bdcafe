//! Kernels: how they start, and how they end.

use super::clock::{Clock, Component, View};
use super::fiber::{Fiber, Stacks};
use super::machine::{
    Cta, Launch, Machine, State, Thread, ThreadInfo, WARP, WARPGROUP_WARPS, Warp,
};
use super::tma::Operation;
use super::{Image, TaskId, calls};
use std::sync::Arc;

/// A component, and the step from which something counts on it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Strand {
    pub component: Component,
    pub base: u32,
}

impl Strand {
    pub fn at(&self, step: u32) -> (Component, u32) {
        (self.component, self.base + step)
    }
}

/// Counters of a CTA's warps and threads, which later launches on the same GPU go on with: clocks stay short.
#[derive(Clone, Debug, Default)]
pub(super) struct CtaSlot {
    /// By warp: component and step.
    warps: Vec<(Component, u32)>,
    /// Slot of the first thread.
    first: u32,
    solo_steps: Vec<u32>,
}

/// Counters of a GPU that nothing uses now.
#[derive(Debug, Default)]
pub(super) struct Free {
    slots: Vec<CtaSlot>,
    strands: Vec<Strand>,
}

/// A part of a kernel's parameter, aligned like the tensor maps in it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
pub(super) struct Line([u8; 128]);

impl Line {
    fn new(bytes: &[u8]) -> Self {
        let mut line = [0; 128];
        line[..bytes.len()].copy_from_slice(bytes);
        Self(line)
    }
}

/// What a kernel is started with.
#[derive(Clone, Debug)]
pub(super) struct Grid {
    pub image: Arc<Image>,
    pub ctas: u32,
    pub cluster_ctas: u32,
    pub threads: u32,
    pub smem_bytes: u32,
    pub args: Vec<u8>,
}

impl Grid {
    /// What would have made the launch fail on a GPU.
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
                "{} bytes of arguments for a kernel that has {}",
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
                "{ctas} CTAs of {threads} threads; whole warps and at most 1024 threads are simulated"
            ));
        }
        let clusters = (*cluster_ctas).max(1);
        (!ctas.is_multiple_of(clusters)).then(|| format!("{ctas} CTAs in clusters of {clusters}"))
    }
}

impl Machine {
    pub fn strand(&mut self, device: u32) -> Strand {
        match self.free[device as usize].strands.pop() {
            Some(strand) => strand,
            None => Strand {
                component: self.component(),
                base: 0,
            },
        }
    }

    pub fn free_strand(&mut self, device: u32, strand: Strand, used: u32) {
        self.free[device as usize].strands.push(Strand {
            base: strand.base + used,
            ..strand
        });
    }

    /// Starts a kernel; its fibers are added to `fibers`.
    pub fn start_kernel(
        &mut self,
        task: TaskId,
        device: u32,
        grid: &Grid,
        after: &Clock,
        (fibers, stacks): (&mut Vec<Option<Fiber>>, &mut Stacks),
    ) -> Result<(), String> {
        if let Some(fault) = grid.fault() {
            return Err(fault);
        }
        let launch = self.launches.len();
        let args: Arc<[Line]> = grid.args.chunks(128).map(Line::new).collect();
        let first_cta = self.ctas.len();
        for index in 0..grid.ctas {
            self.add_cta(launch, device, index, grid, after);
            for _ in 0..grid.threads {
                let fiber = Fiber::new(stacks, grid.image.clone(), args.clone(), calls::started);
                fibers.push(Some(fiber));
            }
        }
        self.reports.images.push(grid.image.clone());
        self.launches.push(Some(Launch {
            task,
            device,
            ctas: (first_cta..self.ctas.len()).collect(),
            running: grid.ctas * grid.threads,
            failed: None,
            known: after.clone(),
        }));
        Ok(())
    }

    fn add_cta(&mut self, launch: usize, device: u32, index: u32, grid: &Grid, after: &Clock) {
        let slot = self.take_slot(device, grid.threads);
        let cta = self.ctas.len();
        let size = grid.cluster_ctas.max(1);
        let first = cta - (index % size) as usize;
        let first_thread = self.threads.len();
        let mut smem = self.unused_smem.pop().unwrap_or_default();
        smem.renew(grid.smem_bytes as usize);
        self.ctas.push(Cta {
            launch,
            device,
            index,
            cluster: (first..first + size as usize).collect(),
            smem,
            barriers: Vec::new(),
            named: Vec::new(),
            cluster_meeting: Default::default(),
            threads: first_thread,
            thread_count: grid.threads,
            running: grid.threads,
            mmas: (0..(grid.threads as usize).div_ceil(WARP * WARPGROUP_WARPS))
                .map(|_| Default::default())
                .collect(),
            slot: slot.clone(),
        });
        for thread in 0..grid.threads {
            let lane = thread as usize % WARP;
            if lane == 0 {
                let (component, step) = slot.warps[thread as usize / WARP];
                self.ready.push(self.warps.len());
                self.warps.push(Warp {
                    cta,
                    component,
                    step: step + 1,
                    first_thread: self.threads.len(),
                    ready: u32::MAX,
                    meeting: Default::default(),
                });
            }
            self.threads.push(Thread {
                info: ThreadInfo {
                    thread,
                    threads: grid.threads,
                    cta: index,
                    ctas: grid.ctas,
                    cluster_rank: index % size,
                },
                cta,
                warp: self.warps.len() - 1,
                state: State::Ready,
                place: 0,
                view: View::all(after),
                slot: slot.first + thread,
                solo_step: slot.solo_steps[thread as usize] + 1,
                fenced_shared: 0,
                fenced_global: 0,
                unfenced_shared: false,
                unfenced_global: false,
                seen: View::default(),
                published: None,
                stamps: Vec::new(),
                polled: Vec::new(),
                slept: false,
                awaited: Default::default(),
                free_polls: 0,
                bulk: Default::default(),
                gather: Default::default(),
                result: 0,
                exchange: [0; 5],
                yielder: std::ptr::null(),
            });
        }
    }

    fn take_slot(&mut self, device: u32, threads: u32) -> CtaSlot {
        let free = &mut self.free[device as usize].slots;
        if let Some(index) = free
            .iter()
            .position(|slot| slot.solo_steps.len() == threads as usize)
        {
            return free.swap_remove(index);
        }
        let first = self.shadow.solos.len() as u32;
        self.shadow
            .solos
            .resize(first as usize + threads as usize, None);
        let warps = (0..threads as usize / WARP)
            .map(|_| (self.component(), 0))
            .collect();
        CtaSlot {
            warps,
            first,
            solo_steps: vec![0; threads as usize],
        }
    }

    /// A thread has returned. True if it was the last of its launch.
    pub fn thread_ended(&mut self, thread: usize) -> bool {
        self.threads[thread].state = State::Ended;
        let cta = self.threads[thread].cta;
        let launch = self.ctas[cta].launch;
        self.ctas[cta].running -= 1;
        if self.ctas[cta].running == 0 {
            self.check_left(cta, thread);
        }
        self.leave_cta(cta);
        self.leave_cluster(cta);
        let Some(launch) = self.launches[launch].as_mut() else {
            return false;
        };
        launch.running -= 1;
        launch.running == 0
    }

    /// What a CTA must not leave behind.
    fn check_left(&mut self, cta: usize, thread: usize) {
        let operations = std::mem::take(&mut self.operations);
        let needs_cta = |operation: &Operation| operation.needs(self) == cta;
        let (left, others): (Vec<_>, Vec<_>) = operations.into_iter().partition(needs_cta);
        self.operations = others;
        for (owner, place) in left
            .iter()
            .map(|operation| (operation.thread, operation.place()))
        {
            self.current = owner;
            let text = "a CTA ended while this copy from or to its shared memory was on its way";
            self.find_at(place, "copy left behind", text.into());
        }
        self.current = thread;
        let partial: Vec<String> = self.ctas[cta]
            .barriers
            .iter()
            .filter(|barrier| barrier.pending != barrier.count || barrier.bytes != 0)
            .map(|barrier| {
                format!(
                    "{:#x} lacks {} of {} arrivals and {} bytes",
                    barrier.address, barrier.pending, barrier.count, barrier.bytes
                )
            })
            .collect();
        if !partial.is_empty() {
            let text = format!(
                "a CTA ended in the middle of a phase: barrier {}",
                partial.join(", ")
            );
            let place = self.threads[thread].place;
            self.find_at(place, "barrier under-arrived", text);
        }
        self.check_reached(cta, thread);
    }

    /// The end of a launch: what it did, and its counters for the next.
    pub fn end_launch(&mut self, launch: usize) -> Option<(TaskId, Clock, Option<String>)> {
        let Launch {
            task,
            device,
            ctas,
            mut known,
            failed,
            ..
        } = self.launches[launch].take()?;
        self.operations
            .retain(|operation| operation.launch != launch);
        for cta in ctas {
            let (first, count) = (self.ctas[cta].threads, self.ctas[cta].thread_count as usize);
            let mut slot = std::mem::take(&mut self.ctas[cta].slot);
            for thread in first..first + count {
                let lane = thread - first;
                let t = &mut self.threads[thread];
                t.state = State::Ended;
                known.join(&t.view.generic);
                slot.solo_steps[lane] = t.solo_step;
                let bulk = std::mem::take(&mut t.bulk);
                let (slot_of, solo_step) = (t.slot as usize, t.solo_step);
                t.view = View::default();
                t.seen = View::default();
                t.published = None;
                if let Some(component) = self.shadow.solos[slot_of] {
                    known.raise(component, solo_step);
                }
                if let Some((reads, writes)) = bulk.strands {
                    for strand in [reads, writes] {
                        known.raise(strand.component, strand.base + bulk.committed + 1);
                        self.free_strand(device, strand, bulk.committed + 1);
                    }
                }
                if lane.is_multiple_of(WARP) {
                    let warp = &self.warps[self.threads[thread].warp];
                    known.raise(warp.component, warp.step);
                    slot.warps[lane / WARP].1 = warp.step;
                }
            }
            let cta = &mut self.ctas[cta];
            self.unused_smem.push(std::mem::take(&mut cta.smem));
            let barriers = std::mem::take(&mut cta.barriers)
                .into_iter()
                .map(|barrier| (barrier.strand, barrier.phases + 1));
            let mmas = std::mem::take(&mut cta.mmas);
            let mmas = mmas
                .iter()
                .filter_map(|mma| Some((mma.strand?, mma.groups_done + 1)));
            for (strand, used) in barriers.chain(mmas).collect::<Vec<_>>() {
                known.raise(strand.component, strand.base + used);
                self.free_strand(device, strand, used);
            }
            self.free[device as usize].slots.push(slot);
        }
        self.ready
            .retain(|warp| self.ctas[self.warps[*warp].cta].launch != launch);
        Some((task, known, failed))
    }
}
