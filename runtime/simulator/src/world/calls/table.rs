//! The table of all functions that kernels call, and the binding of a kernel to the table.
//!
//! The C++ side is `mk::sim::Calls` in templates/simulator/mk/calls.cuh. Both declare the functions in the same order.

use super::copies::*;
use super::memory::*;
use super::mma::*;
use super::threads::*;
use crate::world::image::Image;
use crate::world::state::mma::Element;
use crate::world::state::thread::ThreadInfo;
use std::ffi::c_void;
use std::sync::Arc;

/// The version of the table. It must be equal to `mk::sim::Calls::kVersion`.
const VERSION: u64 = 12;

/// The table of functions that kernels call. The layout is equal to `mk::sim::Calls`.
#[repr(C)]
struct Calls {
    thread: extern "C" fn() -> *const ThreadInfo,
    trap: extern "C" fn(u64),
    wrong_index: extern "C" fn(u32, u32, u64),
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
    grid_wait: extern "C" fn(u64),
    grid_allow: extern "C" fn(u64),
    registers: extern "C" fn(u32, u32, u64),
    waiting: extern "C" fn(u32, u32, u32, u32, u32, u64, u64),
    aborted: extern "C" fn(u64),
    load: extern "C" fn(*const c_void, *mut c_void, u32, u32, u32, u64),
    store: extern "C" fn(*mut c_void, *const c_void, u32, u32, u32, u64),
    rmw: extern "C" fn(*mut c_void, u64, u32, u32, u32, u32, u64) -> u64,
    fence: extern "C" fn(u32, u32, u64),
    load_shared: extern "C" fn(u32, *mut c_void, u32, u64),
    store_shared: extern "C" fn(u32, *const c_void, u32, u64),
    barrier_init: extern "C" fn(u32, u32, u64),
    barrier_expect_bytes: extern "C" fn(u32, u32, u64),
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
    mma: extern "C" fn(*mut f32, u32, u64, u64, Element, u32, u32, u64),
    mma_registers: extern "C" fn(*mut f32, u32, *const u32, u64, Element, u32, u32, u64),
    mma_commit: extern "C" fn(u64),
    mma_wait: extern "C" fn(u32, u64),
    store_matrix: extern "C" fn(u32, *const u32, u32, u64),
    load_matrix: extern "C" fn(u32, *mut u32, u32, u32, u64),
}

/// The functions of this crate.
static CALLS: Calls = Calls {
    thread,
    trap,
    wrong_index,
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
    grid_wait,
    grid_allow,
    registers,
    waiting,
    aborted,
    load,
    store,
    rmw,
    fence,
    load_shared,
    store_shared,
    barrier_init,
    barrier_expect_bytes,
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

impl Image {
    /// Loads the shared object of one kernel, and binds it to the functions of this crate.
    ///
    /// # Errors
    /// Returns the reason if the bytes are not a kernel for this version of the simulator.
    pub fn load(bytes: &[u8]) -> Result<Arc<Self>, String> {
        let calls: *const Calls = &raw const CALLS;
        // SAFETY: `CALLS` lives forever, and is the table of this version.
        unsafe { Self::load_bound_to(bytes, calls.cast(), VERSION) }
    }
}
