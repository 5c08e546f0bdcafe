//! What kernels call: the functions of `mk::sim::Calls` (templates/simulator/mk/calls.cuh), in the same order.
//!
//! They run on a fiber's stack. None of them holds a reference to the machine while the fiber waits.

use super::collective::Together;
use super::fiber::FiberYielder;
use super::machine::{Awaited, Machine, State, ThreadInfo};
use super::mma::Left;
use super::shadow::Way;
use super::signals;
use super::sync::{Ordering, Scope};
use std::cell::Cell;
use std::ffi::c_void;

/// `mk::sim::Calls::kVersion`.
pub(super) const VERSION: u64 = 6;

thread_local! {
    /// The machine whose fibers this thread runs.
    static MACHINE: Cell<*mut Machine> = const { Cell::new(std::ptr::null_mut()) };
}

/// Makes `machine` the one that fibers of this thread call.
pub(super) fn enter(machine: *mut Machine) {
    MACHINE.set(machine);
}

/// Tells the machine how the running fiber waits.
pub(super) fn started(yielder: *const FiberYielder) {
    with(|machine| machine.thread().yielder = yielder);
}

/// Whether this thread runs the text of a kernel now: a fiber's, and outside of the engine.
pub(super) fn in_kernel() -> bool {
    !MACHINE.get().is_null()
}

fn with<R>(f: impl FnOnce(&mut Machine) -> R) -> R {
    // The engine's own faults are not the kernel's.
    let machine = MACHINE.replace(std::ptr::null_mut());
    // SAFETY: set by `enter` before any fiber runs; the machine outlives its fibers, and nobody else uses it while a
    // fiber runs: the scheduler is below on the same thread, and fibers give way only in `wait`.
    let result = f(unsafe { &mut *machine });
    MACHINE.set(machine);
    result
}

/// The running fiber did at `place` what its processor refuses. It never goes on.
pub(super) extern "C" fn faulted(place: u64, why: signals::Refused) -> ! {
    with(|machine| {
        let (kind, text) = why.tell();
        machine.find_at(place, kind, text.into());
        machine.fail(text.into());
    });
    loop {
        stop_if_failed();
    }
}

/// Gives way until the machine lets this fiber run again.
fn wait() {
    let yielder = with(|machine| machine.thread().yielder);
    // SAFETY: the yielder lives as long as its fiber, which is this one.
    unsafe { (*yielder).suspend(()) };
}

/// Waits until `f` says that it need not.
fn until(mut f: impl FnMut(&mut Machine) -> bool) {
    while !with(&mut f) {
        wait();
    }
}

/// Comes to something that is done together once, and waits for it.
fn together(f: impl FnOnce(&mut Machine) -> bool) {
    if !with(f) {
        wait();
    }
}

/// Now and then lets others go first, where order matters.
fn give_way() {
    let yields = with(|machine| {
        let yields = machine.random.chance(20);
        if yields {
            machine.block(State::Meeting, 0);
            let current = machine.current;
            machine.wake(current);
        }
        yields
    });
    if yields {
        wait();
    }
}

fn order(order: u32) -> (Way, Ordering) {
    let ordering = |acquire, release| Ordering { acquire, release };
    match order {
        0 => (Way::Weak, ordering(false, false)),
        1 => (Way::Constant, ordering(false, false)),
        2 => (Way::AtomicGpu, ordering(false, false)),
        3 => (Way::AtomicGpu, ordering(true, false)),
        4 => (Way::AtomicGpu, ordering(false, true)),
        5 => (Way::AtomicGpu, ordering(true, true)),
        _ => (Way::Early, ordering(false, false)),
    }
}

fn scope_of(scope: u32) -> Scope {
    [Scope::Cta, Scope::Gpu, Scope::Sys][scope.min(2) as usize]
}

fn ordered(how: u32, scope: u32) -> (Way, Ordering, Scope) {
    let scope = scope_of(scope);
    let (way, ordering) = order(how);
    let way = if way == Way::AtomicGpu && scope == Scope::Sys {
        Way::AtomicSys
    } else {
        way
    };
    (way, ordering, scope)
}

/// Ends the running fiber if its kernel has failed: a GPU would not go on either.
fn stop_if_failed() {
    let failed = with(|machine| {
        let launch = machine.ctas[machine.threads[machine.current].cta].launch;
        machine.launches[launch]
            .as_ref()
            .is_none_or(|launch| launch.failed.is_some())
    });
    if failed {
        loop {
            with(|machine| machine.block(State::Meeting, 0));
            wait();
        }
    }
}

extern "C" fn thread() -> *const ThreadInfo {
    with(|machine| &raw const machine.thread().info)
}

