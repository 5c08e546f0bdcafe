//! Operations on mbarriers, which count arrivals and bytes in shared memory.

use super::machine::Machine;
use super::stamp::{AccessKind, Accessor};
use super::state::barrier::{Arrivals, Barrier};
use super::state::launch::SHARED_BITS;
use super::state::sync_words::Scope;
use super::state::thread::ThreadState;

impl Machine {
    /// Returns the CTA and the index of the barrier at `address`; `None` without a barrier there.
    fn barrier_at(&mut self, address: u32) -> Option<(usize, usize)> {
        let cta = self.shared_cta(address)?;
        let offset = address & ((1 << SHARED_BITS) - 1);
        let index = self.ctas[cta]
            .barriers
            .iter()
            .position(|barrier| barrier.address == offset)?;
        Some((cta, index))
    }

    /// Returns the barrier at `address`, or reports that the address has no barrier.
    fn barrier_or_report(&mut self, address: u32, pc: u64, doing: &str) -> Option<(usize, usize)> {
        let found = self.barrier_at(address);
        if found.is_none() {
            self.report_at(
                pc,
                "barrier",
                format!("{doing} at {address:#x}, but no barrier was initialised there"),
            );
        }
        found
    }

    /// Initialises the barrier at `address` for `arrivals` arrivals in each phase.
    pub fn barrier_init(&mut self, address: u32, arrivals: u32, pc: u64) {
        if arrivals == 0 || !address.is_multiple_of(8) {
            self.report_at(
                pc,
                "barrier",
                format!(
                    "a barrier at {address:#x} for {arrivals} arrivals: the address must be a multiple of 8, and arrivals at least 1"
                ),
            );
            return;
        }
        // The barrier's words count as written by this thread, so that other uses of them are found.
        let unfenced = self.thread().unfenced_shared;
        self.store_shared(address, &[0; 8], pc);
        // A barrier becomes visible to TMA by a different fence than ordinary words.
        self.thread().unfenced_shared = unfenced;
        let current = self.current;
        let counter = self.counter_for(current);
        let barrier = Barrier {
            address,
            count: arrivals,
            pending: arrivals,
            bytes: 0,
            phases: 0,
            counter,
            arriving: Arrivals::default(),
            arrived: Arrivals::default(),
            fenced: false,
            waiting: Vec::new(),
        };
        let cta = self.cta_of(current);
        cta.barriers.retain(|other| other.address != address);
        cta.barriers.push(barrier);
    }

    /// Adds `bytes` to the bytes that the current phase of the barrier at `address` waits for.
    pub fn barrier_expect_bytes(&mut self, address: u32, bytes: u32, pc: u64) {
        let Some((cta, index)) = self.barrier_or_report(address, pc, "expectation of bytes") else {
            return;
        };
        self.check_barrier_word(cta, address, pc);
        self.ctas[cta].barriers[index].bytes += i64::from(bytes);
        self.trace(pc, || format!("announces {bytes} bytes at {address:#x}"));
    }

    /// Arrives at the barrier at `address`, after adding `bytes` to the bytes that the phase waits for.
    pub fn barrier_arrive(&mut self, address: u32, bytes: u32, scope: Scope, pc: u64) {
        let Some((cta, index)) = self.barrier_or_report(address, pc, "arrival") else {
            return;
        };
        let of_other = cta != self.threads[self.current].cta;
        if of_other && scope == Scope::Cta {
            let text = format!(
                "arrival at the barrier {address:#x} of another CTA, by an instruction for barriers of the own CTA"
            );
            return self.report_at(pc, "barrier", text);
        }
        self.check_running(cta, "arrival at a barrier", pc);
        self.check_barrier_word(cta, address, pc);
        let release = self.release(self.current);
        let barrier = &mut self.ctas[cta].barriers[index];
        barrier.bytes += i64::from(bytes);
        if barrier.pending == 0 {
            let (phase, count, missing) = (barrier.phases, barrier.count, barrier.bytes);
            let text = format!(
                "arrival {} at the barrier {address:#x}, which expects {count} in phase {phase} and now waits for {missing} bytes",
                count + 1
            );
            self.report_at(pc, "barrier over-arrived", text);
            return;
        }
        barrier.pending -= 1;
        let arrivals = &mut barrier.arriving;
        let seen_by = if of_other {
            &mut arrivals.of_others
        } else {
            &mut arrivals.of_own_cta
        };
        seen_by.add(&release);
        self.trace(pc, || {
            format!("arrives at {address:#x} announcing {bytes} bytes")
        });
        self.complete_phase(cta, index);
    }

