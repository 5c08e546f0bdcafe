//! Copies by TMA: bulk copies and boxes of tensors, which complete late and in any order.
//!
//! This module checks and issues the copies and waits for them. The module `tma_completion` performs them.

use super::machine::Machine;
use super::state::launch::SHARED_BITS;
use super::state::thread::ThreadState;
use super::state::tma::{TmaCopy, TmaTarget};
use super::tensor::{Run, runs};
use crate::tensor_map::{ENCODED_BYTES, TensorMap};

impl Machine {
    /// Decodes a tensor map. If it is not valid, the kernel fails.
    ///
    /// # Safety
    /// `map` must point to 128 bytes.
    unsafe fn tensor_map(&mut self, map: *const u8) -> Option<TensorMap> {
        // SAFETY: the caller guarantees that `map` points to 128 bytes.
        let bytes = unsafe { &*map.cast::<[u8; ENCODED_BYTES]>() };
        match TensorMap::from_bytes(bytes) {
            Ok(map) => Some(map),
            Err(why) => {
                self.fail(format!(
                    "a tensor copy whose tensor map is not valid: {why}"
                ));
                None
            }
        }
    }

    /// Issues a load of the box of `map` at the coordinates `at` to shared memory. If `ctas` is not 0, it selects the
    /// CTAs of the cluster that receive the box.
    ///
    /// # Safety
    /// `map` must point to 128 bytes.
    pub unsafe fn tensor_load(
        &mut self,
        to: u32,
        map: *const u8,
        barrier: u32,
        at: &[u32],
        ctas: u32,
        pc: u64,
    ) {
        // SAFETY: the caller guarantees that `map` points to 128 bytes.
        let Some(map) = (unsafe { self.tensor_map(map) }) else {
            return;
        };
        if !self.check_dims(&map, at, pc) || !self.check_aligned(to, &map, pc) {
            return;
        }
        let runs = runs(&map, at);
        self.load_runs(to, runs, u32::from(map.swizzle_bytes), barrier, ctas, pc);
    }

    /// Issues a load of contiguous bytes to shared memory.
    pub fn bulk_load(&mut self, to: u32, from: u64, bytes: u32, barrier: u32, pc: u64) {
        if self.check_bulk(to, from, bytes, pc) {
            let run = Run {
                box_offset: 0,
                row_bytes: bytes,
                address: from,
                bytes,
                skipped: 0,
            };
            self.load_runs(to, vec![run], 0, barrier, 0, pc);
        }
    }

    /// Issues a load of `runs` to each target CTA.
    fn load_runs(
        &mut self,
        to: u32,
        runs: Vec<Run>,
        swizzle_bytes: u32,
        barrier: u32,
        ctas: u32,
        pc: u64,
    ) {
        let bytes: u32 = runs.iter().map(|run| run.row_bytes).sum();
        let low = |address: u32| address & ((1 << SHARED_BITS) - 1);
        if self.resolve_shared(low(to), bytes, "tensor load").is_none() {
            return;
        }
        let mut targets = Vec::new();
        for cta in self.targets(to, barrier, ctas, pc) {
            let known = &self.ctas[cta].barriers;
            let found = known.iter().position(|known| known.address == low(barrier));
            let Some(index) = found else {
                let text = format!(
                    "a copy signals the barrier at {barrier:#x}, but no barrier was initialised there"
                );
                return self.report_at(pc, "barrier", text);
            };
            if !known[index].fenced {
                let text = format!(
                    "a copy signals the barrier at {barrier:#x}, whose initialisation TMA may not see: there is no fence_barrier_init after barrier_init"
                );
                self.report_at(pc, "missing fence", text);
            }
            self.check_running(cta, "copy", pc);
            self.check_barrier_word(cta, barrier, pc);
            targets.push((cta, index));
        }
        self.trace(pc, || format!("issues a load of {bytes} bytes to {to:#x}"));
        // Each CTA receives its copy at a different time.
        for (cta, barrier) in targets {
            let to_cta = TmaTarget::Shared {
                cta,
                barrier,
                bytes,
            };
            self.issue(runs.clone(), low(to), swizzle_bytes, to_cta, pc);
        }
    }

    /// Returns the CTAs to whose shared memory a load copies: the CTAs whose bits are set in `ctas`, or the CTA that
    /// the addresses select.
    fn targets(&mut self, to: u32, barrier: u32, ctas: u32, pc: u64) -> Vec<usize> {
        let own = self.threads[self.current].cta;
        let cluster = self.ctas[own].cluster.clone();
        if ctas == 0 {
            let (target, counts) = (self.shared_cta(to), self.shared_cta(barrier));
            if target != counts {
                let text =
                    format!("a copy to {to:#x} signals the barrier {barrier:#x} of another CTA");
                self.report_at(pc, "barrier", text);
            }
            return target.into_iter().collect();
        }
        if ctas >> cluster.len() != 0 {
            let text = format!(
                "a copy to the CTAs {ctas:#b} of a cluster that has only {} CTAs",
                cluster.len()
            );
            self.report_at(pc, "cluster", text);
        }
        let chosen = cluster.into_iter().enumerate();
        chosen
            .filter(|(rank, _)| ctas >> rank & 1 == 1)
            .map(|(_, cta)| cta)
            .collect()
    }