extern "C" fn trap(place: u64) {
    with(|machine| {
        machine.find_at(place, "trap", "the kernel gave itself up".into());
        machine.fail("trap".into());
    });
    stop_if_failed();
}

extern "C" fn sleep(ns: u32, place: u64) {
    let blocked = with(|machine| {
        machine.now_ns += u64::from(ns) / 16;
        machine.sleep(place)
    });
    if blocked {
        wait();
    }
}

extern "C" fn time_ns() -> u64 {
    with(|machine| machine.now_ns)
}

extern "C" fn elect(place: u64) -> u32 {
    together(|machine| machine.meet_warp(Together::Elect, place));
    with(|machine| machine.thread().result)
}

extern "C" fn shuffle(value: u32, lane: u32, place: u64) -> u32 {
    together(|machine| {
        machine.thread().exchange[0] = value;
        machine.meet_warp(Together::Shuffle { lane }, place)
    });
    with(|machine| machine.thread().result)
}

extern "C" fn shuffle_xor(value: u32, mask: u32, place: u64) -> u32 {
    together(|machine| {
        machine.thread().exchange[0] = value;
        machine.meet_warp(Together::ShuffleXor { mask }, place)
    });
    with(|machine| machine.thread().result)
}

extern "C" fn sync_warp(place: u64) {
    together(|machine| machine.meet_warp(Together::Sync, place));
}

extern "C" fn sync_threads(barrier: u32, threads: u32, place: u64) {
    together(|machine| machine.meet_cta(barrier, threads, place));
}

extern "C" fn sync_threads_or(value: u32, threads: u32, place: u64) -> u32 {
    together(|machine| {
        machine.thread().exchange[0] = value;
        machine.meet_cta(0, threads, place)
    });
    with(|machine| machine.thread().result)
}

extern "C" fn arrive_threads(barrier: u32, threads: u32, place: u64) {
    give_way();
    with(|machine| machine.arrive_cta(barrier, threads, place));
    stop_if_failed();
}

extern "C" fn sync_cluster(place: u64) {
    together(|machine| machine.meet_cluster(place));
}

/// Registers are not simulated: kernels get as many as they want.
extern "C" fn registers(_count: u32, _acquire: u32, _place: u64) {}

extern "C" fn waiting(
    role: u32,
    wait: u32,
    peer: u32,
    index: u32,
    wanted: u32,
    seen: u64,
    place: u64,
) {
    with(|machine| {
        machine.waiting(Awaited {
            role,
            wait,
            peer,
            index,
            wanted,
            // Kernels pass more than 32 bits where the word that they poll next says it.
            seen: u32::try_from(seen).ok(),
            polled_before: 0,
            place,
            since_ns: 0,
        })
    });
}

extern "C" fn load(
    from: *const c_void,
    to: *mut c_void,
    bytes: u32,
    how: u32,
    scope: u32,
    place: u64,
) {
    let (way, ordering, scope) = ordered(how, scope);
    if way != Way::Weak && way != Way::Constant {
        give_way();
    }
    // SAFETY: `to` is a value of the caller's of that size.
    let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), bytes as usize) };
    with(|machine| machine.load(from as u64, to, way, ordering, scope, place));
    stop_if_failed();
}

extern "C" fn store(
    to: *mut c_void,
    from: *const c_void,
    bytes: u32,
    how: u32,
    scope: u32,
    place: u64,
) {
    let (way, ordering, scope) = ordered(how, scope);
    if way != Way::Weak {
        give_way();
    }
    // SAFETY: `from` is a value of the caller's of that size.
    let from = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes as usize) };
    with(|machine| machine.store(to as u64, from, way, ordering, scope, place));
    stop_if_failed();
}

extern "C" fn rmw(
    at: *mut c_void,
    value: u64,
    bytes: u32,
    what: u32,
    how: u32,
    scope: u32,
    place: u64,
) -> u64 {
    give_way();
    let change = |old: u64| {
        if what == 0 {
            old.wrapping_add(value)
        } else {
            value
        }
    };
    let old = with(|machine| {
        machine.rmw(
            at as u64,
            bytes as usize,
            change,
            ordered(how, scope),
            place,
        )
    });
    stop_if_failed();
    old
}

extern "C" fn fence(fence: u32, scope: u32, _place: u64) {
    with(|machine| match fence {
        0 => machine.fence_thread(scope_of(scope)),
        1 => machine.fence_proxy(true),
        2 => machine.fence_proxy(false),
        _ => machine.fence_barriers(),
    });
}

