//! Shadow memory: the last accesses to each word, with which the next access is compared.
//!
//! Each word of simulated memory has a [`ShadowCell`], which holds the stamps of its last write and of the reads since.
//! An access that is not ordered after these accesses is a race, as in a race detector with vector clocks.

use super::clock::Component;
use super::stamp::{AccessKind, Accessor, NO_SLOT, Origin, Stamp};

/// The bytes of a word, which has one [`ShadowCell`]. A smaller access counts as an access to the whole word.
pub(super) const WORD_BYTES: usize = 4;

/// The number of bits of an index into [`Shadow::recent_chains`]. With this value the table fits the L1 cache.
const RECENT_CHAINS_BITS: u32 = 10;

/// The fewest stamps and sets of reads with which the simulator forgets any.
const LEAST_KEPT: usize = 1 << 17;

/// The last accesses to a word.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ShadowCell {
    /// The stamp of the last write, or 0 if the word was never written.
    write: u32,
    /// The reads since the last write, as an index into [`Shadow::reads`], or 0 without reads.
    reads: u32,
}

/// The fault of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum AccessFault {
    /// The word is read, but was never written.
    Uninitialised,
    /// Two accesses, one of them a write, are not ordered.
    Race {
        earlier_writes: bool,
        later_writes: bool,
    },
    /// An ordinary write and an access by TMA or tensor cores are ordered, but without a proxy fence between them.
    Unfenced,
}

/// The part of shadow memory that all words share.
#[derive(Debug)]
pub(super) struct Shadow {
    /// All stamps. Stamp 0 belongs to no access.
    pub stamps: Vec<Stamp>,
    /// Sets of reads as linked lists. An element is the index of the rest, and a stamp.
    reads: Vec<(u32, u32)>,
    /// A cache of recent elements of `reads`, indexed by a hash: the rest, the stamp, and the index of the element. An
    /// element that the cache has lost is created again.
    recent_chains: Vec<(u32, u32, u32)>,
    /// The last access that was found to be in order, and the write before it. Neighbouring words usually have
    /// equal values.
    last_ordered: (u32, u32),
    /// The number of stamps and sets of reads that were kept when stamps were last forgotten.
    needed: usize,
    /// The solo component of each thread slot. `None` if the thread has never published by itself.
    pub solos: Vec<Option<Component>>,
}

impl Default for Shadow {
    fn default() -> Self {
        let no_access = Stamp {
            kind: AccessKind::Host,
            component: 0,
            step: 0,
            slot: NO_SLOT,
            solo_step: 0,
            origin: Origin::default(),
        };
        Self {
            stamps: vec![no_access],
            reads: vec![(0, 0)],
            recent_chains: vec![(0, 0, 0); 1 << RECENT_CHAINS_BITS],
            last_ordered: (0, 0),
            needed: 0,
            solos: Vec::new(),
        }
    }
}

impl Shadow {
    /// Adds a stamp and returns its index.
    pub fn stamp(&mut self, stamp: Stamp) -> u32 {
        self.stamps.push(stamp);
        (self.stamps.len() - 1) as u32
    }

    /// Returns whether most stamps may belong to accesses to which nothing refers any more.
    pub fn has_many_stamps(&self) -> bool {
        self.stamps.len() + self.reads.len() > 2 * self.needed.max(LEAST_KEPT)
    }

    /// Forgets the stamps and the sets of reads to which no cell of `cells` refers. No other references may exist, so no kernel may
    /// run.
    pub fn forget_all_but(&mut self, cells: &mut [&mut [ShadowCell]]) {
        let mut chains = vec![0; self.reads.len()];
        let mut stamps = vec![0; self.stamps.len()];
        for cell in cells.iter().flat_map(|cells| cells.iter()) {
            stamps[cell.write as usize] = 1;
            let mut chain = cell.reads;
            while chain != 0 && chains[chain as usize] == 0 {
                let (rest, stamp) = self.reads[chain as usize];
                (chains[chain as usize], stamps[stamp as usize]) = (1, 1);
                chain = rest;
            }
        }
        // Element 0 of both lists means no element.
        (chains[0], stamps[0]) = (1, 1);
        let kept = number(&mut stamps);
        self.stamps = kept.into_iter().map(|old| self.stamps[old]).collect();
        let kept = number(&mut chains);
        // The rest of a chain comes before it.
        let renumbered = |old: usize| {
            let (rest, stamp) = self.reads[old];
            (chains[rest as usize], stamps[stamp as usize])
        };
        self.reads = kept.into_iter().map(renumbered).collect();
        for cell in cells.iter_mut().flat_map(|cells| cells.iter_mut()) {
            cell.write = stamps[cell.write as usize];
            cell.reads = chains[cell.reads as usize];
        }
        self.recent_chains.fill((0, 0, 0));
        self.last_ordered = (0, 0);
        self.needed = self.stamps.len() + self.reads.len();
    }

    /// Records an access to words. Returns its first mistake, the stamp of the earlier access, and the index of the word.
    pub fn access(
        &mut self,
        cells: &mut [ShadowCell],
        by: &Accessor<'_>,
        writes: bool,
    ) -> Option<(AccessFault, u32, usize)> {
        let mut found = None;
        let note = |fault, earlier, word| {
            found.get_or_insert((fault, earlier, word));
        };
        match writes {
            true => self.write(cells, by, note),
            false => self.read(cells, by, note),
        }
        found
    }

