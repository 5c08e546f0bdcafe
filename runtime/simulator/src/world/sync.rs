//! Loads, stores, atomics and fences of global memory, and the order of threads that results.
//!
//! A release publishes the knowledge and the steps of a thread at a word. An acquire of that word adds both to the view
//! of the loading thread. A thread that polls words can sleep until a polled word changes.

use super::clock::{View, ViewClocks};
use super::machine::Machine;
use super::memory::Location;
use super::stamp::AccessKind;
use super::state::sync_words::{MemoryOrder, Scope, Word};
use super::state::thread::{PolledWord, ThreadState};
use std::sync::atomic::{self, AtomicU32, AtomicU64};

/// The number of polled words after which the simulator forgets the older half. The thread polled the older half for waits that
/// have ended, since one wait polls fewer words than half of this number.
const MAX_POLLED: usize = 512;

impl Machine {
    /// Loads bytes of global or pinned memory.
    pub fn load(
        &mut self,
        address: u64,
        to: &mut [u8],
        kind: AccessKind,
        order: MemoryOrder,
        scope: Scope,
        pc: u64,
    ) {
        let Some(found) = self.resolve(address, to.len(), "load") else {
            return to.fill(0);
        };
        let is_ordered = !kind.is_ordinary();
        match found {
            Location::Host { .. } => {
                Self::load_host(address, to);
                if is_ordered {
                    self.acquire_from_host(order);
                }
            }
            Location::Global { id, offset } => {
                self.access(id, offset, to.len(), kind, false, pc);
                to.copy_from_slice(&self.memory.physical(id).bytes[offset..offset + to.len()]);
                if is_ordered {
                    self.acquire((id, offset), order, scope);
                }
            }
        }
        if is_ordered {
            self.note_poll(address, to);
        }
    }

    /// Records that the running thread has seen `value` at an address. It may later sleep until the value changes.
    fn note_poll(&mut self, address: u64, value: &[u8]) {
        let thread = self.thread();
        if std::mem::take(&mut thread.slept) {
            thread.polled.clear();
            thread.wait_site.polled_before = 0;
        } else if thread.polled.len() == MAX_POLLED {
            thread.polled.drain(..MAX_POLLED / 2);
            let before = &mut thread.wait_site.polled_before;
            *before = before.saturating_sub(MAX_POLLED / 2);
        }
        let mut seen = [0; 8];
        let bytes = value.len().min(8);
        seen[..bytes].copy_from_slice(&value[..bytes]);
        let seen = u64::from_le_bytes(seen);
        thread.polled.push(PolledWord {
            address,
            bytes,
            seen,
        });
    }

    /// Stores bytes to global or pinned memory.
    pub fn store(
        &mut self,
        address: u64,
        from: &[u8],
        kind: AccessKind,
        order: MemoryOrder,
        scope: Scope,
        pc: u64,
    ) {
        let Some(found) = self.resolve(address, from.len(), "store") else {
            return;
        };
        let Location::Global { id, offset } = found else {
            let release = self.release(self.current);
            self.host.join(&release.view.generic);
            self.host.raise(release.component, release.generic);
            return Self::store_host(address, from);
        };
        self.access(id, offset, from.len(), kind, true, pc);
        self.memory.physical(id).bytes[offset..offset + from.len()].copy_from_slice(from);
        if kind.is_ordinary() {
            return;
        }
        self.sync_words.published.remove(&(id, offset));
        self.publish((id, offset), order, scope);
        self.trace(pc, || format!("stores {from:?} at {address:#x}"));
        self.wake_pollers((id, offset));
    }