extern "C" fn load_shared(from: u32, to: *mut c_void, bytes: u32, place: u64) {
    // SAFETY: `to` is a value of the caller's of that size.
    let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), bytes as usize) };
    with(|machine| machine.load_shared(from, to, place));
    stop_if_failed();
}

extern "C" fn store_shared(to: u32, from: *const c_void, bytes: u32, place: u64) {
    // SAFETY: `from` is a value of the caller's of that size.
    let from = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes as usize) };
    with(|machine| machine.store_shared(to, from, place));
    stop_if_failed();
}

extern "C" fn barrier_init(barrier: u32, arrivals: u32, place: u64) {
    with(|machine| machine.barrier_init(barrier, arrivals, place));
    stop_if_failed();
}

extern "C" fn barrier_arrive(barrier: u32, bytes: u32, scope: u32, place: u64) {
    give_way();
    with(|machine| machine.barrier_arrive(barrier, bytes, scope_of(scope), place));
    stop_if_failed();
}

extern "C" fn barrier_try_wait(barrier: u32, parity: u32, scope: u32, place: u64) -> u32 {
    loop {
        match with(|machine| machine.barrier_poll(barrier, parity, scope_of(scope), place)) {
            Some(over) => return u32::from(over),
            None => wait(),
        }
    }
}

extern "C" fn tensor_load(
    to: u32,
    map: *const u8,
    barrier: u32,
    at: *const u32,
    dims: u32,
    ctas: u32,
    place: u64,
) {
    give_way();
    // SAFETY: the twin passes as many coordinates as it says, and a tensor map of the kernel's arguments.
    unsafe {
        let at = std::slice::from_raw_parts(at, dims as usize);
        with(|machine| machine.tensor_load(to, map, barrier, at, ctas, place));
    }
    stop_if_failed();
}

extern "C" fn tensor_store(map: *const u8, from: u32, at: *const u32, dims: u32, place: u64) {
    give_way();
    // SAFETY: as in `tensor_load`.
    unsafe {
        let at = std::slice::from_raw_parts(at, dims as usize);
        with(|machine| machine.tensor_store(map, from, at, place));
    }
    stop_if_failed();
}

extern "C" fn bulk_load(to: u32, from: *const c_void, bytes: u32, barrier: u32, place: u64) {
    with(|machine| machine.bulk_load(to, from as u64, bytes, barrier, place));
    stop_if_failed();
}

extern "C" fn bulk_store(to: *mut c_void, from: u32, bytes: u32, place: u64) {
    with(|machine| machine.bulk_store(to as u64, from, bytes, place));
    stop_if_failed();
}

extern "C" fn bulk_commit(_place: u64) {
    with(Machine::bulk_commit);
}

extern "C" fn bulk_wait(pending: u32, read_only: u32, place: u64) {
    until(|machine| machine.bulk_wait(pending, read_only != 0, place));
}

extern "C" fn copy_async(to: u32, from: *const c_void, bytes: u32, place: u64) {
    with(|machine| machine.copy_async(to, from as u64, bytes, place));
    stop_if_failed();
}

extern "C" fn copy_commit(_place: u64) {
    with(Machine::copy_commit);
}

extern "C" fn copy_wait(pending: u32, _place: u64) {
    give_way();
    with(|machine| machine.copy_wait(pending));
    stop_if_failed();
}

extern "C" fn mma_fence(_place: u64) {
    with(Machine::mma_fence);
}

extern "C" fn mma(
    d: *mut f32,
    n: u32,
    a: u64,
    b: u64,
    b_mn_major: u32,
    accumulate: u32,
    place: u64,
) {
    let factors = (Left::Shared(a), b);
    // SAFETY: the twin passes the n / 2 accumulators of the thread, which it keeps until it has waited.
    with(|machine| unsafe {
        machine.mma(d, n, factors, (b_mn_major != 0, accumulate != 0), place)
    });
}

extern "C" fn mma_registers(
    d: *mut f32,
    n: u32,
    a: *const u32,
    b: u64,
    b_mn_major: u32,
    accumulate: u32,
    place: u64,
) {
    let factors = (Left::Registers(a), b);
    // SAFETY: as in `mma`; the same holds for the four registers of A.
    with(|machine| unsafe {
        machine.mma(d, n, factors, (b_mn_major != 0, accumulate != 0), place)
    });
}

extern "C" fn mma_commit(place: u64) {
    with(|machine| machine.mma_commit(place));
}

extern "C" fn mma_wait(pending: u32, place: u64) {
    until(|machine| machine.mma_wait(pending, place));
    stop_if_failed();
}

