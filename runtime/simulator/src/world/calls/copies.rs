//! Asynchronous copies (TMA and `cp.async`), and the mbarriers that count their bytes.

use super::context::{give_way, stop_if_failed, until, wait, with};
use super::memory::scope_of;
use crate::world::machine::Machine;
use std::ffi::c_void;

pub(super) extern "C" fn barrier_init(barrier: u32, arrivals: u32, pc: u64) {
    with(|machine| machine.barrier_init(barrier, arrivals, pc));
    stop_if_failed();
}

pub(super) extern "C" fn barrier_expect_bytes(barrier: u32, bytes: u32, pc: u64) {
    give_way();
    with(|machine| machine.barrier_expect_bytes(barrier, bytes, pc));
    stop_if_failed();
}

pub(super) extern "C" fn barrier_arrive(barrier: u32, bytes: u32, scope: u32, pc: u64) {
    give_way();
    with(|machine| machine.barrier_arrive(barrier, bytes, scope_of(scope), pc));
    stop_if_failed();
}

pub(super) extern "C" fn barrier_try_wait(barrier: u32, parity: u32, scope: u32, pc: u64) -> u32 {
    loop {
        match with(|machine| machine.barrier_poll(barrier, parity, scope_of(scope), pc)) {
            Some(over) => return u32::from(over),
            None => wait(),
        }
    }
}

pub(super) extern "C" fn tensor_load(
    to: u32,
    map: *const u8,
    barrier: u32,
    at: *const u32,
    dims: u32,
    ctas: u32,
    pc: u64,
) {
    give_way();
    // SAFETY: the C++ header passes `dims` coordinates and a tensor map among the kernel's arguments.
    unsafe {
        let at = std::slice::from_raw_parts(at, dims as usize);
        with(|machine| machine.tensor_load(to, map, barrier, at, ctas, pc));
    }
    stop_if_failed();
}

pub(super) extern "C" fn tensor_store(
    map: *const u8,
    from: u32,
    at: *const u32,
    dims: u32,
    pc: u64,
) {
    give_way();
    // SAFETY: as in `tensor_load`.
    unsafe {
        let at = std::slice::from_raw_parts(at, dims as usize);
        with(|machine| machine.tensor_store(map, from, at, pc));
    }
    stop_if_failed();
}

pub(super) extern "C" fn bulk_load(
    to: u32,
    from: *const c_void,
    bytes: u32,
    barrier: u32,
    pc: u64,
) {
    with(|machine| machine.bulk_load(to, from as u64, bytes, barrier, pc));
    stop_if_failed();
}

pub(super) extern "C" fn bulk_store(to: *mut c_void, from: u32, bytes: u32, pc: u64) {
    with(|machine| machine.bulk_store(to as u64, from, bytes, pc));
    stop_if_failed();
}

pub(super) extern "C" fn bulk_commit(_pc: u64) {
    with(Machine::bulk_commit);
}

pub(super) extern "C" fn bulk_wait(pending: u32, read_only: u32, pc: u64) {
    until(|machine| machine.bulk_wait(pending, read_only != 0, pc));
}

pub(super) extern "C" fn copy_async(to: u32, from: *const c_void, bytes: u32, pc: u64) {
    with(|machine| machine.copy_async(to, from as u64, bytes, pc));
    stop_if_failed();
}

pub(super) extern "C" fn copy_commit(_pc: u64) {
    with(Machine::copy_commit);
}

pub(super) extern "C" fn copy_wait(pending: u32, _pc: u64) {
    give_way();
    with(|machine| machine.copy_wait(pending));
    stop_if_failed();
}