    /// Changes a word atomically, and returns its old value.
    pub fn rmw(
        &mut self,
        address: u64,
        bytes: usize,
        change: impl FnOnce(u64) -> u64,
        (kind, order, scope): (AccessKind, MemoryOrder, Scope),
        pc: u64,
    ) -> u64 {
        let Some(found) = self.resolve(address, bytes, "atomic") else {
            return 0;
        };
        let Location::Global { id, offset } = found else {
            self.report_at(
                pc,
                "unsupported",
                format!("an atomic access to host memory at {address:#x}, which is not simulated"),
            );
            return 0;
        };
        self.access(id, offset, bytes, kind, false, pc);
        self.access(id, offset, bytes, kind, true, pc);
        let mut old = [0; 8];
        let memory = &mut self.memory.physical(id).bytes[offset..offset + bytes];
        old[..bytes].copy_from_slice(memory);
        let old = u64::from_le_bytes(old);
        let new = change(old);
        memory.copy_from_slice(&new.to_le_bytes()[..bytes]);
        self.acquire((id, offset), order, scope);
        self.publish((id, offset), order, scope);
        self.trace(pc, || format!("changes {address:#x} from {old} to {new}"));
        self.wake_pollers((id, offset));
        old
    }

    /// Executes a fence. Earlier accesses of the running thread, and the stores that its relaxed loads have seen,
    /// happen before its later accesses.
    pub fn fence_thread(&mut self, scope: Scope) {
        let seen = std::mem::take(&mut self.thread().seen);
        self.thread().view.join(&seen);
        let release = self.release(self.current);
        self.thread().published = Some((release, scope as u32));
    }

    /// Executes a proxy fence for global or for shared memory. The async proxy then sees the knowledge and the steps of
    /// the thread there.
    pub fn fence_proxy(&mut self, is_global: bool) {
        let thread = self.thread();
        let generic = thread.view.generic.clone();
        let step = thread.solo_step;
        if is_global {
            thread.view.clocks_mut().global.join(&generic);
            thread.fenced_global = step;
            thread.unfenced_global = false;
        } else {
            thread.view.clocks_mut().shared.join(&generic);
            thread.fenced_shared = step;
            thread.unfenced_shared = false;
        }
        thread.solo_step += 1;
    }

    /// Makes the initialisation of the CTA's barriers visible to TMA.
    pub fn fence_barriers(&mut self) {
        let current = self.current;
        self.cta_of(current)
            .barriers
            .iter_mut()
            .for_each(|barrier| barrier.fenced = true);
    }

    /// Adds the knowledge that was published at a word that the running thread has read. A relaxed load keeps the knowledge for a
    /// later fence.
    fn acquire(&mut self, word: Word, order: MemoryOrder, scope: Scope) {
        let view = self.published_at(word, scope);
        let thread = &mut self.threads[self.current];
        let known = match order.acquire {
            true => &mut thread.view,
            false => &mut thread.seen,
        };
        self.join_cache.join(known, &view);
    }

    /// Adds the knowledge that was published at a word of host memory. The host may have written the word after all completed
    /// copies, and after all that kernels have published to the host.
    fn acquire_from_host(&mut self, order: MemoryOrder) {
        let mut generic = self.host.clone();
        generic.join(&self.copied);
        let known = View::from(ViewClocks {
            generic,
            ..ViewClocks::default()
        });
        let thread = self.thread();
        if order.acquire {
            thread.view.join(&known);
        } else {
            thread.seen.join(&known);
        }
    }

    /// Returns the releases at a word that `scope` and the scope of the stores include.
    fn published_at(&self, word: Word, scope: Scope) -> View {
        let device = self.ctas[self.threads[self.current].cta].device;
        let mut view = View::default();
        for (from, reach, published) in self.sync_words.published.get(&word).into_iter().flatten() {
            let same = *from == device;
            if same || (*reach == Scope::Sys && scope == Scope::Sys) {
                view.join(published);
            }
        }
        view
    }

    /// Publishes the knowledge and the steps of the running thread at a word, if the store releases or follows a fence.
    fn publish(&mut self, word: Word, order: MemoryOrder, scope: Scope) {
        let device = self.ctas[self.threads[self.current].cta].device;
        let release = if order.release {
            Some((self.release(self.current), scope))
        } else {
            // A relaxed store after a fence publishes everything before the fence, at the smaller of both scopes.
            self.thread().published.clone().map(|(release, reach)| {
                let reach = [Scope::Cta, Scope::Gpu, Scope::Sys][reach as usize];
                (release, reach.min(scope))
            })
        };
        let Some((release, scope)) = release else {
            return;
        };
        let published = self.sync_words.published.entry(word).or_default();
        match published
            .iter_mut()
            .find(|(from, reach, _)| (*from, *reach) == (device, scope))
        {
            Some((.., known)) => known.acquire(&release),
            None => published.push((device, scope, View::from(&release))),
        }
    }

