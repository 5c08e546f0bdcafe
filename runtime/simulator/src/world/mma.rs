//! Tensor-core products of a warpgroup (wgmma): done as late as a wait allows, from what shared memory holds then.

use super::clock::{Clock, View};
use super::launch::Strand;
use super::machine::{Machine, SHARED_START, State, WARP, WARPGROUP_WARPS};
use super::shadow::{Accessor, Fault};
use super::tensor::swizzled;
use std::collections::VecDeque;

const THREADS: usize = WARP * WARPGROUP_WARPS;
const ROWS: usize = 64;
const DEPTH: usize = 16;

/// What a warpgroup has issued.
#[derive(Debug, Default)]
pub(super) struct Mma {
    pub strand: Option<Strand>,
    products: VecDeque<Product>,
    /// Products that are done.
    done: u64,
    /// Groups that are done, and where the others end, counted in products.
    pub groups_done: u32,
    group_ends: VecDeque<u64>,
    sums: Vec<Sum>,
    issued: Vec<u64>,
    committed: Vec<u32>,
    fenced: Vec<bool>,
    /// Threads, and the groups that they wait for.
    waiting: Vec<(usize, u32)>,
}

/// What all 128 threads issue alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    n: u32,
    a: u64,
    b: u64,
    b_mn_major: bool,
    accumulate: bool,
}

