//! Fibers. Each thread of a simulated GPU is a fiber with a stack of its own.

use super::image::Image;
use corosensei::stack::{Stack, StackPointer};
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::alloc::{Layout, alloc, dealloc};
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// The size of a stack. A thread of a kernel needs room for its accumulators and little else. Pages that are never
/// touched cost nothing.
const STACK_BYTES: usize = 64 << 10;

/// The value at the far end of every stack. It is overwritten if the stack overflows.
const CANARY: u64 = 0x6d6b_5f73_7461_636b;

/// The memory of a stack.
pub(super) struct FiberStack(NonNull<u8>);

impl FiberStack {
    const LAYOUT: Layout = match Layout::from_size_align(STACK_BYTES, 4096) {
        Ok(layout) => layout,
        Err(_) => panic!("the alignment is a power of two"),
    };

    fn new() -> Self {
        // SAFETY: the layout is not empty. The memory is not read before it is written.
        let memory = NonNull::new(unsafe { alloc(Self::LAYOUT) });
        let stack = Self(memory.unwrap_or_else(|| std::alloc::handle_alloc_error(Self::LAYOUT)));
        // SAFETY: the memory belongs to this stack and is aligned to a page.
        unsafe { stack.0.cast::<u64>().write(CANARY) };
        stack
    }

    fn is_whole(&self) -> bool {
        // SAFETY: the memory belongs to this stack, is aligned to a page, and `new` has written this word.
        unsafe { self.0.cast::<u64>().read() == CANARY }
    }
}

impl Drop for FiberStack {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout.
        unsafe { dealloc(self.0.as_ptr(), Self::LAYOUT) };
    }
}

// SAFETY: the memory belongs to the stack alone.
unsafe impl Send for FiberStack {}

// SAFETY: `base` is less than a page below the end of the memory, and `limit` is its start above the canary. Both are
// aligned, and the memory lives as long as the stack.
unsafe impl Stack for FiberStack {
    /// Stacks begin at different offsets within a page. Otherwise the frames of all fibers would compete for a few sets of
    /// the caches.
    fn base(&self) -> StackPointer {
        let start = self.0.as_ptr() as usize;
        let line = (start >> 12).wrapping_mul(0x9e37_79b9) >> 8 & 63;
        NonZeroUsize::new(start + STACK_BYTES - line * 64).expect("not null")
    }

    fn limit(&self) -> StackPointer {
        NonZeroUsize::new(self.0.as_ptr() as usize + 64).expect("not null")
    }
}

/// A part of a kernel's parameter. It is aligned like the tensor maps in the parameter.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
pub(super) struct ArgsBlock([u8; 128]);

impl ArgsBlock {
    /// The number of bytes in a block.
    pub const BYTES: usize = 128;

    pub fn new(bytes: &[u8]) -> Self {
        let mut block = [0; Self::BYTES];
        block[..bytes.len()].copy_from_slice(bytes);
        Self(block)
    }
}

type Routine = Coroutine<(), (), (), FiberStack>;
pub(super) type FiberYielder = Yielder<(), ()>;

/// Stacks that no fiber uses now, for new fibers.
#[derive(Default)]
pub(super) struct Stacks(Vec<FiberStack>);

/// The stacks of simulators that have ended, for later simulators. The first touch of the pages of new stacks takes
/// longer than most kernels.
static SPARE: Mutex<Vec<FiberStack>> = Mutex::new(Vec::new());
/// The most spare stacks. Each stack occupies some 10 KiB of memory.
const MAX_SPARE: usize = 1 << 14;

impl Stacks {
    fn take(&mut self) -> FiberStack {
        let spare = || SPARE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        self.0.pop().or_else(spare).unwrap_or_else(FiberStack::new)
    }
}

impl Drop for Stacks {
    fn drop(&mut self) {
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MAX_SPARE.saturating_sub(spare.len());
        self.0.truncate(room);
        spare.append(&mut self.0);
    }
}

/// The execution of one thread.
pub(super) struct Fiber(Routine);

/// The reason why a fiber returned to the scheduler.
#[derive(PartialEq, Eq)]
pub(super) enum ResumeResult {
    /// The fiber has suspended itself.
    Waits,
    /// The fiber has ended.
    Ended,
    /// The fiber has overflowed its stack, so memory of this process may be corrupt.
    Overran,
}

impl Fiber {
    /// Creates a fiber for a thread of `image` with the parameter `args`. The fiber calls `started` first, with the
    /// means to suspend itself.
    pub fn new(
        stacks: &mut Stacks,
        image: Arc<Image>,
        args: Arc<[ArgsBlock]>,
        started: fn(*const FiberYielder),
    ) -> Self {
        let stack = stacks.take();
        Self(Coroutine::with_stack(stack, move |yielder, ()| {
            started(yielder);
            image.run(args.as_ptr().cast());
        }))
    }

    /// Runs the fiber until it suspends itself or ends.
    pub fn resume(&mut self) -> ResumeResult {
        match self.0.resume(()) {
            CoroutineResult::Yield(()) => ResumeResult::Waits,
            CoroutineResult::Return(()) => ResumeResult::Ended,
        }
    }

    /// Ends the fiber at its current instruction, and keeps its stack for another fiber.
    pub fn end(mut self, stacks: &mut Stacks) -> ResumeResult {
        if !self.0.done() {
            // SAFETY: the stack holds frames of the kernel and frames of this crate that wait. No frame owns
            // anything.
            unsafe { self.0.force_reset() };
        }
        let stack = self.0.into_stack();
        if !stack.is_whole() {
            return ResumeResult::Overran;
        }
        stacks.0.push(stack);
        ResumeResult::Ended
    }
}