    /// Publishes `view` at a word that the host has written.
    pub fn publish_by_host(&mut self, word: Word, view: View) {
        self.sync_words
            .published
            .insert(word, vec![(u32::MAX, Scope::Sys, view)]);
        self.wake_pollers(word);
    }

    /// Blocks the running thread until a word that it has polled changes. Returns false while simulated time passes,
    /// since the thread then continues.
    pub fn sleep(&mut self, pc: u64) -> bool {
        let current = self.current;
        if self.threads[current].free_polls > 0 {
            self.threads[current].free_polls -= 1;
            return false;
        }
        self.threads[current].slept = true;
        let polled = std::mem::take(&mut self.threads[current].polled);
        // If a word has changed since it was polled, the thread only lets other threads run first.
        let changed = polled
            .iter()
            .any(|word| self.value_of(word) != Some(word.seen));
        if changed {
            self.block(ThreadState::Converging, pc);
            self.wake(current);
        } else {
            let words: Vec<Word> = polled
                .iter()
                .filter_map(|word| self.word_of(word))
                .collect();
            if words.len() < polled.len() {
                self.sync_words.polling_host.push(current);
            }
            for word in words {
                let waiting = self.sync_words.polling.entry(word).or_default();
                if !waiting.contains(&current) {
                    waiting.push(current);
                }
            }
            self.block(ThreadState::Polling, pc);
        }
        self.threads[current].polled = polled;
        true
    }

    /// Returns the word of global memory that was polled, or `None` if the word is in host memory.
    fn word_of(&self, polled: &PolledWord) -> Option<Word> {
        match self
            .memory
            .resolve(polled.address, polled.bytes as u64, None)
        {
            Ok(Location::Global { id, offset }) => Some((id, offset)),
            _ => None,
        }
    }

    /// Returns the current value of a polled word, or `None` if the word is not mapped any more.
    fn value_of(&mut self, polled: &PolledWord) -> Option<u64> {
        let mut value = [0; 8];
        let bytes = &mut value[..polled.bytes];
        match self
            .memory
            .resolve(polled.address, polled.bytes as u64, None)
        {
            Ok(Location::Host { address }) => Self::load_host(address, bytes),
            Ok(Location::Global { id, offset }) => {
                let memory = &self.memory.physical(id).bytes;
                bytes.copy_from_slice(&memory[offset..offset + polled.bytes]);
            }
            Err(_) => return None,
        }
        Some(u64::from_le_bytes(value))
    }

    /// Wakes the threads that have polled a changed word of host memory. Returns whether any thread was woken.
    pub fn wake_pollers_of_host(&mut self) -> bool {
        let mut has_woken = false;
        for thread in std::mem::take(&mut self.sync_words.polling_host) {
            if self.threads[thread].state != ThreadState::Polling {
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
                self.sync_words.polling_host.push(thread);
            }
        }
        has_woken
    }

    /// Wakes the threads that sleep until a word changes.
    fn wake_pollers(&mut self, word: Word) {
        for thread in self.sync_words.polling.remove(&word).unwrap_or_default() {
            if self.threads[thread].state == ThreadState::Polling {
                self.wake(thread);
            }
        }
    }

    /// Loads a word of host memory.
    fn load_host(address: u64, to: &mut [u8]) {
        if to.len() == 4 {
            // SAFETY: adopted memory is alive and accessed through atomics. The alignment of the address was checked.
            let word = unsafe { &*(address as *const AtomicU32) };
            to.copy_from_slice(&word.load(atomic::Ordering::Acquire).to_ne_bytes());
        } else if to.len() == 8 {
            // SAFETY: as for the 4-byte load.
            let word = unsafe { &*(address as *const AtomicU64) };
            to.copy_from_slice(&word.load(atomic::Ordering::Acquire).to_ne_bytes());
        } else {
            to.fill(0);
        }
    }

    /// Stores a word of host memory.
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
