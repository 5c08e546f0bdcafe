//! Functions about the running thread, and operations that several threads perform together.

use super::context::{converge, give_way, stop_if_failed, until, wait, with};
use crate::world::collective::WarpOperation;
use crate::world::machine::Machine;
use crate::world::state::thread::{ThreadInfo, WaitSite};

pub(super) extern "C" fn thread() -> *const ThreadInfo {
    with(|machine| &raw const machine.thread().info)
}

pub(super) extern "C" fn trap(pc: u64) {
    with(|machine| {
        machine.report_at(pc, "trap", "the kernel executed a trap".into());
        machine.fail("trap".into());
    });
    stop_if_failed();
}

pub(super) extern "C" fn wrong_index(index: u32, extent: u32, pc: u64) {
    with(|machine| {
        // After an abort, kernels run to their ends on the arbitrary contents of their buffers.
        if machine.is_aborted {
            return;
        }
        let text = format!("index {index} of a dimension of {extent} elements");
        machine.report_at(pc, "index", text);
    });
}

pub(super) extern "C" fn sleep(ns: u32, pc: u64) {
    let blocked = with(|machine| {
        machine.now_ns += u64::from(ns) / 16;
        machine.sleep(pc)
    });
    if blocked {
        wait();
    }
}

pub(super) extern "C" fn time_ns() -> u64 {
    with(|machine| machine.now_ns)
}

pub(super) extern "C" fn elect(pc: u64) -> u32 {
    converge(|machine| machine.converge_warp(WarpOperation::Elect, pc));
    with(|machine| machine.thread().result)
}

pub(super) extern "C" fn shuffle(value: u32, lane: u32, pc: u64) -> u32 {
    converge(|machine| {
        machine.thread().exchange[..2].copy_from_slice(&[value, lane]);
        machine.converge_warp(WarpOperation::Shuffle, pc)
    });
    with(|machine| machine.thread().result)
}

pub(super) extern "C" fn shuffle_xor(value: u32, mask: u32, pc: u64) -> u32 {
    converge(|machine| {
        machine.thread().exchange[0] = value;
        machine.converge_warp(WarpOperation::ShuffleXor { mask }, pc)
    });
    with(|machine| machine.thread().result)
}

pub(super) extern "C" fn sync_warp(pc: u64) {
    converge(|machine| machine.converge_warp(WarpOperation::Sync, pc));
}

pub(super) extern "C" fn sync_threads(barrier: u32, threads: u32, pc: u64) {
    converge(|machine| machine.sync_cta(barrier, threads, pc));
}

pub(super) extern "C" fn sync_threads_or(value: u32, threads: u32, pc: u64) -> u32 {
    converge(|machine| {
        machine.thread().exchange[0] = value;
        machine.sync_cta(0, threads, pc)
    });
    with(|machine| machine.thread().result)
}

pub(super) extern "C" fn arrive_threads(barrier: u32, threads: u32, pc: u64) {
    give_way();
    with(|machine| machine.arrive_cta(barrier, threads, pc));
    stop_if_failed();
}

pub(super) extern "C" fn sync_cluster(pc: u64) {
    converge(|machine| machine.sync_cluster(pc));
}

pub(super) extern "C" fn grid_wait(pc: u64) {
    until(|machine| machine.wait_for_grid_before(pc));
    stop_if_failed();
}

pub(super) extern "C" fn grid_allow(_pc: u64) {
    give_way();
    with(Machine::allow_grid_behind);
}

/// Does nothing. Registers are not simulated, so kernels have all registers that they need.
pub(super) extern "C" fn registers(_count: u32, _acquire: u32, _pc: u64) {}

pub(super) extern "C" fn aborted(_pc: u64) {
    with(|machine| machine.is_aborted = true);
}

pub(super) extern "C" fn waiting(
    role: u32,
    wait: u32,
    peer: u32,
    index: u32,
    wanted: u32,
    seen: u64,
    pc: u64,
) {
    with(|machine| {
        machine.waiting(WaitSite {
            role,
            wait,
            peer,
            index,
            wanted,
            // Kernels pass a value of more than 32 bits if the word that they poll next has the value.
            seen: u32::try_from(seen).ok(),
            polled_before: 0,
            pc,
            since_ns: 0,
        })
    });
}

pub(super) extern "C" fn store_matrix(row: u32, matrices: *const u32, count: u32, pc: u64) {
    // SAFETY: the C++ header passes `count` registers.
    let matrices = unsafe { std::slice::from_raw_parts(matrices, count as usize) };
    converge(|machine| {
        let exchange = &mut machine.thread().exchange;
        exchange[0] = row;
        exchange[1..=matrices.len()].copy_from_slice(matrices);
        machine.converge_warp(WarpOperation::StoreMatrix { count }, pc)
    });
    stop_if_failed();
}

pub(super) extern "C" fn load_matrix(
    row: u32,
    matrices: *mut u32,
    count: u32,
    transpose: u32,
    pc: u64,
) {
    converge(|machine| {
        machine.thread().exchange[0] = row;
        machine.converge_warp(
            WarpOperation::LoadMatrix {
                count,
                transpose: transpose != 0,
            },
            pc,
        )
    });
    // SAFETY: as in `store_matrix`.
    let matrices = unsafe { std::slice::from_raw_parts_mut(matrices, count as usize) };
    with(|machine| matrices.copy_from_slice(&machine.thread().exchange[1..=matrices.len()]));
    stop_if_failed();
}