#[derive(Debug)]
struct Product {
    shape: Shape,
    place: u64,
    sum: usize,
    threads: u32,
    /// By warp: what it knew when it issued its part.
    known: Vec<View>,
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
    /// `d` must point to n / 2 floats that live until the product has been waited for.
    pub unsafe fn mma(
        &mut self,
        d: *mut f32,
        n: u32,
        (a, b): (u64, u64),
        (b_mn_major, accumulate): (bool, bool),
        place: u64,
    ) {
        let shape = Shape {
            n,
            a,
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
                known: Vec::new(),
            });
        } else if mma.products[offset].shape != shape {
            different = Some(mma.products[offset].shape);
        }
        let product = &mut mma.products[offset];
        product.threads += 1;
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
        let group = (mma.committed[index] - mma.groups_done) as usize;
        mma.committed[index] += 1;
        let end = mma.issued[index];
        let same = match mma.group_ends.get(group) {
            Some(known) => *known == end,
            None => {
                mma.group_ends.push_back(end);
                true
            }
        };
        if !same {
            let text = "threads of a warpgroup committed different numbers of products".to_owned();
            self.find_at(place, "warpgroup diverged", text);
        }
        self.retire();
    }

    /// Whether at most `pending` groups are unfinished; blocks the thread if more are.
    pub fn mma_wait(&mut self, pending: u32, place: u64) -> bool {
        let current = self.current;
        let (index, mma) = self.mma_of();
        let over = mma.committed[index].saturating_sub(pending);
        if over > mma.groups_done {
            mma.waiting.push((current, over));
            self.block(State::Mma, place);
            self.retire();
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
        let committed_by_all = mma.committed.iter().copied().min().unwrap_or(0);
        let asked = mma
            .waiting
            .iter()
            .map(|(_, over)| *over)
            .filter(|over| *over <= committed_by_all)
            .max();
        let Some(target) = asked else { return };
        while self.mma_of().1.groups_done < target {
            let (_, mma) = self.mma_of();
            let end = mma.group_ends.pop_front().unwrap_or(mma.done);
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
        self.operand(shape.a, ROWS, false, &product, stamp, |row, k, value| {
            a[row * DEPTH + k] = value
        });
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

    /// Reads a K-major ([lines][16 k]) or MN-major ([16 k][lines]) operand through its descriptor.
    fn operand(
        &mut self,
        descriptor: u64,
        lines: usize,
        mn_major: bool,
        product: &Product,
        stamp: u32,
        mut put: impl FnMut(usize, usize, f32),
    ) {
        let generic: Vec<&Clock> = product.known.iter().map(|view| &view.generic).collect();
        let proxy: Vec<&Clock> = product.known.iter().map(|view| &view.shared).collect();
        let no_slot = super::shadow::NO_SLOT;
        let by = Accessor {
            stamp,
            generic: &generic,
            proxy: Some(&proxy),
            slot: no_slot,
            own: 0,
            fenced: 0,
        };
        let layout = match Layout::of(descriptor) {
            Ok(layout) => layout,
            Err(text) => {
                self.find_at(product.place, "matrix descriptor", text);
                return;
            }
        };
        let cta = self.threads[self.current].cta;
        let memory = &mut self.ctas[cta];
        let mut found = None;
        let mut outside = None;
        // By eight lines: chunks that nobody wrote, and where the first is. A line may be all garbage, if a kernel loads
        // fewer rows than a tile has: it reads as NaN, and makes NaN of its own row or column of the result alone.
        let mut unwritten = vec![(0, None); lines / 8];
        for chunk in 0..lines * DEPTH / 8 {
            // Eight elements that are contiguous in shared memory.
            let (line, k) = if mn_major {
                (chunk * 8 % lines, chunk * 8 / lines)
            } else {
                (chunk / 2, chunk % 2 * 8)
            };
            let address = layout.address(line as u32, k as u32, mn_major);
            let offset = address.wrapping_sub(SHARED_START) as usize;
            if offset + 16 > memory.smem.bytes.len() {
                outside = Some(address);
                break;
            }
            let mut was_written = true;
            let note = |fault, earlier, _| {
                if fault == Fault::Uninitialised {
                    was_written = false;
                } else {
                    found.get_or_insert((fault, earlier, address));
                }
            };
            self.shadow.read(
                &mut memory.smem.cells[offset / 4..offset / 4 + 4],
                &by,
                note,
            );
            let chunks = &mut unwritten[line / 8];
            chunks.0 += u32::from(!was_written);
            chunks.1.get_or_insert(address);
            for (i, pair) in memory.smem.bytes[offset..offset + 16]
                .chunks_exact(2)
                .enumerate()
            {
                let value = f32::from_bits(u32::from(u16::from_le_bytes([pair[0], pair[1]])) << 16);
                if mn_major {
                    put(line + i, k, value);
                } else {
                    put(line, k + i, value);
                }
            }
        }
        if let Some(address) = outside {
            self.fail(format!(
                "wgmma reads {address:#x}, outside of shared memory (descriptor {descriptor:#x})"
            ));
        }
        for (count, first) in unwritten {
            if !(count as usize).is_multiple_of(DEPTH / 8)
                || (mn_major && count % DEPTH as u32 != 0)
            {
                found = found.or(first.map(|address| (Fault::Uninitialised, 0, address)));
            }
        }
        if let Some((fault, earlier, address)) = found {
            self.find_fault(
                fault,
                earlier,
                stamp,
                &format!("shared memory at {address:#x}"),
            );
        }
    }
}

impl Mma {
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

/// A matrix descriptor, decoded (PTX ISA, "Matrix Descriptor Format").
#[derive(Clone, Copy, Debug)]
struct Layout {
    start: u32,
    leading_bytes: u32,
    stride_bytes: u32,
    swizzle_bytes: u32,
}

impl Layout {
    fn of(descriptor: u64) -> Result<Self, String> {
        let field = |shift: u32, bits: u32| ((descriptor >> shift) & ((1 << bits) - 1)) as u32;
        let swizzle_bytes = match field(62, 2) {
            1 => 128,
            2 => 64,
            3 => 32,
            _ => {
                return Err(format!(
                    "matrix descriptor {descriptor:#x} without a swizzle, which is not simulated"
                ));
            }
        };
        if field(49, 3) != 0 {
            return Err(format!(
                "matrix descriptor {descriptor:#x} with a base offset, which is not simulated"
            ));
        }
        Ok(Self {
            start: field(0, 14) << 4,
            leading_bytes: field(16, 14) << 4,
            stride_bytes: field(32, 14) << 4,
            swizzle_bytes,
        })
    }

    /// Of element (line, k): lines are rows of A or columns of B.
    fn address(&self, line: u32, k: u32, mn_major: bool) -> u32 {
        let width = self.swizzle_bytes;
        let logical = if mn_major {
            let per_row = width / 2;
            line / per_row * self.leading_bytes
                + k / 8 * self.stride_bytes
                + k % 8 * width
                + line % per_row * 2
        } else {
            line / 8 * self.stride_bytes + line % 8 * width + k * 2
        };
        swizzled(self.start + logical, width)
    }
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
