//! The SM's copy engine: bulk copies and boxes of tensors, which complete late and in any order.

use super::clock::View;
use super::launch::Strand;
use super::machine::{Machine, State};
use super::tensor::{Run, runs};
use crate::tensor_map::{ENCODED_BYTES, TensorMap};

/// Bulk groups of a thread: stores that it can wait for.
#[derive(Debug, Default)]
pub(super) struct Bulk {
    /// Of reads of shared memory, and of writes of global memory: a step per group.
    pub strands: Option<(Strand, Strand)>,
    /// Groups committed.
    pub committed: u32,
    /// Operations of the group that is open.
    pub open: u32,
    /// Of each committed group that is not over: number, reads and writes left.
    pub groups: Vec<(u32, u32, u32)>,
    pub waits: Option<(u32, bool)>,
}

/// A copy on its way.
#[derive(Debug)]
pub(super) struct Operation {
    pub thread: usize,
    pub launch: usize,
    pub device: u32,
    pub place: u64,
    /// What its thread knew when it issued the copy.
    pub view: View,
    pub slot: u32,
    pub own: u32,
    pub fenced: (u32, u32),
    pub runs: Vec<Run>,
    /// In shared memory, as the issuing CTA addresses it.
    pub shared: u32,
    pub swizzle_bytes: u32,
    pub to: To,
}

#[derive(Debug)]
pub(super) enum To {
    /// Shared memory of a CTA, with the barrier of its that counts the bytes.
    Shared {
        cta: usize,
        barrier: usize,
        bytes: u32,
    },
    /// Global memory, in a group; what was read of shared memory, once it was.
    Global { group: u32, read: Option<Vec<u8>> },
}

impl Machine {
    /// Decodes a map; the kernel fails if it is none.
    ///
    /// # Safety
    /// `map` must point to 128 bytes.
    unsafe fn tensor_map(&mut self, map: *const u8) -> Option<TensorMap> {
        // SAFETY: by the caller.
        let bytes = unsafe { &*map.cast::<[u8; ENCODED_BYTES]>() };
        match TensorMap::from_bytes(bytes) {
            Ok(map) => Some(map),
            Err(why) => {
                self.fail(format!("a tensor operation with a map that is none: {why}"));
                None
            }
        }
    }

    /// # Safety
    /// `map` must point to 128 bytes.
    pub unsafe fn tensor_load(
        &mut self,
        to: u32,
        map: *const u8,
        barrier: u32,
        at: &[u32],
        ctas: u32,
        place: u64,
    ) {
        // SAFETY: by the caller.
        let Some(map) = (unsafe { self.tensor_map(map) }) else {
            return;
        };
        if !self.check_dims(&map, at, place) || !self.check_aligned(to, &map, place) {
            return;
        }
        let runs = runs(&map, at);
        self.load_runs(to, runs, u32::from(map.swizzle_bytes), barrier, ctas, place);
    }

    pub fn bulk_load(&mut self, to: u32, from: u64, bytes: u32, barrier: u32, place: u64) {
        if self.check_bulk(to, from, bytes, place) {
            let run = Run {
                box_offset: 0,
                row_bytes: bytes,
                address: from,
                bytes,
                skipped: 0,
            };
            self.load_runs(to, vec![run], 0, barrier, 0, place);
        }
    }

