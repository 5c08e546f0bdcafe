//! The simulated hosts of this process: the claim of a host by a job, and the host of each GPU and handle.

use super::Finding;
use super::engine;
use super::host::{Host, HostOptions, HostPhase};
use super::launch_count::LaunchCount;
use super::result::{Code, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

/// The largest number of simulated hosts of a process.
pub const HOSTS: u32 = 8;
/// The largest number of GPUs of a simulated host.
pub const DEVICES_PER_HOST: u32 = 8;

/// The bits of a handle from this one on hold the number of its host.
const HOST_SHIFT: u32 = 40;
/// The unit of handles. Handles look like pointers, and differ from the values with a special meaning (0, 1, 2).
const HANDLE_STEP: u64 = 16;

static SLOTS: Mutex<[Option<Arc<Host>>; HOSTS as usize]> =
    Mutex::new([const { None }; HOSTS as usize]);

/// The reason why a simulated host cannot be claimed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// All simulated hosts are in use.
    #[error(
        "all {HOSTS} simulated hosts of this process are in use; drop a job's communicators, slices and contexts first"
    )]
    NoneFree,
    /// The number of GPUs is out of range.
    #[error("{0} simulated GPUs were requested, but a simulated host has 1 to {DEVICES_PER_HOST}")]
    Devices(u32),
    /// The engine's thread cannot be started.
    #[error("the simulator's thread cannot be started")]
    Thread(#[source] std::io::Error),
    /// The engine has ended at its start.
    #[error("the simulator failed to start; its message is in the program's output")]
    Engine,
}

/// A simulated host that its owner has claimed. It becomes free when this value and all contexts of its GPUs are
/// dropped.
pub struct SimulatedHost(Arc<Host>);

impl SimulatedHost {
    /// Claims a host with new GPUs. cudarc can use them after [`activate`](super::activate) has returned.
    ///
    /// # Errors
    /// Returns an error if all hosts are in use, if the number of GPUs is out of range, or if the engine cannot be
    /// started.
    pub fn claim(options: HostOptions) -> std::result::Result<Self, ClaimError> {
        if !(1..=DEVICES_PER_HOST).contains(&options.world.devices) {
            return Err(ClaimError::Devices(options.world.devices));
        }
        let mut slots = slots();
        let index = slots.iter().position(Option::is_none);
        let index = index.ok_or(ClaimError::NoneFree)?;
        let host = Arc::new(Host::new(index as u32, options));
        let (ready, is_ready) = mpsc::channel();
        let of_engine = host.clone();
        std::thread::Builder::new()
            .name(format!("mkernel-simulator-{index}"))
            .spawn(move || engine::run(&of_engine, &ready))
            .map_err(ClaimError::Thread)?;
        is_ready.recv().map_err(|_| ClaimError::Engine)?;
        slots[index] = Some(host.clone());
        Ok(Self(host))
    }

