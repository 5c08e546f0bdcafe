//! Tensor-core products of a warpgroup (`wgmma`).
//!
//! A product is done as late as a wait allows, from the contents of shared memory and the registers of A at that time.
//! A kernel that changes an operand too early thus gets a wrong result.

use super::machine::Machine;
use super::mma_sum::add_product;
use super::state::convergence::WARP;
use super::state::mma::{
    CommittedGroup, Element, MmaShape, OperandA, Product, ROWS, THREADS, WarpgroupMma,
    read_fragments,
};
use super::state::thread::ThreadState;

impl Machine {
    /// Returns the products of the running thread's warpgroup, and the index of the thread within the warpgroup.
    fn mma_of(&mut self) -> (usize, &mut WarpgroupMma) {
        let current = self.current;
        let thread = self.threads[current].info.thread as usize;
        let cta = self.cta_of(current);
        let mma = &mut cta.mmas[thread / THREADS];
        if mma.issued.is_empty() {
            mma.issued = vec![0; THREADS];
            mma.committed = vec![0; THREADS];
            mma.fenced = vec![false; THREADS];
        }
        (thread % THREADS, mma)
    }

    /// Executes `wgmma.fence`.
    pub fn mma_fence(&mut self) {
        let (index, mma) = self.mma_of();
        mma.fenced[index] = true;
    }

    /// Issues the running thread's part of d[64 x n] = A[64 x depth] B[depth x n] + (accumulate ? d : 0).
    ///
    /// # Safety
    /// `d` must point to n / 2 floats, and registers of A to 4 words. They must live until the thread has waited for
    /// the product.
    pub unsafe fn mma(
        &mut self,
        d: *mut f32,
        n: u32,
        (left, b, element): (OperandA, u64, Element),
        (b_mn_major, accumulate): (bool, bool),
        pc: u64,
    ) {
        let shape = MmaShape {
            n,
            a: match left {
                OperandA::Shared(descriptor) => Some(descriptor),
                OperandA::Registers(_) => None,
            },
            b,
            element,
            b_mn_major,
            accumulate,
        };
        let view = self.thread().view.clone();
        let (index, mma) = self.mma_of();
        let number = mma.issued[index];
        mma.issued[index] += 1;
        let offset = (number - mma.done) as usize;
        let fenced = mma.fenced[index];
        let mut different = None;
        if offset == mma.products.len() {
            let sum = mma.sum_for(d, index, n as usize);
            mma.accumulators[sum].in_flight += 1;
            mma.products.push_back(Product {
                shape,
                pc,
                sum,
                threads: 0,
                fragments: vec![(std::ptr::null(), [0; 4]); THREADS],
                known: Vec::new(),
            });
        } else if mma.products[offset].shape != shape {
            different = Some(mma.products[offset].shape);
        }
        let product = &mut mma.products[offset];
        product.threads += 1;
        if let OperandA::Registers(fragment) = left {
            // SAFETY: the caller guarantees that the pointer leads to four words.
            product.fragments[index] = (fragment, unsafe { fragment.cast::<[u32; 4]>().read() });
        }
        if index % WARP == 0 {
            product.known.push(view);
        }
        let sum = product.sum;
        // SAFETY: the caller guarantees that `d` points to n / 2 floats.
        unsafe { mma.accumulators[sum].move_out(index, d) };
        if let Some(other) = different {
            let text = format!(
                "a thread issues {shape:x?}, but another thread of its warpgroup has issued {other:x?}"
            );
            self.report_at(pc, "warpgroup diverged", text);
        }
        if !fenced {
            let text = "wgmma uses registers that ordinary code may have accessed: there is no wgmma.fence since the last wait";
            self.report_at(pc, "missing fence", text.into());
        }
    }

