//! What orders threads through memory: barriers in shared memory, and words that are stored with release and loaded
//! with acquire.

use super::PhysicalId;
use super::clock::{Component, View};
use super::launch::Strand;
use super::machine::{Machine, State};
use super::memory::Found;
use super::shadow::{Accessor, Way};
use std::collections::HashMap;
use std::sync::atomic::{self, AtomicU32, AtomicU64};

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
    arriving: Arrivals,
    arrived: Arrivals,
    /// Whether TMA may know of it.
    pub fenced: bool,
    waiting: Vec<usize>,
}

/// What those published who arrived at a barrier: a wait at the scope of a CTA sees the first alone.
#[derive(Debug, Default)]
struct Arrivals {
    of_own_cta: View,
    of_others: View,
}

impl Barrier {
    /// What becomes known when the running phase is over.
    pub fn of_this_phase(&self) -> (Component, u32) {
        self.strand.at(self.phases + 1)
    }
}

/// How far an ordered access reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    Cta,
    Gpu,
    Sys,
}

/// A word in global memory.
type Word = (PhysicalId, usize);

/// What was published at words, and who polls them.
#[derive(Debug, Default)]
pub(super) struct Locations {
    /// By publishing GPU and scope.
    published: HashMap<Word, Vec<(u32, Scope, View)>>,
    polling: HashMap<Word, Vec<usize>>,
}

impl Locations {
    /// When no thread is left.
    pub fn forget_pollers(&mut self) {
        self.polling.clear();
    }
}

/// Order of an access, as the twins number it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ordering {
    pub acquire: bool,
    pub release: bool,
}

