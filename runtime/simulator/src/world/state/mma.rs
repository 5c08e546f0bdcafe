//! The tensor-core products of a warpgroup that are under way (`wgmma`): products, groups and accumulators.

use super::convergence::{WARP, WARPGROUP_WARPS};
use super::counters::StepCounter;
use crate::world::clock::View;
use std::collections::VecDeque;

/// The threads of a warpgroup.
pub const THREADS: usize = WARP * WARPGROUP_WARPS;
/// The rows of a product.
pub const ROWS: usize = 64;
/// The words of a row of A, and of a column of B.
const DEPTH_WORDS: usize = 8;

/// The products that a warpgroup has issued. The vectors with an element per thread are empty until the first product.
#[derive(Debug, Default)]
pub struct WarpgroupMma {
    /// Counts the groups that are done.
    pub counter: Option<StepCounter>,
    /// The products that are not done.
    pub products: VecDeque<Product>,
    /// The number of products that are done.
    pub done: u64,
    /// The number of groups that are done.
    pub groups_done: u32,
    /// The groups that are not done.
    pub groups: VecDeque<CommittedGroup>,
    pub accumulators: Vec<Accumulators>,
    /// The number of products that each thread has issued.
    pub issued: Vec<u64>,
    /// The number of groups that each thread has committed.
    pub committed: Vec<u32>,
    /// Whether each thread has executed `wgmma.fence` since it last waited for all products.
    pub fenced: Vec<bool>,
    /// The waiting threads, each with the number of groups for which it waits.
    pub waiting: Vec<(usize, u32)>,
}

/// The products that the threads committed together.
#[derive(Debug)]
pub struct CommittedGroup {
    /// The number of products up to the end of the group.
    pub end: u64,
    /// The number of threads that have committed it.
    pub threads: usize,
}

/// The left operand of a product.
#[derive(Clone, Copy, Debug)]
pub enum OperandA {
    /// A in shared memory, by its matrix descriptor.
    Shared(u64),
    /// A in registers, by a pointer to the four registers of a thread that hold its part of A.
    Registers(*const u32),
}

/// The type of the elements of A and B, in the layout of `mk::sim::Element`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Element {
    /// The function of a kernel that converts the elements of a word to fp32. The first element is in the lowest bits.
    unpack: unsafe extern "C" fn(u32, *mut f32),
    per_word: u32,
}

impl Element {
    /// Returns the bytes of an element.
    pub const fn bytes(self) -> usize {
        4 / self.per_word()
    }

    pub const fn per_word(self) -> usize {
        self.per_word as usize
    }

    /// Returns the depth of a product: the columns of A, and the rows of B.
    pub const fn depth(self) -> usize {
        DEPTH_WORDS * self.per_word()
    }

    /// Returns the values of the elements of a word.
    pub fn values(self, word: u32) -> impl Iterator<Item = f32> {
        let mut values = [0.0; 4];
        // SAFETY: the function of the C++ header writes at most four floats, and does nothing else.
        unsafe { (self.unpack)(word, values.as_mut_ptr()) };
        values.into_iter().take(self.per_word())
    }
}

impl PartialEq for Element {
    fn eq(&self, other: &Self) -> bool {
        self.per_word == other.per_word && std::ptr::fn_addr_eq(self.unpack, other.unpack)
    }
}

/// The properties of a product that must be equal for all 128 threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MmaShape {
    pub n: u32,
    /// The descriptor of A, or `None` if A is in registers.
    pub a: Option<u64>,
    pub b: u64,
    pub element: Element,
    pub b_mn_major: bool,
    pub accumulate: bool,
}

/// A product that has been issued.
#[derive(Debug)]
pub struct Product {
    pub shape: MmaShape,
    pub pc: u64,
    /// The index of the product's accumulators.
    pub sum: usize,
    /// The number of threads that have issued it.
    pub threads: u32,
    /// For each thread, its registers of A, and the contents of these registers when the thread issued the product.
    pub fragments: Vec<(*const u32, [u32; 4])>,
    /// For each warp, its view when it issued its part.
    pub known: Vec<View>,
}

/// The accumulators of products that are not done. Accumulators are moved out of the threads' registers, which nothing
/// may read until the products are done.
#[derive(Debug)]
pub struct Accumulators {
    pub n: usize,
    pub registers: Vec<*mut f32>,
    pub values: Vec<f32>,
    pub in_flight: u32,
}