    /// Issues a store of shared memory to the box of `map` at the coordinates `at`.
    ///
    /// # Safety
    /// `map` must point to 128 bytes.
    pub unsafe fn tensor_store(&mut self, map: *const u8, from: u32, at: &[u32], pc: u64) {
        // SAFETY: the caller guarantees that `map` points to 128 bytes.
        let Some(map) = (unsafe { self.tensor_map(map) }) else {
            return;
        };
        if self.check_dims(&map, at, pc) && self.check_aligned(from, &map, pc) {
            let runs = runs(&map, at);
            self.store_runs(from, runs, u32::from(map.swizzle_bytes), pc);
        }
    }

    /// Issues a store of contiguous bytes of shared memory.
    pub fn bulk_store(&mut self, to: u64, from: u32, bytes: u32, pc: u64) {
        if self.check_bulk(from, to, bytes, pc) {
            let run = Run {
                box_offset: 0,
                row_bytes: bytes,
                address: to,
                bytes,
                skipped: 0,
            };
            self.store_runs(from, vec![run], 0, pc);
        }
    }

    /// Issues a store of `runs`, as a part of the open bulk group.
    fn store_runs(&mut self, from: u32, runs: Vec<Run>, swizzle_bytes: u32, pc: u64) {
        let bytes: u32 = runs.iter().map(|run| run.row_bytes).sum();
        if self.resolve_shared(from, bytes, "bulk store").is_none() {
            return;
        }
        if self.thread().bulk.counters.is_none() {
            let current = self.current;
            let counters = (self.counter_for(current), self.counter_for(current));
            self.thread().bulk.counters = Some(counters);
        }
        let bulk = &mut self.thread().bulk;
        bulk.open += 1;
        let group = bulk.committed + 1;
        self.trace(pc, || {
            format!("issues a store of {bytes} bytes from {from:#x}")
        });
        self.issue(
            runs,
            from,
            swizzle_bytes,
            TmaTarget::Global { group, read: None },
            pc,
        );
    }

    /// Adds a copy to the copies under way, with the current view of the running thread.
    fn issue(&mut self, runs: Vec<Run>, shared: u32, swizzle_bytes: u32, to: TmaTarget, pc: u64) {
        let current = self.current;
        let thread = &self.threads[current];
        let whole = |unfenced: bool, fenced: u32| if unfenced { fenced } else { thread.solo_step };
        let fenced = (
            whole(thread.unfenced_shared, thread.fenced_shared),
            whole(thread.unfenced_global, thread.fenced_global),
        );
        let operation = TmaCopy {
            thread: current,
            launch: self.ctas[thread.cta].launch,
            device: self.ctas[thread.cta].device,
            pc,
            view: thread.view.clone(),
            slot: thread.slot,
            own: thread.solo_step,
            fenced,
            runs,
            shared,
            swizzle_bytes,
            to,
        };
        self.tma_copies.push(operation);
        // Later accesses of the thread are in the next solo step, so they do not happen before the copy.
        self.threads[current].solo_step += 1;
    }

    /// Commits the open bulk group of the running thread.
    pub fn bulk_commit(&mut self) {
        let bulk = &mut self.thread().bulk;
        bulk.committed += 1;
        let open = std::mem::take(&mut bulk.open);
        // Copies of the group may have made progress before the commit. Then the group exists, with counts below zero.
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

    /// Returns whether all but the last `pending` groups are complete. With `read_only`, their reads suffice. Blocks
    /// the thread if they are not.
    pub fn bulk_wait(&mut self, pending: u32, read_only: bool, pc: u64) -> bool {
        let thread = self.thread();
        let Some((reads, writes)) = thread.bulk.counters else {
            return true;
        };
        let over = thread.bulk.committed.saturating_sub(pending);
        if !thread.bulk.is_over(over, read_only) {
            thread.bulk.waits = Some((over, read_only));
            self.block(ThreadState::BulkGroups, pc);
            return false;
        }
        // The completion includes an implicit proxy fence (PTX ISA, "Async proxy").
        thread.view.raise(reads.component, reads.base + over);
        if !read_only {
            thread.view.raise(writes.component, writes.base + over);
        }
        true
    }

    /// Reports a mistake and returns false if the number of coordinates differs from the number of dimensions.
    fn check_dims(&mut self, map: &TensorMap, at: &[u32], pc: u64) -> bool {
        let fits = usize::from(map.rank) == at.len();
        if !fits {
            let text = format!(
                "{} coordinates for a tensor map of {} dimensions",
                at.len(),
                map.rank
            );
            self.report_at(pc, "tensor map", text);
        }
        fits
    }

    /// Reports a mistake and returns false if a box is not aligned in shared memory.
    fn check_aligned(&mut self, shared: u32, map: &TensorMap, pc: u64) -> bool {
        let aligned = shared.is_multiple_of(128);
        if !aligned {
            let text = format!(
                "a box lies at {shared:#x} in shared memory, which is not a multiple of 128 (swizzle of {} bytes)",
                map.swizzle_bytes
            );
            self.report_at(pc, "alignment", text);
        }
        aligned
    }

    /// Reports a mistake and returns false if a bulk copy is not aligned.
    fn check_bulk(&mut self, shared: u32, global: u64, bytes: u32, pc: u64) -> bool {
        let aligned = [u64::from(shared), global, u64::from(bytes)]
            .iter()
            .all(|n| n.is_multiple_of(16));
        if !aligned {
            let text = format!(
                "a bulk copy of {bytes} bytes between {shared:#x} and {global:#x}: the size and both addresses must be multiples of 16"
            );
            self.report_at(pc, "alignment", text);
        }
        aligned
    }
}