    fn load_runs(
        &mut self,
        to: u32,
        runs: Vec<Run>,
        swizzle_bytes: u32,
        barrier: u32,
        ctas: u32,
        place: u64,
    ) {
        let bytes: u32 = runs.iter().map(|run| run.row_bytes).sum();
        let low = |address: u32| address & ((1 << super::machine::SHARED_BITS) - 1);
        if self.find_shared(low(to), bytes, "tensor load").is_none() {
            return;
        }
        let mut targets = Vec::new();
        for cta in self.targets(to, barrier, ctas, place) {
            let known = &self.ctas[cta].barriers;
            let found = known.iter().position(|known| known.address == low(barrier));
            let Some(index) = found else {
                let text =
                    format!("a copy counts on {barrier:#x}, where no barrier was initialised");
                return self.find_at(place, "barrier", text);
            };
            if !known[index].fenced {
                let text = format!(
                    "a copy counts on the barrier {barrier:#x}, which TMA does not know of: no fence_barrier_init after barrier_init"
                );
                self.find_at(place, "missing fence", text);
            }
            self.check_running(cta, "copy", place);
            self.check_barrier_word(cta, barrier, place);
            targets.push((cta, index));
        }
        self.note(place, || {
            format!("issues a load of {bytes} bytes to {to:#x}")
        });
        // Each CTA gets its copy at a time of its own.
        for (cta, barrier) in targets {
            let to_cta = To::Shared {
                cta,
                barrier,
                bytes,
            };
            self.issue(runs.clone(), low(to), swizzle_bytes, to_cta, place);
        }
    }

    /// The CTAs into whose shared memory a load goes: those whose bits `ctas` has, or that of the addresses.
    fn targets(&mut self, to: u32, barrier: u32, ctas: u32, place: u64) -> Vec<usize> {
        let own = self.threads[self.current].cta;
        let cluster = self.ctas[own].cluster.clone();
        if ctas == 0 {
            let (target, counts) = (self.shared_cta(to), self.shared_cta(barrier));
            if target != counts {
                let text =
                    format!("a copy to {to:#x} counts on the barrier {barrier:#x} of another CTA");
                self.find_at(place, "barrier", text);
            }
            return target.into_iter().collect();
        }
        if ctas >> cluster.len() != 0 {
            let text = format!(
                "a copy to CTAs {ctas:#b} of a cluster that has {}",
                cluster.len()
            );
            self.find_at(place, "cluster", text);
        }
        let chosen = cluster.into_iter().enumerate();
        chosen
            .filter(|(rank, _)| ctas >> rank & 1 == 1)
            .map(|(_, cta)| cta)
            .collect()
    }

    /// # Safety
    /// `map` must point to 128 bytes.
    pub unsafe fn tensor_store(&mut self, map: *const u8, from: u32, at: &[u32], place: u64) {
        // SAFETY: by the caller.
        let Some(map) = (unsafe { self.tensor_map(map) }) else {
            return;
        };
        if self.check_dims(&map, at, place) && self.check_aligned(from, &map, place) {
            let runs = runs(&map, at);
            self.store_runs(from, runs, u32::from(map.swizzle_bytes), place);
        }
    }

    pub fn bulk_store(&mut self, to: u64, from: u32, bytes: u32, place: u64) {
        if self.check_bulk(from, to, bytes, place) {
            let run = Run {
                box_offset: 0,
                row_bytes: bytes,
                address: to,
                bytes,
                skipped: 0,
            };
            self.store_runs(from, vec![run], 0, place);
        }
    }

    fn store_runs(&mut self, from: u32, runs: Vec<Run>, swizzle_bytes: u32, place: u64) {
        let bytes: u32 = runs.iter().map(|run| run.row_bytes).sum();
        if self.find_shared(from, bytes, "bulk store").is_none() {
            return;
        }
        if self.thread().bulk.strands.is_none() {
            let current = self.current;
            let strands = (self.strand_of(current), self.strand_of(current));
            self.thread().bulk.strands = Some(strands);
        }
        let bulk = &mut self.thread().bulk;
        bulk.open += 1;
        let group = bulk.committed + 1;
        self.note(place, || {
            format!("issues a store of {bytes} bytes from {from:#x}")
        });
        self.issue(
            runs,
            from,
            swizzle_bytes,
            To::Global { group, read: None },
            place,
        );
    }

