//! Tensor-core products of a warpgroup (`wgmma`).

use super::context::{stop_if_failed, until, with};
use crate::world::machine::Machine;
use crate::world::state::mma::{Element, OperandA};

pub(super) extern "C" fn mma_fence(_pc: u64) {
    with(Machine::mma_fence);
}

pub(super) extern "C" fn mma(
    d: *mut f32,
    n: u32,
    a: u64,
    b: u64,
    element: Element,
    b_mn_major: u32,
    accumulate: u32,
    pc: u64,
) {
    let factors = (OperandA::Shared(a), b, element);
    // SAFETY: the C++ header passes the n / 2 accumulators of the thread and keeps them until it has waited.
    with(|machine| unsafe { machine.mma(d, n, factors, (b_mn_major != 0, accumulate != 0), pc) });
}

pub(super) extern "C" fn mma_registers(
    d: *mut f32,
    n: u32,
    a: *const u32,
    b: u64,
    element: Element,
    b_mn_major: u32,
    accumulate: u32,
    pc: u64,
) {
    let factors = (OperandA::Registers(a), b, element);
    // SAFETY: as in `mma`, also for the four registers of A.
    with(|machine| unsafe { machine.mma(d, n, factors, (b_mn_major != 0, accumulate != 0), pc) });
}

pub(super) extern "C" fn mma_commit(pc: u64) {
    with(|machine| machine.mma_commit(pc));
}

pub(super) extern "C" fn mma_wait(pending: u32, pc: u64) {
    until(|machine| machine.mma_wait(pending, pc));
    stop_if_failed();
}
