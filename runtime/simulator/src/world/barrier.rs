//! Barriers in shared memory that count arrivals and bytes.

use super::clock::{Component, Published, View};
use super::launch::Strand;
use super::machine::{Machine, SHARED_BITS, State};
use super::shadow::{Accessor, Way};
use super::sync::Scope;

/// A barrier in shared memory that counts arrivals and bytes (mbarrier).
#[derive(Debug)]
pub(super) struct Barrier {
    pub address: u32,
    pub count: u32,
    pub pending: u32,
    /// Bytes that the phase still waits for; below 0 if they came before they were announced.
    pub bytes: i64,
    /// Phases that are over.
    pub phases: u32,
    /// Counts the bytes' writers: what a phase waited for is known to all that waited for the phase.
    pub strand: Strand,
    /// Published by the arrivals of this phase, and of those before.
    arriving: Arrivals<Published>,
    arrived: Arrivals<View>,
    /// Whether TMA may know of it.
    pub fenced: bool,
    waiting: Vec<usize>,
}

/// What those published who arrived at a barrier: a wait at the scope of a CTA sees the first alone.
#[derive(Debug, Default)]
struct Arrivals<T> {
    of_own_cta: T,
    of_others: T,
}

impl Barrier {
    /// What becomes known when the running phase is over.
    pub fn of_this_phase(&self) -> (Component, u32) {
        self.strand.at(self.phases + 1)
    }
}

impl Machine {
    /// The barrier at `address`, if there is one.
    fn barrier_at(&mut self, address: u32) -> Option<(usize, usize)> {
        let cta = self.shared_cta(address)?;
        let offset = address & ((1 << SHARED_BITS) - 1);
        let index = self.ctas[cta]
            .barriers
            .iter()
            .position(|barrier| barrier.address == offset)?;
        Some((cta, index))
    }

    fn barrier_or_report(
        &mut self,
        address: u32,
        place: u64,
        doing: &str,
    ) -> Option<(usize, usize)> {
        let found = self.barrier_at(address);
        if found.is_none() {
            self.find_at(
                place,
                "barrier",
                format!("{doing} at {address:#x}, where no barrier was initialised"),
            );
        }
        found
    }

    pub fn barrier_init(&mut self, address: u32, arrivals: u32, place: u64) {
        if arrivals == 0 || !address.is_multiple_of(8) {
            self.find_at(
                place,
                "barrier",
                format!("barrier at {address:#x} for {arrivals} arrivals"),
            );
            return;
        }
        // Its words must be nobody else's; they are marked as written by this thread.
        let unfenced = self.thread().unfenced_shared;
        self.store_shared(address, &[0; 8], place);
        // TMA knows of barriers by a fence of their own.
        self.thread().unfenced_shared = unfenced;
        let current = self.current;
        let strand = self.strand_of(current);
        let barrier = Barrier {
            address,
            count: arrivals,
            pending: arrivals,
            bytes: 0,
            phases: 0,
            strand,
            arriving: Arrivals::default(),
            arrived: Arrivals::default(),
            fenced: false,
            waiting: Vec::new(),
        };
        let cta = self.cta_of(current);
        cta.barriers.retain(|other| other.address != address);
        cta.barriers.push(barrier);
    }

    /// An arrival that first announces `bytes`.
    pub fn barrier_arrive(&mut self, address: u32, bytes: u32, scope: Scope, place: u64) {
        let Some((cta, index)) = self.barrier_or_report(address, place, "arrival") else {
            return;
        };
        let of_other = cta != self.threads[self.current].cta;
        if of_other && scope == Scope::Cta {
            let text = format!(
                "arrival at {address:#x}, which is another CTA's, by an instruction for the own CTA's"
            );
            return self.find_at(place, "barrier", text);
        }
        self.check_running(cta, "arrival at a barrier", place);
        self.check_barrier_word(cta, address, place);
        let release = self.release(self.current);
        let barrier = &mut self.ctas[cta].barriers[index];
        barrier.bytes += i64::from(bytes);
        if barrier.pending == 0 {
            let (phase, count, missing) = (barrier.phases, barrier.count, barrier.bytes);
            let text = format!(
                "arrival {} at the barrier {address:#x} of {count} in phase {phase}, which waits for {missing} bytes",
                count + 1
            );
            self.find_at(place, "barrier over-arrived", text);
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
        self.note(place, || {
            format!("arrives at {address:#x} announcing {bytes} bytes")
        });
        self.complete_phase(cta, index);
    }

    /// Bytes of TMA have come.
    pub fn barrier_bytes(&mut self, cta: usize, index: usize, bytes: u32) {
        self.ctas[cta].barriers[index].bytes -= i64::from(bytes);
        self.complete_phase(cta, index);
    }

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
        let (component, step) = barrier.strand.at(barrier.phases);
        of_own_cta.raise(component, step);
        barrier.arrived.of_own_cta.join(&of_own_cta);
        barrier.arrived.of_others.join(&of_others);
        let address = barrier.address;
        for thread in std::mem::take(&mut barrier.waiting) {
            // Time may have passed, and the thread gone on.
            if matches!(self.threads[thread].state, State::Barrier { address: of, .. } if of == address)
            {
                self.wake(thread);
            }
        }
    }

    /// Whether the phase of `parity` is over. If not, the thread is blocked until it is, and asks again; `Some(false)`
    /// while time passes.
    pub fn barrier_poll(
        &mut self,
        address: u32,
        parity: u32,
        scope: Scope,
        place: u64,
    ) -> Option<bool> {
        let Some((cta, index)) = self.barrier_or_report(address, place, "wait") else {
            self.fail("waits at a barrier that does not exist".into());
            self.block(State::Meeting, place);
            return None;
        };
        let current = self.current;
        if cta != self.threads[current].cta {
            self.find_at(
                place,
                "barrier",
                format!("wait at {address:#x}, which is another CTA's"),
            );
        }
        let barrier = &mut self.ctas[cta].barriers[index];
        if barrier.phases & 1 != parity & 1 {
            let near = barrier.arrived.of_own_cta.clone();
            let far = (scope != Scope::Cta).then(|| barrier.arrived.of_others.clone());
            self.check_barrier_word(cta, address, place);
            let view = &mut self.threads[current].view;
            self.lately.join(view, &near);
            if let Some(far) = far {
                view.join(&far);
            }
            return Some(true);
        }
        if self.threads[current].free_polls > 0 {
            self.threads[current].free_polls -= 1;
            return Some(false);
        }
        barrier.waiting.push(current);
        self.block(State::Barrier { address, parity }, place);
        None
    }

    /// The thread must know that the barrier was initialised.
    pub fn check_barrier_word(&mut self, cta: usize, address: u32, place: u64) {
        let stamp = self.stamp(self.current, Way::AtomicSys, place);
        let offset = self.shared_offset(address);
        let thread = &self.threads[self.current];
        let generic = [&thread.view.generic];
        let by = Accessor::ordinary(stamp, thread.slot, &generic);
        let mut found = None;
        let cells = &mut self.ctas[cta].smem.cells[offset / 4..offset / 4 + 1];
        self.shadow.read(cells, &by, |fault, earlier, _| {
            found = Some((fault, earlier))
        });
        if let Some((fault, earlier)) = found {
            self.find_fault(
                fault,
                earlier,
                stamp,
                &format!("barrier {address:#x} in shared memory"),
            );
        }
    }
}
