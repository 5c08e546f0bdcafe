//! Loads, stores, atomics and fences.

use super::context::{give_way, stop_if_failed, with};
use crate::world::stamp::AccessKind;
use crate::world::state::sync_words::{MemoryOrder, Scope};
use std::ffi::c_void;

/// Decodes the order of an access, as the C++ headers number it.
fn order(order: u32) -> (AccessKind, MemoryOrder) {
    let memory_order = |acquire, release| MemoryOrder { acquire, release };
    match order {
        0 => (AccessKind::Weak, memory_order(false, false)),
        1 => (AccessKind::AtomicGpu, memory_order(false, false)),
        2 => (AccessKind::AtomicGpu, memory_order(true, false)),
        3 => (AccessKind::AtomicGpu, memory_order(false, true)),
        4 => (AccessKind::AtomicGpu, memory_order(true, true)),
        5 => (AccessKind::Early, memory_order(false, false)),
        _ => (AccessKind::Sent, memory_order(false, false)),
    }
}

/// Decodes a scope, as the C++ headers number it.
pub(super) fn scope_of(scope: u32) -> Scope {
    [Scope::Cta, Scope::Gpu, Scope::Sys][scope.min(2) as usize]
}

/// Decodes the order and the scope of an access.
fn ordered(how: u32, scope: u32) -> (AccessKind, MemoryOrder, Scope) {
    let scope = scope_of(scope);
    let (kind, memory_order) = order(how);
    let kind = if kind == AccessKind::AtomicGpu && scope == Scope::Sys {
        AccessKind::AtomicSys
    } else {
        kind
    };
    (kind, memory_order, scope)
}

pub(super) extern "C" fn load(
    from: *const c_void,
    to: *mut c_void,
    bytes: u32,
    how: u32,
    scope: u32,
    pc: u64,
) {
    let (kind, memory_order, scope) = ordered(how, scope);
    if kind != AccessKind::Weak {
        give_way();
    }
    // SAFETY: `to` points to a value of the caller of that size.
    let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), bytes as usize) };
    with(|machine| machine.load(from as u64, to, kind, memory_order, scope, pc));
    stop_if_failed();
}

pub(super) extern "C" fn store(
    to: *mut c_void,
    from: *const c_void,
    bytes: u32,
    how: u32,
    scope: u32,
    pc: u64,
) {
    let (kind, memory_order, scope) = ordered(how, scope);
    if kind != AccessKind::Weak {
        give_way();
    }
    // SAFETY: `from` points to a value of the caller of that size.
    let from = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes as usize) };
    with(|machine| machine.store(to as u64, from, kind, memory_order, scope, pc));
    stop_if_failed();
}

pub(super) extern "C" fn rmw(
    at: *mut c_void,
    value: u64,
    bytes: u32,
    what: u32,
    how: u32,
    scope: u32,
    pc: u64,
) -> u64 {
    give_way();
    let change = |old: u64| {
        if what == 0 {
            old.wrapping_add(value)
        } else {
            value
        }
    };
    let old =
        with(|machine| machine.rmw(at as u64, bytes as usize, change, ordered(how, scope), pc));
    stop_if_failed();
    old
}

pub(super) extern "C" fn fence(fence: u32, scope: u32, _pc: u64) {
    with(|machine| match fence {
        0 => machine.fence_thread(scope_of(scope)),
        1 => machine.fence_proxy(true),
        2 => machine.fence_proxy(false),
        _ => machine.fence_barriers(),
    });
}

pub(super) extern "C" fn load_shared(from: u32, to: *mut c_void, bytes: u32, pc: u64) {
    // SAFETY: `to` points to a value of the caller of that size.
    let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), bytes as usize) };
    with(|machine| machine.load_shared(from, to, pc));
    stop_if_failed();
}

pub(super) extern "C" fn store_shared(to: u32, from: *const c_void, bytes: u32, pc: u64) {
    // SAFETY: `from` points to a value of the caller of that size.
    let from = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes as usize) };
    with(|machine| machine.store_shared(to, from, pc));
    stop_if_failed();
}
