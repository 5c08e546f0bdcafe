//! What orders threads through global memory: words that are stored with release and loaded with acquire.

use super::PhysicalId;
use super::clock::{View, Ways};
use super::machine::{Machine, Polled, State};
use super::memory::Found;
use super::shadow::Way;
use rustc_hash::FxHashMap;
use std::sync::atomic::{self, AtomicU32, AtomicU64};

/// Words that a thread is seen to poll; one that only loads relaxed and never sleeps is none.
const MAX_POLLED: usize = 256;

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
    published: FxHashMap<Word, Vec<(u32, Scope, View)>>,
    polling: FxHashMap<Word, Vec<usize>>,
    /// Threads that poll words of host memory, which change without a word to the engine.
    polling_host: Vec<usize>,
}

impl Locations {
    /// When no thread is left.
    pub fn forget_pollers(&mut self) {
        self.polling.clear();
        self.polling_host.clear();
    }
}

/// Order of an access, as the twins number it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ordering {
    pub acquire: bool,
    pub release: bool,
}

impl Machine {
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
        let is_ordered = !way.is_ordinary();
        match found {
            Found::Host { .. } => {
                Self::load_host(address, to);
                if is_ordered {
                    self.learn_from_host(order);
                }
            }
            Found::Global { id, offset } => {
                self.access(id, offset, to.len(), way, false, place);
                to.copy_from_slice(&self.memory.physical(id).bytes[offset..offset + to.len()]);
                if is_ordered {
                    self.learn((id, offset), order, scope);
                }
            }
        }
        if is_ordered {
            self.note_poll(address, to);
        }
    }

    /// The running thread has seen `value` at an address, and may sleep until it is another one.
    fn note_poll(&mut self, address: u64, value: &[u8]) {
        let thread = self.thread();
        if std::mem::take(&mut thread.slept) || thread.polled.len() == MAX_POLLED {
            thread.polled.clear();
            thread.awaited.polled_before = 0;
        }
        let mut seen = [0; 8];
        let bytes = value.len().min(8);
        seen[..bytes].copy_from_slice(&value[..bytes]);
        let seen = u64::from_le_bytes(seen);
        thread.polled.push(Polled {
            address,
            bytes,
            seen,
        });
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
            let release = self.release(self.current);
            self.host.join(&release.view.generic);
            self.host.raise(release.component, release.generic);
            return Self::store_host(address, from);
        };
        self.access(id, offset, from.len(), way, true, place);
        self.memory.physical(id).bytes[offset..offset + from.len()].copy_from_slice(from);
        if way.is_ordinary() {
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
        self.learn((id, offset), order, scope);
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
        let release = self.release(self.current);
        self.thread().published = Some((release, scope as u32));
    }

    /// Of one memory, not of the other.
    pub fn fence_proxy(&mut self, is_global: bool) {
        let thread = self.thread();
        let generic = thread.view.generic.clone();
        let step = thread.solo_step;
        if is_global {
            thread.view.ways().global.join(&generic);
            thread.fenced_global = step;
            thread.unfenced_global = false;
        } else {
            thread.view.ways().shared.join(&generic);
            thread.fenced_shared = step;
            thread.unfenced_shared = false;
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

    /// The running thread has read a word: by an acquire it knows what was published there, else a fence may make it.
    fn learn(&mut self, word: Word, order: Ordering, scope: Scope) {
        let view = self.published_at(word, scope);
        let thread = &mut self.threads[self.current];
        let known = match order.acquire {
            true => &mut thread.view,
            false => &mut thread.seen,
        };
        self.lately.join(known, &view);
    }

    /// The same for a word of the host's: it may have been written after all copies that are done, and after what kernels
    /// have published to the host.
    fn learn_from_host(&mut self, order: Ordering) {
        let mut generic = self.host.clone();
        generic.join(&self.copied);
        let known = View::from(Ways {
            generic,
            ..Ways::default()
        });
        let thread = self.thread();
        if order.acquire {
            thread.view.join(&known);
        } else {
            thread.seen.join(&known);
        }
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
        let release = if order.release {
            Some((self.release(self.current), scope))
        } else {
            // A relaxed store after a fence publishes what came before the fence, as far as both reach.
            self.thread().published.clone().map(|(release, reach)| {
                let reach = [Scope::Cta, Scope::Gpu, Scope::Sys][reach as usize];
                (release, reach.min(scope))
            })
        };
        let Some((release, scope)) = release else {
            return;
        };
        let published = self.locations.published.entry(word).or_default();
        match published
            .iter_mut()
            .find(|(from, reach, _)| (*from, *reach) == (device, scope))
        {
            Some((.., known)) => known.learn(&release),
            None => published.push((device, scope, View::from(&release))),
        }
    }

    /// A word written by the host's own means, after all that `view` knows.
    pub fn publish_by_host(&mut self, word: Word, view: View) {
        self.locations
            .published
            .insert(word, vec![(u32::MAX, Scope::Sys, view)]);
        self.wake_pollers(word);
    }

    /// Blocks the running thread until a word that it polled changes; false while time passes.
    pub fn sleep(&mut self, place: u64) -> bool {
        let current = self.current;
        if self.threads[current].free_polls > 0 {
            self.threads[current].free_polls -= 1;
            return false;
        }
        self.threads[current].slept = true;
        let polled = std::mem::take(&mut self.threads[current].polled);
        // A word may have changed since it was polled; then others only go first.
        let changed = polled
            .iter()
            .any(|word| self.value_of(word) != Some(word.seen));
        if changed {
            self.block(State::Meeting, place);
            self.wake(current);
        } else {
            let words: Vec<Word> = polled
                .iter()
                .filter_map(|word| self.word_of(word))
                .collect();
            if words.len() < polled.len() {
                self.locations.polling_host.push(current);
            }
            for word in words {
                let waiting = self.locations.polling.entry(word).or_default();
                if !waiting.contains(&current) {
                    waiting.push(current);
                }
            }
            self.block(State::Polling, place);
        }
        self.threads[current].polled = polled;
        true
    }

    fn word_of(&self, polled: &Polled) -> Option<Word> {
        match self.memory.find(polled.address, polled.bytes as u64, None) {
            Ok(Found::Global { id, offset }) => Some((id, offset)),
            _ => None,
        }
    }

    fn value_of(&mut self, polled: &Polled) -> Option<u64> {
        let mut value = [0; 8];
        let bytes = &mut value[..polled.bytes];
        match self.memory.find(polled.address, polled.bytes as u64, None) {
            Ok(Found::Host { address }) => Self::load_host(address, bytes),
            Ok(Found::Global { id, offset }) => {
                let memory = &self.memory.physical(id).bytes;
                bytes.copy_from_slice(&memory[offset..offset + polled.bytes]);
            }
            Err(_) => return None,
        }
        Some(u64::from_le_bytes(value))
    }

    /// Wakes threads for which a word of host memory has changed; whether there are any.
    pub fn wake_pollers_of_host(&mut self) -> bool {
        let mut has_woken = false;
        for thread in std::mem::take(&mut self.locations.polling_host) {
            if self.threads[thread].state != State::Polling {
                continue;
            }
            let polled = std::mem::take(&mut self.threads[thread].polled);
            let has_changed = polled
                .iter()
                .any(|word| self.value_of(word) != Some(word.seen));
            self.threads[thread].polled = polled;
            if has_changed {
                self.wake(thread);
                has_woken = true;
            } else {
                self.locations.polling_host.push(thread);
            }
        }
        has_woken
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

    pub fn store_host(address: u64, from: &[u8]) {
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