impl Machine {
    /// The barrier at `address`, if there is one.
    fn barrier_at(&mut self, address: u32) -> Option<(usize, usize)> {
        let cta = self.shared_cta(address)?;
        let offset = address & ((1 << super::machine::SHARED_BITS) - 1);
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
        let view = self.release(self.current);
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
        seen_by.join(&view);
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
        let Arrivals {
            mut of_own_cta,
            of_others,
        } = std::mem::take(&mut barrier.arriving);
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
        let by = Accessor {
            stamp,
            generic: &generic,
            proxy: None,
            slot: thread.slot,
            own: u32::MAX,
            fenced: 0,
        };
        let mut found = None;
        let cells = &mut self.ctas[cta].cells[offset / 4..offset / 4 + 1];
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

    /// A load of the running thread: ordinary, relaxed or acquiring.
    pub fn load(
        &mut self,
        address: u64,
        to: &mut [u8],
        way: Way,
        order: Ordering,
        scope: Scope,
        place: u64,
    ) {
        let Some(found) = self.find(address, to.len(), "load") else {
            return to.fill(0);
        };
        let Found::Global { id, offset } = found else {
            return Self::load_host(address, to);
        };
        self.access(id, offset, to.len(), way, false, place);
        to.copy_from_slice(&self.memory.physical(id).bytes[offset..offset + to.len()]);
        if way == Way::Weak || way == Way::Constant {
            return;
        }
        let view = self.published_at((id, offset), scope);
        let thread = self.thread();
        if order.acquire {
            thread.view.join(&view);
        } else {
            thread.seen.join(&view);
        }
        let value = to
            .first_chunk()
            .map_or(0, |bytes| u32::from_ne_bytes(*bytes));
        thread.polled.retain(|(at, _)| *at != address);
        if thread.polled.len() == 4 {
            thread.polled.remove(0);
        }
        thread.polled.push((address, value));
    }

    pub fn store(
        &mut self,
        address: u64,
        from: &[u8],
        way: Way,
        order: Ordering,
        scope: Scope,
        place: u64,
    ) {
        let Some(found) = self.find(address, from.len(), "store") else {
            return;
        };
        let Found::Global { id, offset } = found else {
            let view = self.release(self.current);
            self.host.join(&view.generic);
            return Self::store_host(address, from);
        };
        self.access(id, offset, from.len(), way, true, place);
        self.memory.physical(id).bytes[offset..offset + from.len()].copy_from_slice(from);
        if way == Way::Weak {
            return;
        }
        self.locations.published.remove(&(id, offset));
        self.publish((id, offset), order, scope);
        self.note(place, || format!("stores {from:?} at {address:#x}"));
        self.wake_pollers((id, offset));
    }

    /// Adds to a word, or exchanges it; returns the old value.
    pub fn rmw(
        &mut self,
        address: u64,
        bytes: usize,
        change: impl FnOnce(u64) -> u64,
        (way, order, scope): (Way, Ordering, Scope),
        place: u64,
    ) -> u64 {
        let Some(found) = self.find(address, bytes, "atomic") else {
            return 0;
        };
        let Found::Global { id, offset } = found else {
            self.find_at(
                place,
                "unsupported",
                format!("read-modify-write of host memory at {address:#x}"),
            );
            return 0;
        };
        self.access(id, offset, bytes, way, false, place);
        self.access(id, offset, bytes, way, true, place);
        let mut old = [0; 8];
        let memory = &mut self.memory.physical(id).bytes[offset..offset + bytes];
        old[..bytes].copy_from_slice(memory);
        let old = u64::from_le_bytes(old);
        let new = change(old);
        memory.copy_from_slice(&new.to_le_bytes()[..bytes]);
        if order.acquire {
            let view = self.published_at((id, offset), scope);
            self.thread().view.join(&view);
        }
        self.publish((id, offset), order, scope);
        self.note(place, || {
            format!("changes {address:#x} from {old} to {new}")
        });
        self.wake_pollers((id, offset));
        old
    }

    /// Orders all that the thread did, and has seen by relaxed loads, before what it does.
    pub fn fence_thread(&mut self, scope: Scope) {
        let seen = std::mem::take(&mut self.thread().seen);
        self.thread().view.join(&seen);
        let view = self.release(self.current);
        self.thread().published = Some((view, scope as u32));
    }

    pub fn fence_proxy(&mut self, global_too: bool) {
        let thread = self.thread();
        let generic = thread.view.generic.clone();
        thread.view.ways().shared.join(&generic);
        thread.fenced_shared = thread.solo_step;
        thread.unfenced_shared = false;
        if global_too {
            thread.view.ways().global.join(&generic);
            thread.fenced_global = thread.solo_step;
            thread.unfenced_global = false;
        }
        thread.solo_step += 1;
    }

    pub fn fence_barriers(&mut self) {
        let current = self.current;
        self.cta_of(current)
            .barriers
            .iter_mut()
            .for_each(|barrier| barrier.fenced = true);
    }

    /// What those published who stored the word, as far as `scope` reaches.
    fn published_at(&self, word: Word, scope: Scope) -> View {
        let device = self.ctas[self.threads[self.current].cta].device;
        let mut view = View::default();
        for (from, reach, published) in self.locations.published.get(&word).into_iter().flatten() {
            let same = *from == device;
            if same || (*reach == Scope::Sys && scope == Scope::Sys) {
                view.join(published);
            }
        }
        view
    }

    fn publish(&mut self, word: Word, order: Ordering, scope: Scope) {
        let device = self.ctas[self.threads[self.current].cta].device;
        let view = if order.release {
            Some((self.release(self.current), scope))
        } else {
            // A relaxed store after a fence publishes what came before the fence, as far as both reach.
            self.thread().published.clone().map(|(view, reach)| {
                let reach = [Scope::Cta, Scope::Gpu, Scope::Sys][reach as usize];
                (view, reach.min(scope))
            })
        };
        let Some((view, scope)) = view else { return };
        let published = self.locations.published.entry(word).or_default();
        match published
            .iter_mut()
            .find(|(from, reach, _)| (*from, *reach) == (device, scope))
        {
            Some((.., known)) => known.join(&view),
            None => published.push((device, scope, view)),
        }
    }

    /// A word written by the host's own means, after all that `view` knows.
    pub fn publish_by_host(&mut self, word: Word, view: View) {
        self.locations
            .published
            .insert(word, vec![(u32::MAX, Scope::Sys, view)]);
        self.wake_pollers(word);
    }

    /// Blocks the running thread until a word that it polled changes.
    pub fn sleep(&mut self, place: u64) {
        let current = self.current;
        if self.threads[current].free_polls > 0 {
            self.threads[current].free_polls -= 1;
            return;
        }
        let polled = self.threads[current].polled.clone();
        for (address, _) in polled {
            if let Ok(Found::Global { id, offset }) = self.memory.find(address, 4, None) {
                self.locations
                    .polling
                    .entry((id, offset))
                    .or_default()
                    .push(current);
            }
        }
        self.block(State::Polling, place);
    }

    fn wake_pollers(&mut self, word: Word) {
        for thread in self.locations.polling.remove(&word).unwrap_or_default() {
            if self.threads[thread].state == State::Polling {
                self.wake(thread);
            }
        }
    }

    fn load_host(address: u64, to: &mut [u8]) {
        if to.len() == 4 {
            // SAFETY: adopted memory is alive and accessed through atomics; the address was found to be aligned.
            let word = unsafe { &*(address as *const AtomicU32) };
            to.copy_from_slice(&word.load(atomic::Ordering::Acquire).to_ne_bytes());
        } else if to.len() == 8 {
            // SAFETY: as above.
            let word = unsafe { &*(address as *const AtomicU64) };
            to.copy_from_slice(&word.load(atomic::Ordering::Acquire).to_ne_bytes());
        } else {
            to.fill(0);
        }
    }

    fn store_host(address: u64, from: &[u8]) {
        if let Ok(bytes) = <[u8; 4]>::try_from(from) {
            // SAFETY: as in `load_host`.
            let word = unsafe { &*(address as *const AtomicU32) };
            word.store(u32::from_ne_bytes(bytes), atomic::Ordering::Release);
        } else if let Ok(bytes) = <[u8; 8]>::try_from(from) {
            // SAFETY: as in `load_host`.
            let word = unsafe { &*(address as *const AtomicU64) };
            word.store(u64::from_ne_bytes(bytes), atomic::Ordering::Release);
        }
    }
}
