//! Tensor-core products of a warpgroup (wgmma): done as late as a wait allows, from what shared memory holds then.

use super::clock::View;
use super::launch::Strand;
use super::machine::{Machine, State, WARP, WARPGROUP_WARPS};
use std::collections::VecDeque;

const THREADS: usize = WARP * WARPGROUP_WARPS;
const ROWS: usize = 64;
pub(super) const DEPTH: usize = 16;

/// What a warpgroup has issued.
#[derive(Debug, Default)]
pub(super) struct Mma {
    pub strand: Option<Strand>,
    products: VecDeque<Product>,
    /// Products that are done.
    done: u64,
    pub groups_done: u32,
    /// Groups that are not done.
    groups: VecDeque<Group>,
    sums: Vec<Sum>,
    issued: Vec<u64>,
    committed: Vec<u32>,
    fenced: Vec<bool>,
    /// Threads, and the groups that they wait for.
    waiting: Vec<(usize, u32)>,
}

/// Products that threads committed together.
#[derive(Debug)]
struct Group {
    /// Where it ends, counted in products.
    end: u64,
    /// Those that have committed it.
    threads: usize,
}

/// The left factor of a product.
#[derive(Clone, Copy, Debug)]
pub(super) enum Left {
    /// Its descriptor.
    Shared(u64),
    /// The four registers of a thread that hold its part of 64 x 16.
    Registers(*const u32),
}

/// What all 128 threads issue alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    n: u32,
    /// None: A is in registers.
    a: Option<u64>,
    b: u64,
    b_mn_major: bool,
    accumulate: bool,
}

#[derive(Debug)]
pub(super) struct Product {
    shape: Shape,
    pub place: u64,
    sum: usize,
    threads: u32,
    /// By thread: its registers of A, and what they held.
    fragments: Vec<(*const u32, [u32; 4])>,
    /// By warp: what it knew when it issued its part.
    pub known: Vec<View>,
}

/// Accumulators in flight, taken out of the threads' registers, where nothing may read them now.
#[derive(Debug)]
struct Sum {
    n: usize,
    registers: Vec<*mut f32>,
    values: Vec<f32>,
    in_flight: u32,
}