    /// Commits the products that the running thread has issued since its last group.
    pub fn mma_commit(&mut self, pc: u64) {
        let (index, mma) = self.mma_of();
        let number = (mma.committed[index] - mma.groups_done) as usize;
        mma.committed[index] += 1;
        let end = mma.issued[index];
        if number == mma.groups.len() {
            mma.groups.push_back(CommittedGroup { end, threads: 0 });
        }
        let group = &mut mma.groups[number];
        group.threads += 1;
        let (is_same, is_whole) = (group.end == end, group.threads == THREADS);
        if !is_same {
            let text = "threads of a warpgroup committed different numbers of products".to_owned();
            self.report_at(pc, "warpgroup diverged", text);
        }
        if is_whole {
            self.retire();
        }
    }

    /// Returns whether at most `pending` groups are not done. If more are, blocks the thread.
    pub fn mma_wait(&mut self, pending: u32, pc: u64) -> bool {
        let current = self.current;
        let (index, mma) = self.mma_of();
        let over = mma.committed[index].saturating_sub(pending);
        if over > mma.groups_done {
            mma.waiting.push((current, over));
            let is_committed = over <= mma.committed_by_all();
            self.block(ThreadState::Wgmma, pc);
            if is_committed {
                self.retire();
            }
            return false;
        }
        // Without a product under way, accumulators are ordinary registers again.
        mma.fenced[index] &= !mma.products.is_empty();
        if let Some(counter) = mma.counter {
            let view = &mut self.threads[current].view;
            self.join_cache.raise(view, counter.at(over));
        }
        true
    }

    /// Performs only the groups for which threads wait, as soon as all threads have committed them.
    fn retire(&mut self) {
        let (_, mma) = self.mma_of();
        let committed_by_all = mma.committed_by_all();
        let last_awaited = mma
            .waiting
            .iter()
            .map(|(_, over)| *over)
            .filter(|over| *over <= committed_by_all)
            .max();
        let Some(target) = last_awaited else { return };
        while self.mma_of().1.groups_done < target {
            let (_, mma) = self.mma_of();
            let end = mma.groups.pop_front().map_or(mma.done, |group| group.end);
            let group = mma.groups_done + 1;
            while self.mma_of().1.done < end {
                self.do_product(group);
            }
            self.mma_of().1.groups_done = group;
        }
        let (_, mma) = self.mma_of();
        let (over, waiting) = mma.waiting.iter().partition(|(_, over)| *over <= target);
        mma.waiting = waiting;
        let over: Vec<(usize, u32)> = over;
        for (thread, _) in over {
            self.wake(thread);
        }
    }

    /// Performs the oldest product, which belongs to `group`.
    fn do_product(&mut self, group: u32) {
        if self.mma_of().1.counter.is_none() {
            let counter = self.counter_for(self.current);
            self.mma_of().1.counter = Some(counter);
        }
        let (_, mma) = self.mma_of();
        let Some(product) = mma.products.pop_front() else {
            return;
        };
        mma.done += 1;
        let counter = mma.counter.unwrap_or_default();
        let stamp = self.async_stamp(self.current, counter.at(group), product.pc);
        let shape = product.shape;
        let (n, depth) = (shape.n as usize, shape.element.depth());
        let mut a = vec![0f32; ROWS * depth];
        let mut b = vec![0f32; depth * n];
        match shape.a {
            Some(descriptor) => {
                self.operand(descriptor, ROWS, false, &product, stamp, |row, k, value| {
                    a[row * depth + k] = value
                });
            }
            None => {
                // SAFETY: the threads that issued this product have not ended, so their registers are alive.
                if unsafe { read_fragments(&product.fragments, shape.element, &mut a) } {
                    let text = "a register of A changed before the product was done";
                    self.report_at(product.pc, "register", text.into());
                }
            }
        }
        self.operand(
            shape.b,
            n,
            shape.b_mn_major,
            &product,
            stamp,
            |column, k, value| b[k * n + column] = value,
        );
        let (_, mma) = self.mma_of();
        let sum = &mut mma.accumulators[product.sum];
        if !shape.accumulate {
            sum.values.fill(0.0);
        }
        add_product(shape.element, &a, &b, &mut sum.values, n);
        sum.in_flight -= 1;
        if sum.in_flight == 0 {
            // SAFETY: the threads that issued this product have not ended, so their registers are alive.
            unsafe { sum.restore() };
        }
    }
}