    /// Records a read of words. Calls `fault` for each mistake, with the stamp of the earlier access and the index of
    /// the word.
    pub fn read(
        &mut self,
        cells: &mut [ShadowCell],
        by: &Accessor<'_>,
        mut fault: impl FnMut(AccessFault, u32, usize),
    ) {
        let (mut known, mut from, mut to) = (u32::MAX, u32::MAX, 0);
        for (index, cell) in cells.iter_mut().enumerate() {
            if cell.write != known {
                if let Some(found) = self.conflict(cell.write, by, false) {
                    fault(found, cell.write, index);
                }
                known = cell.write;
            }
            if cell.reads != from {
                from = cell.reads;
                to = self.with_read(from, by.stamp);
            }
            cell.reads = to;
        }
    }

    /// Records a write of words. Calls `fault` as [`Self::read`] does.
    pub fn write(
        &mut self,
        cells: &mut [ShadowCell],
        by: &Accessor<'_>,
        mut fault: impl FnMut(AccessFault, u32, usize),
    ) {
        let (mut known, mut known_reads) = (0, 0);
        for (index, cell) in cells.iter_mut().enumerate() {
            if cell.write != known {
                if let Some(found) = self.conflict(cell.write, by, true) {
                    fault(found, cell.write, index);
                }
                known = cell.write;
            }
            if cell.reads != known_reads {
                known_reads = cell.reads;
                let mut chain = cell.reads;
                while chain != 0 {
                    let (rest, stamp) = self.reads[chain as usize];
                    if !self.is_ordered(stamp, by, false) {
                        fault(
                            AccessFault::Race {
                                earlier_writes: false,
                                later_writes: true,
                            },
                            stamp,
                            index,
                        );
                        break;
                    }
                    chain = rest;
                }
            }
            *cell = ShadowCell {
                write: by.stamp,
                reads: 0,
            };
        }
    }

    /// Returns the chain that has `stamp` in addition to `chain`.
    fn with_read(&mut self, chain: u32, stamp: u32) -> u32 {
        if self.reads[chain as usize].1 == stamp {
            return chain;
        }
        let hash = (u64::from(chain) << 32 | u64::from(stamp)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let recent = &mut self.recent_chains[(hash >> (64 - RECENT_CHAINS_BITS)) as usize];
        // An unused element has stamp 0, which no access has.
        if (recent.0, recent.1) != (chain, stamp) {
            self.reads.push((chain, stamp));
            *recent = (chain, stamp, (self.reads.len() - 1) as u32);
        }
        recent.2
    }

    /// Returns the fault of an access after the write with stamp `earlier`.
    fn conflict(
        &mut self,
        earlier: u32,
        by: &Accessor<'_>,
        later_writes: bool,
    ) -> Option<AccessFault> {
        if self.last_ordered == (by.stamp, earlier) {
            return None;
        }
        if earlier == 0 {
            return (!later_writes).then_some(AccessFault::Uninitialised);
        }
        if !self.is_ordered(earlier, by, false) {
            return Some(AccessFault::Race {
                earlier_writes: true,
                later_writes,
            });
        }
        if !self.is_ordered(earlier, by, true) {
            return Some(AccessFault::Unfenced);
        }
        // Knowledge never shrinks, so the result stays valid.
        self.last_ordered = (by.stamp, earlier);
        None
    }

    /// Returns whether the access with stamp `earlier` happened before `by`. With `by_proxy`, and if `by` is an access
    /// by the async proxy and the earlier access was not, the async proxy must know the earlier access.
    fn is_ordered(&self, earlier: u32, by: &Accessor<'_>, by_proxy: bool) -> bool {
        let (stamp, mine) = (
            &self.stamps[earlier as usize],
            &self.stamps[by.stamp as usize],
        );
        let same_gpu = stamp.origin.device == mine.origin.device;
        match (stamp.kind, mine.kind) {
            // Atomics within each other's scope need no order.
            (AccessKind::AtomicSys, AccessKind::AtomicSys) => return true,
            (
                AccessKind::AtomicGpu | AccessKind::AtomicSys,
                AccessKind::AtomicGpu | AccessKind::AtomicSys,
            ) if same_gpu => {
                return true;
            }
            (AccessKind::Early, AccessKind::Early)
                if same_gpu && stamp.origin.launch != mine.origin.launch =>
            {
                return true;
            }
            (AccessKind::Sent, _) if same_gpu && stamp.origin.launch == mine.origin.launch => {
                return true;
            }
            _ => {}
        }
        let (clocks, own) = match by.proxy {
            Some(proxy) if by_proxy && stamp.kind != AccessKind::Async => (proxy, by.fenced),
            _ => (by.generic, by.own),
        };
        let is_own = stamp.slot != NO_SLOT
            && stamp.slot == by.slot
            && stamp.origin.launch == mine.origin.launch;
        if is_own && stamp.solo_step <= own {
            return true;
        }
        let solo = self.solos.get(stamp.slot as usize).copied().flatten();
        clocks.iter().all(|clock| {
            clock.at(stamp.component) >= stamp.step
                || solo.is_some_and(|component| clock.at(component) >= stamp.solo_step)
        })
    }
}

/// Numbers the marked elements in order. Returns their old numbers.
fn number(marks: &mut [u32]) -> Vec<usize> {
    let mut kept = Vec::new();
    for (old, mark) in marks.iter_mut().enumerate().filter(|(_, mark)| **mark != 0) {
        *mark = kept.len() as u32;
        kept.push(old);
    }
    kept
}

#[cfg(test)]
mod tests;