impl WarpgroupMma {
    /// Returns the number of groups that all threads have committed.
    pub fn committed_by_all(&self) -> u32 {
        let whole = |group: &&CommittedGroup| group.threads == THREADS;
        self.groups_done + self.groups.iter().take_while(whole).count() as u32
    }

    /// Returns the index of the accumulators of thread `index` at `d`: the accumulators of products in flight, or unused
    /// accumulators.
    pub fn sum_for(&mut self, d: *mut f32, index: usize, n: usize) -> usize {
        let in_flight = self
            .accumulators
            .iter()
            .position(|sum| sum.in_flight > 0 && sum.registers[index] == d);
        if let Some(sum) = in_flight {
            return sum;
        }
        let new = Accumulators {
            n,
            registers: vec![std::ptr::null_mut(); THREADS],
            values: vec![0.0; ROWS * n],
            in_flight: 0,
        };
        match self
            .accumulators
            .iter()
            .position(|sum| sum.in_flight == 0 && sum.n == n)
        {
            Some(free) => {
                self.accumulators[free].registers.fill(std::ptr::null_mut());
                free
            }
            None => {
                self.accumulators.push(new);
                self.accumulators.len() - 1
            }
        }
    }
}

impl Accumulators {
    /// Returns the row and the first column of register pair `pair` of thread `index` (PTX ISA, "Register Fragments" of
    /// wgmma).
    fn position(index: usize, pair: usize) -> (usize, usize) {
        let row = index / WARP * 16 + index % WARP / 4 + pair % 2 * 8;
        (row, pair / 2 * 8 + index % 4 * 2)
    }

    /// Moves the accumulators of a thread out of its registers. The registers hold NaN until the thread has waited.
    ///
    /// # Safety
    /// `d` must point to n / 2 floats.
    pub unsafe fn move_out(&mut self, index: usize, d: *mut f32) {
        if self.registers[index] == d {
            return;
        }
        self.registers[index] = d;
        for pair in 0..self.n / 4 {
            let (row, column) = Self::position(index, pair);
            for i in 0..2 {
                // SAFETY: the register is one of the n / 2 floats.
                unsafe {
                    let register = d.add(2 * pair + i);
                    self.values[row * self.n + column + i] = *register;
                    *register = f32::NAN;
                }
            }
        }
    }

    /// Moves the accumulators back to the registers of all threads.
    ///
    /// # Safety
    /// The registers must be alive.
    pub unsafe fn restore(&mut self) {
        for (index, d) in self
            .registers
            .iter()
            .enumerate()
            .filter(|(_, d)| !d.is_null())
        {
            for pair in 0..self.n / 4 {
                let (row, column) = Self::position(index, pair);
                for i in 0..2 {
                    // SAFETY: the caller guarantees that the registers are alive, and this is one of the n / 2 floats.
                    unsafe { *d.add(2 * pair + i) = self.values[row * self.n + column + i] };
                }
            }
        }
        self.registers.fill(std::ptr::null_mut());
    }
}

/// Reads A from the threads' registers (PTX ISA, "Register Fragments" of wgmma). Each thread holds words of two rows and
/// two halves. Returns whether a register has changed since the product was issued.
///
/// # Safety
/// Each pointer must be null or point to four words.
pub unsafe fn read_fragments(
    of_threads: &[(*const u32, [u32; 4])],
    element: Element,
    a: &mut [f32],
) -> bool {
    let mut has_changed = false;
    for (index, (fragment, before)) in of_threads.iter().enumerate() {
        if fragment.is_null() {
            continue;
        }
        // SAFETY: the caller guarantees that the pointer leads to four words.
        let now = unsafe { fragment.cast::<[u32; 4]>().read() };
        has_changed |= now != *before;
        for (register, word) in now.into_iter().enumerate() {
            let row = index / WARP * 16 + index % WARP / 4 + register % 2 * 8;
            let first = (row * DEPTH_WORDS + register / 2 * 4 + index % 4) * element.per_word();
            let elements = a[first..].iter_mut();
            elements
                .zip(element.values(word))
                .for_each(|(to, value)| *to = value);
        }
    }
    has_changed
}