extern "C" fn store_matrix(row: u32, matrices: *const u32, count: u32, place: u64) {
    // SAFETY: the twin passes as many registers as it says.
    let matrices = unsafe { std::slice::from_raw_parts(matrices, count as usize) };
    together(|machine| {
        let exchange = &mut machine.thread().exchange;
        exchange[0] = row;
        exchange[1..=matrices.len()].copy_from_slice(matrices);
        machine.meet_warp(Together::StoreMatrix { count }, place)
    });
    stop_if_failed();
}

extern "C" fn load_matrix(row: u32, matrices: *mut u32, count: u32, transpose: u32, place: u64) {
    together(|machine| {
        machine.thread().exchange[0] = row;
        machine.meet_warp(
            Together::LoadMatrix {
                count,
                transpose: transpose != 0,
            },
            place,
        )
    });
    // SAFETY: as in `store_matrix`.
    let matrices = unsafe { std::slice::from_raw_parts_mut(matrices, count as usize) };
    with(|machine| matrices.copy_from_slice(&machine.thread().exchange[1..=matrices.len()]));
    stop_if_failed();
}

/// `mk::sim::Calls`.
#[repr(C)]
pub(super) struct Calls {
    thread: extern "C" fn() -> *const ThreadInfo,
    trap: extern "C" fn(u64),
    sleep: extern "C" fn(u32, u64),
    time_ns: extern "C" fn() -> u64,
    elect: extern "C" fn(u64) -> u32,
    shuffle: extern "C" fn(u32, u32, u64) -> u32,
    shuffle_xor: extern "C" fn(u32, u32, u64) -> u32,
    sync_warp: extern "C" fn(u64),
    sync_threads: extern "C" fn(u32, u32, u64),
    sync_threads_or: extern "C" fn(u32, u32, u64) -> u32,
    arrive_threads: extern "C" fn(u32, u32, u64),
    sync_cluster: extern "C" fn(u64),
    registers: extern "C" fn(u32, u32, u64),
    waiting: extern "C" fn(u32, u32, u32, u32, u32, u64, u64),
    load: extern "C" fn(*const c_void, *mut c_void, u32, u32, u32, u64),
    store: extern "C" fn(*mut c_void, *const c_void, u32, u32, u32, u64),
    rmw: extern "C" fn(*mut c_void, u64, u32, u32, u32, u32, u64) -> u64,
    fence: extern "C" fn(u32, u32, u64),
    load_shared: extern "C" fn(u32, *mut c_void, u32, u64),
    store_shared: extern "C" fn(u32, *const c_void, u32, u64),
    barrier_init: extern "C" fn(u32, u32, u64),
    barrier_arrive: extern "C" fn(u32, u32, u32, u64),
    barrier_try_wait: extern "C" fn(u32, u32, u32, u64) -> u32,
    tensor_load: extern "C" fn(u32, *const u8, u32, *const u32, u32, u32, u64),
    tensor_store: extern "C" fn(*const u8, u32, *const u32, u32, u64),
    bulk_load: extern "C" fn(u32, *const c_void, u32, u32, u64),
    bulk_store: extern "C" fn(*mut c_void, u32, u32, u64),
    bulk_commit: extern "C" fn(u64),
    bulk_wait: extern "C" fn(u32, u32, u64),
    copy_async: extern "C" fn(u32, *const c_void, u32, u64),
    copy_commit: extern "C" fn(u64),
    copy_wait: extern "C" fn(u32, u64),
    mma_fence: extern "C" fn(u64),
    mma: extern "C" fn(*mut f32, u32, u64, u64, u32, u32, u64),
    mma_registers: extern "C" fn(*mut f32, u32, *const u32, u64, u32, u32, u64),
    mma_commit: extern "C" fn(u64),
    mma_wait: extern "C" fn(u32, u64),
    store_matrix: extern "C" fn(u32, *const u32, u32, u64),
    load_matrix: extern "C" fn(u32, *mut u32, u32, u32, u64),
}

pub(super) static CALLS: Calls = Calls {
    thread,
    trap,
    sleep,
    time_ns,
    elect,
    shuffle,
    shuffle_xor,
    sync_warp,
    sync_threads,
    sync_threads_or,
    arrive_threads,
    sync_cluster,
    registers,
    waiting,
    load,
    store,
    rmw,
    fence,
    load_shared,
    store_shared,
    barrier_init,
    barrier_arrive,
    barrier_try_wait,
    tensor_load,
    tensor_store,
    bulk_load,
    bulk_store,
    bulk_commit,
    bulk_wait,
    copy_async,
    copy_commit,
    copy_wait,
    mma_fence,
    mma,
    mma_registers,
    mma_commit,
    mma_wait,
    store_matrix,
    load_matrix,
};