    fn issue(&mut self, runs: Vec<Run>, shared: u32, swizzle_bytes: u32, to: To, place: u64) {
        let current = self.current;
        let thread = &self.threads[current];
        let whole = |unfenced: bool, fenced: u32| if unfenced { fenced } else { thread.solo_step };
        let fenced = (
            whole(thread.unfenced_shared, thread.fenced_shared),
            whole(thread.unfenced_global, thread.fenced_global),
        );
        let operation = Operation {
            thread: current,
            launch: self.ctas[thread.cta].launch,
            device: self.ctas[thread.cta].device,
            place,
            view: thread.view.clone(),
            slot: thread.slot,
            own: thread.solo_step,
            fenced,
            runs,
            shared,
            swizzle_bytes,
            to,
        };
        self.operations.push(operation);
        // What the thread does from now on is not before the copy.
        self.threads[current].solo_step += 1;
    }

    pub fn bulk_commit(&mut self) {
        let bulk = &mut self.thread().bulk;
        bulk.committed += 1;
        let open = std::mem::take(&mut bulk.open);
        // Operations of the group may have gone on before it was committed.
        match bulk
            .groups
            .iter_mut()
            .find(|(group, ..)| *group == bulk.committed)
        {
            Some((_, reads, writes)) => {
                (*reads, *writes) = (reads.wrapping_add(open), writes.wrapping_add(open))
            }
            None => bulk.groups.push((bulk.committed, open, open)),
        }
        bulk.groups
            .retain(|(_, reads, writes)| (*reads, *writes) != (0, 0));
    }

    /// Whether at most `pending` groups are left, of their reads only if `read_only`; blocks the thread if not.
    pub fn bulk_wait(&mut self, pending: u32, read_only: bool, place: u64) -> bool {
        let thread = self.thread();
        let Some((reads, writes)) = thread.bulk.strands else {
            return true;
        };
        let over = thread.bulk.committed.saturating_sub(pending);
        if !thread.bulk.is_over(over, read_only) {
            thread.bulk.waits = Some((over, read_only));
            self.block(State::Bulk, place);
            return false;
        }
        // Completion is followed by an implicit proxy fence (PTX ISA, "Async proxy").
        thread.view.raise(reads.component, reads.base + over);
        if !read_only {
            thread.view.raise(writes.component, writes.base + over);
        }
        true
    }

    fn check_dims(&mut self, map: &TensorMap, at: &[u32], place: u64) -> bool {
        let fits = usize::from(map.rank) == at.len();
        if !fits {
            let text = format!(
                "{} coordinates for a tensor map of {} dimensions",
                at.len(),
                map.rank
            );
            self.find_at(place, "tensor map", text);
        }
        fits
    }

    fn check_aligned(&mut self, shared: u32, map: &TensorMap, place: u64) -> bool {
        let aligned = shared.is_multiple_of(128);
        if !aligned {
            let text = format!(
                "a box at {shared:#x} of shared memory, which is not a multiple of 128 (swizzle of {} bytes)",
                map.swizzle_bytes
            );
            self.find_at(place, "alignment", text);
        }
        aligned
    }

    fn check_bulk(&mut self, shared: u32, global: u64, bytes: u32, place: u64) -> bool {
        let aligned = [u64::from(shared), global, u64::from(bytes)]
            .iter()
            .all(|n| n.is_multiple_of(16));
        if !aligned {
            let text = format!(
                "a bulk copy of {bytes} bytes between {shared:#x} and {global:#x}: each must be a multiple of 16"
            );
            self.find_at(place, "alignment", text);
        }
        aligned
    }
}

impl Operation {
    /// Where it was issued.
    pub fn place(&self) -> u64 {
        self.place
    }

    /// The CTA that must not end before it is over.
    pub fn needs(&self, machine: &Machine) -> usize {
        match self.to {
            To::Shared { cta, .. } => cta,
            To::Global { .. } => machine.threads[self.thread].cta,
        }
    }
}

impl Bulk {
    /// Whether groups up to `last` are over.
    pub fn is_over(&self, last: u32, read_only: bool) -> bool {
        self.groups
            .iter()
            .filter(|(group, ..)| *group <= last)
            .all(|(_, reads, writes)| *reads == 0 && (read_only || *writes == 0))
    }
}