    /// Counts bytes that a copy has written.
    pub fn barrier_bytes(&mut self, cta: usize, index: usize, bytes: u32) {
        self.ctas[cta].barriers[index].bytes -= i64::from(bytes);
        self.complete_phase(cta, index);
    }

    /// Completes the current phase if it lacks no arrivals and no bytes.
    fn complete_phase(&mut self, cta: usize, index: usize) {
        let barrier = &mut self.ctas[cta].barriers[index];
        if barrier.pending != 0 || barrier.bytes != 0 {
            return;
        }
        barrier.phases += 1;
        barrier.pending = barrier.count;
        let arriving = std::mem::take(&mut barrier.arriving);
        let mut of_own_cta = arriving.of_own_cta.into_view();
        let of_others = arriving.of_others.into_view();
        let (component, step) = barrier.counter.at(barrier.phases);
        of_own_cta.raise(component, step);
        barrier.arrived.of_own_cta.join(&of_own_cta);
        barrier.arrived.of_others.join(&of_others);
        let address = barrier.address;
        for thread in std::mem::take(&mut barrier.waiting) {
            // The thread may have continued because time has passed.
            if matches!(self.threads[thread].state, ThreadState::Barrier { address: of, .. } if of == address)
            {
                self.wake(thread);
            }
        }
    }

    /// Returns whether the phase with `parity` is complete. Otherwise blocks the thread until the phase is complete and
    /// returns `None`, and the caller polls again. While simulated time passes, returns `Some(false)` instead.
    pub fn barrier_poll(
        &mut self,
        address: u32,
        parity: u32,
        scope: Scope,
        pc: u64,
    ) -> Option<bool> {
        let Some((cta, index)) = self.barrier_or_report(address, pc, "wait") else {
            self.fail("the kernel waits at a barrier that does not exist".into());
            self.block(ThreadState::Converging, pc);
            return None;
        };
        let current = self.current;
        if cta != self.threads[current].cta {
            self.report_at(
                pc,
                "barrier",
                format!("wait at the barrier {address:#x} of another CTA"),
            );
        }
        let barrier = &mut self.ctas[cta].barriers[index];
        if barrier.phases & 1 != parity & 1 {
            let of_own_cta = barrier.arrived.of_own_cta.clone();
            let of_others = (scope != Scope::Cta).then(|| barrier.arrived.of_others.clone());
            self.check_barrier_word(cta, address, pc);
            let view = &mut self.threads[current].view;
            self.join_cache.join(view, &of_own_cta);
            if let Some(of_others) = of_others {
                view.join(&of_others);
            }
            return Some(true);
        }
        if self.threads[current].free_polls > 0 {
            self.threads[current].free_polls -= 1;
            return Some(false);
        }
        barrier.waiting.push(current);
        self.block(ThreadState::Barrier { address, parity }, pc);
        None
    }

    /// Checks that the initialisation of the barrier happened before the running thread's access.
    pub fn check_barrier_word(&mut self, cta: usize, address: u32, pc: u64) {
        let stamp = self.stamp(self.current, AccessKind::AtomicSys, pc);
        let offset = self.shared_offset(address);
        let thread = &self.threads[self.current];
        let generic = [&thread.view.generic];
        let by = Accessor::ordinary(stamp, thread.slot, &generic);
        let cells = &mut self.ctas[cta].smem.cells[offset / 4..offset / 4 + 1];
        if let Some((fault, earlier, _)) = self.shadow.access(cells, &by, false) {
            self.report_access_fault(
                fault,
                earlier,
                stamp,
                &format!("barrier {address:#x} in shared memory"),
            );
        }
    }
}
