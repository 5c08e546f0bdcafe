//! The access of functions that kernels call to the machine, and the suspension of the running thread's fiber.
//!
//! These functions run on the stack of a fiber. No function holds a reference to the machine while the fiber is
//! suspended.

use crate::world::fiber::FiberYielder;
use crate::world::machine::Machine;
use crate::world::processor_fault::ProcessorFault;
use crate::world::state::thread::ThreadState;
use std::cell::Cell;

thread_local! {
    /// The machine whose fiber runs on this thread. It is null while the machine itself runs.
    static MACHINE: Cell<*mut Machine> = const { Cell::new(std::ptr::null_mut()) };
}

/// Sets the machine that fibers of this thread call. Null means that no fiber runs.
pub(crate) fn enter(machine: *mut Machine) {
    MACHINE.set(machine);
}

/// Records how the running fiber suspends itself.
pub(crate) fn started(yielder: *const FiberYielder) {
    with(|machine| machine.thread().yielder = yielder);
}

/// Returns whether this thread runs code of a kernel now, that is a fiber outside of the functions of this module.
pub(crate) fn in_kernel() -> bool {
    !MACHINE.get().is_null()
}

/// Runs `f` on the machine.
#[inline]
pub(super) fn with<R>(f: impl FnOnce(&mut Machine) -> R) -> R {
    // A fault in the simulator's own code must not be reported as a fault of the kernel.
    let machine = MACHINE.replace(std::ptr::null_mut());
    // SAFETY: `enter` sets the pointer before any fiber runs, and the machine outlives its fibers. Nothing else uses
    // the machine while a fiber runs: the scheduler is suspended on the same thread, and fibers suspend only in `wait`.
    let result = f(unsafe { &mut *machine });
    MACHINE.set(machine);
    result
}

/// Reports that the processor refused the instruction at `pc` of the running fiber, and fails the kernel. The fiber
/// never continues.
pub(crate) extern "C" fn faulted(pc: u64, fault: ProcessorFault) -> ! {
    with(|machine| {
        let (kind, text) = fault.describe();
        machine.report_at(pc, kind, text.into());
        machine.fail(text.into());
    });
    loop {
        stop_if_failed();
    }
}

/// Suspends the running fiber until the scheduler resumes it.
pub(super) fn wait() {
    let frame = 0u8;
    let yielder = with(|machine| {
        let thread = machine.thread();
        thread.frame = &raw const frame;
        thread.yielder
    });
    // SAFETY: the yielder lives as long as its fiber, which is the running one.
    unsafe { (*yielder).suspend(()) };
}

/// Suspends the running fiber until `f` returns true.
pub(super) fn until(mut f: impl FnMut(&mut Machine) -> bool) {
    while !with(&mut f) {
        wait();
    }
}

/// Runs `f`, by which a thread arrives at a point of convergence, and suspends the fiber if `f` returns false. The last
/// thread that arrives does the work of all threads, so `f` is not repeated.
pub(super) fn converge(f: impl FnOnce(&mut Machine) -> bool) {
    if !with(f) {
        wait();
    }
}

/// Lets other threads run first with a probability of 20 %. Called where the order of threads matters.
#[inline]
pub(super) fn give_way() {
    let yields = with(|machine| {
        let yields = machine.random.chance(20);
        if yields {
            machine.block(ThreadState::Converging, 0);
            let current = machine.current;
            machine.wake(current);
        }
        yields
    });
    if yields {
        wait();
    }
}

/// Suspends the running fiber for good if its kernel has failed, as a GPU would end it.
#[inline]
pub(super) fn stop_if_failed() {
    let failed = with(|machine| {
        let launch = machine.ctas[machine.threads[machine.current].cta].launch;
        machine.launches[launch]
            .as_ref()
            .is_none_or(|launch| launch.failed.is_some())
    });
    if failed {
        loop {
            with(|machine| machine.block(ThreadState::Converging, 0));
            wait();
        }
    }
}