impl Machine {
    fn mma_of(&mut self) -> (usize, &mut Mma) {
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

    pub fn mma_fence(&mut self) {
        let (index, mma) = self.mma_of();
        mma.fenced[index] = true;
    }

    /// Issues a thread's part of d[64 x n] = A[64 x 16] B[16 x n] + (accumulate ? d : 0).
    ///
    /// # Safety
    /// `d` must point to n / 2 floats, and registers of A to 4 words, that live until the product has been waited for.
    pub unsafe fn mma(
        &mut self,
        d: *mut f32,
        n: u32,
        (left, b): (Left, u64),
        (b_mn_major, accumulate): (bool, bool),
        place: u64,
    ) {
        let shape = Shape {
            n,
            a: match left {
                Left::Shared(descriptor) => Some(descriptor),
                Left::Registers(_) => None,
            },
            b,
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
            mma.sums[sum].in_flight += 1;
            mma.products.push_back(Product {
                shape,
                place,
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
        if let Left::Registers(fragment) = left {
            // SAFETY: four words, by the caller.
            product.fragments[index] = (fragment, unsafe { fragment.cast::<[u32; 4]>().read() });
        }
        if index % WARP == 0 {
            product.known.push(view);
        }
        let sum = product.sum;
        // SAFETY: by the caller.
        unsafe { mma.sums[sum].take(index, d) };
        if let Some(other) = different {
            let text = format!("a thread issues {shape:x?}, another of its warpgroup {other:x?}");
            self.find_at(place, "warpgroup diverged", text);
        }
        if !fenced {
            let text = "wgmma on registers that ordinary code may have touched: no wgmma.fence since the last wait";
            self.find_at(place, "missing fence", text.into());
        }
    }

    pub fn mma_commit(&mut self, place: u64) {
        let (index, mma) = self.mma_of();
        let number = (mma.committed[index] - mma.groups_done) as usize;
        mma.committed[index] += 1;
        let end = mma.issued[index];
        if number == mma.groups.len() {
            mma.groups.push_back(Group { end, threads: 0 });
        }
        let group = &mut mma.groups[number];
        group.threads += 1;
        let (is_same, is_whole) = (group.end == end, group.threads == THREADS);
        if !is_same {
            let text = "threads of a warpgroup committed different numbers of products".to_owned();
            self.find_at(place, "warpgroup diverged", text);
        }
        if is_whole {
            self.retire();
        }
    }

    /// Whether at most `pending` groups are unfinished; blocks the thread if more are.
    pub fn mma_wait(&mut self, pending: u32, place: u64) -> bool {
        let current = self.current;
        let (index, mma) = self.mma_of();
        let over = mma.committed[index].saturating_sub(pending);
        if over > mma.groups_done {
            mma.waiting.push((current, over));
            let is_committed = over <= mma.committed_by_all();
            self.block(State::Mma, place);
            if is_committed {
                self.retire();
            }
            return false;
        }
        // Accumulators that nothing has in flight are ordinary registers again.
        mma.fenced[index] &= !mma.products.is_empty();
        if let Some(strand) = mma.strand {
            let view = &mut self.threads[current].view;
            self.lately.raise(view, strand.at(over));
        }
        true
    }

    /// Does what waits ask for, no more, once all threads have committed it.
    fn retire(&mut self) {
        let (_, mma) = self.mma_of();
        let committed_by_all = mma.committed_by_all();
        let asked = mma
            .waiting
            .iter()
            .map(|(_, over)| *over)
            .filter(|over| *over <= committed_by_all)
            .max();
        let Some(target) = asked else { return };
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

    fn do_product(&mut self, group: u32) {
        if self.mma_of().1.strand.is_none() {
            let strand = self.strand_of(self.current);
            self.mma_of().1.strand = Some(strand);
        }
        let (_, mma) = self.mma_of();
        let Some(product) = mma.products.pop_front() else {
            return;
        };
        mma.done += 1;
        let strand = mma.strand.unwrap_or_default();
        let stamp = self.async_stamp(self.current, strand.at(group), product.place);
        let shape = product.shape;
        let n = shape.n as usize;
        let mut a = vec![0f32; ROWS * DEPTH];
        let mut b = vec![0f32; DEPTH * n];
        match shape.a {
            Some(descriptor) => {
                self.operand(descriptor, ROWS, false, &product, stamp, |row, k, value| {
                    a[row * DEPTH + k] = value
                });
            }
            None => {
                // SAFETY: the threads that issued this wait or run, so their registers are alive.
                if unsafe { fragments(&product.fragments, &mut a) } {
                    let text = "a register of A changed before the product was done";
                    self.find_at(product.place, "register", text.into());
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
        let sum = &mut mma.sums[product.sum];
        if !shape.accumulate {
            sum.values.fill(0.0);
        }
        multiply(&a, &b, &mut sum.values, n);
        sum.in_flight -= 1;
        if sum.in_flight == 0 {
            // SAFETY: the threads that issued this wait or run, so their registers are alive.
            unsafe { sum.give_back() };
        }
    }
}

impl Mma {
    /// Groups that all threads have committed.
    fn committed_by_all(&self) -> u32 {
        let whole = |group: &&Group| group.threads == THREADS;
        self.groups_done + self.groups.iter().take_while(whole).count() as u32
    }

    /// The accumulators of the thread `index` at `d`: those in flight, or free ones.
    fn sum_for(&mut self, d: *mut f32, index: usize, n: usize) -> usize {
        let in_flight = self
            .sums
            .iter()
            .position(|sum| sum.in_flight > 0 && sum.registers[index] == d);
        if let Some(sum) = in_flight {
            return sum;
        }
        let new = Sum {
            n,
            registers: vec![std::ptr::null_mut(); THREADS],
            values: vec![0.0; ROWS * n],
            in_flight: 0,
        };
        match self
            .sums
            .iter()
            .position(|sum| sum.in_flight == 0 && sum.n == n)
        {
            Some(free) => {
                self.sums[free].registers.fill(std::ptr::null_mut());
                free
            }
            None => {
                self.sums.push(new);
                self.sums.len() - 1
            }
        }
    }
}

impl Sum {
    /// Row and first column of register pair `pair` of thread `index` (PTX ISA, "Register Fragments" of wgmma).
    fn place(index: usize, pair: usize) -> (usize, usize) {
        let row = index / WARP * 16 + index % WARP / 4 + pair % 2 * 8;
        (row, pair / 2 * 8 + index % 4 * 2)
    }

    /// Takes the accumulators of a thread out of its registers, which hold nothing that it may use until the wait.
    ///
    /// # Safety
    /// `d` must point to n / 2 floats.
    unsafe fn take(&mut self, index: usize, d: *mut f32) {
        if self.registers[index] == d {
            return;
        }
        self.registers[index] = d;
        for pair in 0..self.n / 4 {
            let (row, column) = Self::place(index, pair);
            for i in 0..2 {
                // SAFETY: inside the n / 2 floats.
                unsafe {
                    let register = d.add(2 * pair + i);
                    self.values[row * self.n + column + i] = *register;
                    *register = f32::NAN;
                }
            }
        }
    }

    /// # Safety
    /// The registers must be alive.
    unsafe fn give_back(&mut self) {
        for (index, d) in self
            .registers
            .iter()
            .enumerate()
            .filter(|(_, d)| !d.is_null())
        {
            for pair in 0..self.n / 4 {
                let (row, column) = Self::place(index, pair);
                for i in 0..2 {
                    // SAFETY: by the caller; inside the n / 2 floats.
                    unsafe { *d.add(2 * pair + i) = self.values[row * self.n + column + i] };
                }
            }
        }
        self.registers.fill(std::ptr::null_mut());
    }
}

/// A from the threads' registers, as they are now (PTX ISA, "Register Fragments" of wgmma): each holds pairs of columns,
/// of two rows and two halves. Whether one has changed since the product was issued.
///
/// # Safety
/// Each must be null or point to four words.
unsafe fn fragments(of_threads: &[(*const u32, [u32; 4])], a: &mut [f32]) -> bool {
    let mut has_changed = false;
    for (index, (fragment, before)) in of_threads.iter().enumerate() {
        if fragment.is_null() {
            continue;
        }
        // SAFETY: by the caller.
        let now = unsafe { fragment.cast::<[u32; 4]>().read() };
        has_changed |= now != *before;
        for (register, pair) in now.into_iter().enumerate() {
            let row = index / WARP * 16 + index % WARP / 4 + register % 2 * 8;
            let column = register / 2 * 8 + index % 4 * 2;
            a[row * DEPTH + column] = f32::from_bits(pair << 16);
            a[row * DEPTH + column + 1] = f32::from_bits(pair & 0xffff_0000);
        }
    }
    has_changed
}

/// d[64 x n] += a[64 x 16] b[16 x n]: a product of bf16 is exact in fp32; sums are rounded to nearest, k by k.
fn multiply(a: &[f32], b: &[f32], d: &mut [f32], n: usize) {
    for (a, d) in a.chunks_exact(DEPTH).zip(d.chunks_exact_mut(n)) {
        for (factor, b) in a.iter().zip(b.chunks_exact(n)) {
            for (sum, value) in d.iter_mut().zip(b) {
                *sum += factor * value;
            }
        }
    }
}
