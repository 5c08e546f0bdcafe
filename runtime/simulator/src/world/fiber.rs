//! Fibers: one per thread of a simulated GPU.

use super::image::Image;
use super::launch::Line;
use corosensei::stack::{Stack, StackPointer};
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::alloc::{Layout, alloc, dealloc};
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// Of a stack. A thread of a kernel needs its accumulators and little else; pages that are not touched cost nothing.
const STACK_BYTES: usize = 64 << 10;

/// At the far end of every stack; gone if the stack ran over.
const CANARY: u64 = 0x6d6b_5f73_7461_636b;

/// Memory of a stack.
pub(super) struct FiberStack(NonNull<u8>);

impl FiberStack {
    const LAYOUT: Layout = match Layout::from_size_align(STACK_BYTES, 4096) {
        Ok(layout) => layout,
        Err(_) => panic!("a power of two"),
    };

    fn new() -> Self {
        // SAFETY: the layout is not empty; what it holds first is never read.
        let memory = NonNull::new(unsafe { alloc(Self::LAYOUT) });
        let stack = Self(memory.unwrap_or_else(|| std::alloc::handle_alloc_error(Self::LAYOUT)));
        // SAFETY: the memory is ours, and aligned to a page.
        unsafe { stack.0.cast::<u64>().write(CANARY) };
        stack
    }

    fn is_whole(&self) -> bool {
        // SAFETY: as above.
        unsafe { self.0.cast::<u64>().read() == CANARY }
    }
}

impl Drop for FiberStack {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.0.as_ptr(), Self::LAYOUT) };
    }
}

// SAFETY: `base` is the end of the memory, `limit` its start above the canary; both are aligned, and the memory lives as
// long as the stack.
unsafe impl Stack for FiberStack {
    fn base(&self) -> StackPointer {
        NonZeroUsize::new(self.0.as_ptr() as usize + STACK_BYTES).expect("not null")
    }

    fn limit(&self) -> StackPointer {
        NonZeroUsize::new(self.0.as_ptr() as usize + 64).expect("not null")
    }
}

type Routine = Coroutine<(), (), (), FiberStack>;
pub(super) type FiberYielder = Yielder<(), ()>;

// SAFETY: the memory belongs to the stack alone.
unsafe impl Send for FiberStack {}

/// Stacks that no fiber uses now.
#[derive(Default)]
pub(super) struct Stacks(Vec<FiberStack>);

/// Stacks of simulators that have ended, for the next ones: the pages of a new stack cost more than most kernels run.
static SPARE: Mutex<Vec<FiberStack>> = Mutex::new(Vec::new());
/// The most of them, of which each has some ten KiB of memory.
const MAX_SPARE: usize = 1 << 14;

impl Stacks {
    fn take(&mut self) -> FiberStack {
        if self.0.is_empty() {
            let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
            let left = spare.len().saturating_sub(TAKEN_TOGETHER);
            self.0.extend(spare.drain(left..));
        }
        self.0.pop().unwrap_or_else(FiberStack::new)
    }
}

/// Stacks that a simulator takes at a time: those of a CTA.
const TAKEN_TOGETHER: usize = 512;

impl Drop for Stacks {
    fn drop(&mut self) {
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MAX_SPARE.saturating_sub(spare.len());
        self.0.truncate(room);
        spare.append(&mut self.0);
    }
}

/// A thread's execution.
pub(super) struct Fiber(Routine);

/// How a fiber came back.
#[derive(PartialEq, Eq)]
pub(super) enum Returned {
    Waits,
    Ended,
    /// It used more stack than there is; nothing in this process can be trusted any more.
    Overran,
}

impl Fiber {
    /// A thread of `image`; `args` must stay until it ends, `started` gets the way back first.
    pub fn new(
        stacks: &mut Stacks,
        image: Arc<Image>,
        args: Arc<[Line]>,
        started: fn(*const FiberYielder),
    ) -> Self {
        let stack = stacks.take();
        Self(Coroutine::with_stack(stack, move |yielder, ()| {
            started(yielder);
            image.run(args.as_ptr().cast());
        }))
    }

    /// Lets it run until it waits or ends.
    pub fn resume(&mut self) -> Returned {
        match self.0.resume(()) {
            CoroutineResult::Yield(()) => Returned::Waits,
            CoroutineResult::Return(()) => Returned::Ended,
        }
    }

    /// Its end, wherever it is.
    pub fn end(mut self, stacks: &mut Stacks) -> Returned {
        if !self.0.done() {
            // SAFETY: what is on the stack, the kernel's frames and a few of ours that wait, owns nothing.
            unsafe { self.0.force_reset() };
        }
        let stack = self.0.into_stack();
        if !stack.is_whole() {
            return Returned::Overran;
        }
        stacks.0.push(stack);
        Returned::Ended
    }
}