    /// Returns whether a thread of the program waits for work of its GPUs, or has queried work that has not ended.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.0.lock().waits.values().any(|wait| !wait.is_over())
    }

    #[cfg(test)]
    pub(super) fn inner(&self) -> &Host {
        &self.0
    }

    /// Returns the driver's ordinal of the host's first GPU. The other GPUs have the following ordinals.
    #[must_use]
    pub fn first_ordinal(&self) -> usize {
        (self.0.index * DEVICES_PER_HOST) as usize
    }

    /// Adds a check whether a part of the program is busy with commands that kernels have written to pinned memory.
    /// While it is busy, simulated time does not jump, and kernels that wait for it are not a deadlock. The check is
    /// removed when the returned guard is dropped.
    ///
    /// `is_busy` is called while the host is locked, so it must not call the driver.
    #[must_use]
    pub fn add_busy_check(&self, is_busy: impl Fn() -> bool + Send + 'static) -> BusyGuard {
        let id = new_handle(&self.0);
        self.0.lock().busy_checks.insert(id, Box::new(is_busy));
        BusyGuard {
            host: self.0.clone(),
            id,
        }
    }

    /// Sets the check whether running kernels wait for a launch that the program has not made. It is called when no kernel
    /// can continue. If it returns true, this is not a deadlock, and the kernels end by their deadlines.
    ///
    /// `lacks_launch` is called while the host is locked, so it must not call the driver.
    pub fn set_launch_check(&self, lacks_launch: impl Fn() -> bool + Send + 'static) {
        self.0.lock().launch_check = Some(Box::new(lacks_launch));
    }

    /// Returns the count of the launches of a function, if a module of this host has it.
    #[must_use]
    pub fn launches_of(&self, function: u64) -> Option<Arc<LaunchCount>> {
        let state = self.0.lock();
        Some(state.functions.get(&function)?.launches.clone())
    }

    /// Declares that the program has given up, so that the host expects no more work. Simulated time then jumps
    /// whenever no work can continue. Until then, simulated time keeps pace with real time while a GPU has no waiting thread.
    pub fn give_up(&self) {
        self.0.lock().is_given_up = true;
    }

    /// Makes memory a block whose bytes have names by offset, for findings. In memory with blocks, kernels may only access
    /// blocks.
    pub fn name_memory(
        &self,
        address: u64,
        bytes: u64,
        names: impl Fn(u64) -> Option<String> + Send + 'static,
    ) {
        // A host that has failed reports no more findings, so the error does not matter.
        let _ = self.0.run_on_engine(move |world, _| {
            world.name_memory(address, bytes, names);
            Ok(())
        });
    }

    /// Returns the findings so far: races, deadlocks, and kernels that have failed.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        self.0.lock().findings.clone()
    }

    /// Removes and returns the findings so far.
    pub fn take_findings(&self) -> Vec<Finding> {
        std::mem::take(&mut self.0.lock().findings)
    }

    /// Returns the timeline of all roles, as JSON for Perfetto. The timeline has no events unless
    /// [`Options::timeline`](crate::world::Options::timeline) is set.
    #[must_use]
    pub fn timeline(&self) -> String {
        self.0
            .run_on_engine(|world, _| Ok(world.timeline()))
            .unwrap_or_default()
    }
}

impl std::fmt::Debug for SimulatedHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimulatedHost({})", self.0.index)
    }
}

impl Drop for SimulatedHost {
    fn drop(&mut self) {
        self.0.lock().is_claimed = false;
        close_unused(&self.0);
    }
}

/// Removes a check of [`SimulatedHost::add_busy_check`] when it is dropped.
pub struct BusyGuard {
    host: Arc<Host>,
    id: u64,
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        let is_busy = self.host.lock().busy_checks.remove(&self.id);
        // The host is not locked here, since dropping the check may call the driver.
        drop(is_busy);
    }
}

fn slots() -> MutexGuard<'static, [Option<Arc<Host>>; HOSTS as usize]> {
    // The array is valid after every statement, so a panic of another thread does no harm.
    SLOTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Closes a host if it is not claimed and no context of its GPUs is retained.
pub(super) fn close_unused(host: &Arc<Host>) {
    let mut slots = slots();
    let state = host.lock();
    let in_use = state.is_claimed || state.devices.iter().any(|gpu| gpu.retains > 0);
    drop(state);
    let slot = &mut slots[host.index as usize];
    let is_here = slot.as_ref().is_some_and(|other| Arc::ptr_eq(other, host));
    if is_here && !in_use {
        *slot = None;
        host.end(HostPhase::Closing);
    }
}

/// Returns the host and the device with an ordinal. The host is `None` if it has not been claimed.
pub(super) fn device(ordinal: i32) -> Result<(Option<Arc<Host>>, u32)> {
    let ordinal = u32::try_from(ordinal).map_err(|_| Code::CUDA_ERROR_INVALID_DEVICE)?;
    let (host, device) = (ordinal / DEVICES_PER_HOST, ordinal % DEVICES_PER_HOST);
    let slots = slots();
    let slot = slots
        .get(host as usize)
        .ok_or(Code::CUDA_ERROR_INVALID_DEVICE)?;
    Ok((slot.clone(), device))
}

/// Returns the host that a handle belongs to.
pub(super) fn host_of(handle: u64) -> Result<Arc<Host>> {
    let number = (handle >> HOST_SHIFT).wrapping_sub(1);
    let slots = slots();
    let slot = usize::try_from(number).ok().and_then(|n| slots.get(n));
    slot.and_then(Clone::clone)
        .ok_or(Code::CUDA_ERROR_INVALID_HANDLE)
}

/// Returns a handle that was never used before.
pub(super) fn new_handle(host: &Host) -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    ((u64::from(host.index) + 1) << HOST_SHIFT) | (number * HANDLE_STEP)
}
