//! The simulated hosts of this process: claiming one, and finding the one that a GPU, context or handle belongs to.

use super::engine;
use super::host::{Host, Phase};
use super::{Code, Finding, Result};
use crate::world::Options;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

/// Simulated hosts that a process can have at once.
pub const HOSTS: u32 = 8;
/// GPUs of a simulated host.
pub const DEVICES_PER_HOST: u32 = 8;

/// Handles carry the number of their host, above their own.
const HOST_SHIFT: u32 = 40;
/// Handles look like pointers, and are none of the values with a meaning of their own (0, 1, 2).
const HANDLE_STEP: u64 = 16;

static SLOTS: Mutex<[Option<Arc<Host>>; HOSTS as usize]> =
    Mutex::new([const { None }; HOSTS as usize]);

/// What a simulated host is like.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// How its GPUs work.
    pub world: Options,
    /// Name of its GPUs.
    pub name: String,
    /// Streaming multiprocessors of a GPU.
    pub sm_count: u32,
    /// Shared memory that one CTA can have.
    pub smem_bytes: u32,
    /// L2 cache of a GPU.
    pub l2_bytes: u64,
}

/// Why there is no simulated host.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// All are taken.
    #[error(
        "all {HOSTS} simulated hosts of this process are in use; drop a job's communicators, slices and contexts first"
    )]
    NoneFree,
    /// The number of GPUs.
    #[error("{0} simulated GPUs were asked for; a simulated host has 1 to {DEVICES_PER_HOST}")]
    Devices(u32),
    /// The engine's thread.
    #[error("the simulator's thread cannot be started")]
    Thread(#[source] std::io::Error),
    /// The engine ended at once.
    #[error("the simulator failed to start; its message is in the program's output")]
    Engine,
}

/// A simulated host that its owner has for itself. It is free again when this and all contexts on it are gone.
pub struct SimulatedHost(Arc<Host>);

impl SimulatedHost {
    /// A host of new GPUs. cudarc sees them once [`activate`](super::activate) has returned.
    ///
    /// # Errors
    /// If all hosts are taken, or a thread cannot be started.
    pub fn claim(options: HostOptions) -> std::result::Result<Self, ClaimError> {
        if !(1..=DEVICES_PER_HOST).contains(&options.world.devices) {
            return Err(ClaimError::Devices(options.world.devices));
        }
        let mut slots = slots();
        let index = slots.iter().position(Option::is_none);
        let index = index.ok_or(ClaimError::NoneFree)?;
        let host = Arc::new(Host::new(index as u32, options));
        let (ready, is_ready) = mpsc::channel();
        let theirs = host.clone();
        std::thread::Builder::new()
            .name(format!("mkernel-simulator-{index}"))
            .spawn(move || engine::run(&theirs, &ready))
            .map_err(ClaimError::Thread)?;
        is_ready.recv().map_err(|_| ClaimError::Engine)?;
        slots[index] = Some(host.clone());
        Ok(Self(host))
    }

    /// Whether a thread of the program waits for work of its GPUs, or has asked for it lately.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.0.lock().waits.values().any(|wait| !wait.is_over())
    }

    #[cfg(test)]
    pub(super) fn inner(&self) -> &Host {
        &self.0
    }

    /// The driver's number of its first GPU; the others follow.
    #[must_use]
    pub fn first_ordinal(&self) -> usize {
        (self.0.index * DEVICES_PER_HOST) as usize
    }

    /// Makes the host ask whether a part of the program is busy with what kernels asked for in pinned memory. While it is,
    /// simulated time does not jump, and nobody who waits for it is taken for deadlocked.
    /// `is_busy` is called with the host locked: it must not call the driver, and ends with what is returned.
    #[must_use]
    pub fn watch(&self, is_busy: impl Fn() -> bool + Send + 'static) -> Watch {
        let id = new_handle(&self.0);
        self.0.lock().helpers.insert(id, Box::new(is_busy));
        Watch {
            host: self.0.clone(),
            id,
        }
    }

    /// The program gives up: threads that have not come yet are not expected any more. Simulated time, which else passes no
    /// faster than real time while a GPU has no waiting thread, then jumps whenever nothing can go on.
    pub fn give_up(&self) {
        self.0.lock().is_given_up = true;
    }

    /// Gives places of the allocation at `address` names by their offsets, for findings.
    pub fn name_memory(
        &self,
        address: u64,
        names: impl Fn(u64) -> Option<String> + Send + 'static,
    ) {
        // A host that has failed makes no more findings.
        let _ = self.0.ask(move |world, _| {
            world.name_memory(address, names);
            Ok(())
        });
    }

    /// What was found so far: races, deadlocks, kernels that failed.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        self.0.lock().findings.clone()
    }

    /// [`findings`](Self::findings), which are forgotten.
    pub fn take_findings(&self) -> Vec<Finding> {
        std::mem::take(&mut self.0.lock().findings)
    }

    /// What each role did when, as JSON for Perfetto; empty unless [`Options::timeline`] is set.
    #[must_use]
    pub fn timeline(&self) -> String {
        self.0
            .ask(|world, _| Ok(world.timeline()))
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

/// Lets a host ask, see [`SimulatedHost::watch`].
pub struct Watch {
    host: Arc<Host>,
    id: u64,
}

impl Drop for Watch {
    fn drop(&mut self) {
        let is_busy = self.host.lock().helpers.remove(&self.id);
        // Not while the host is locked: what goes with it may call the driver.
        drop(is_busy);
    }
}

fn slots() -> MutexGuard<'static, [Option<Arc<Host>>; HOSTS as usize]> {
    // What it guards is whole between any two statements.
    SLOTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends a host that nobody needs any more.
pub(super) fn close_unused(host: &Arc<Host>) {
    let mut slots = slots();
    let state = host.lock();
    let in_use = state.is_claimed || state.devices.iter().any(|gpu| gpu.retains > 0);
    drop(state);
    let slot = &mut slots[host.index as usize];
    let is_here = slot.as_ref().is_some_and(|other| Arc::ptr_eq(other, host));
    if is_here && !in_use {
        *slot = None;
        host.end(Phase::Closing);
    }
}

/// The host and the device of an ordinal.
pub(super) fn device(ordinal: i32) -> Result<(Option<Arc<Host>>, u32)> {
    let ordinal = u32::try_from(ordinal).map_err(|_| Code::CUDA_ERROR_INVALID_DEVICE)?;
    let (host, device) = (ordinal / DEVICES_PER_HOST, ordinal % DEVICES_PER_HOST);
    let slots = slots();
    let slot = slots
        .get(host as usize)
        .ok_or(Code::CUDA_ERROR_INVALID_DEVICE)?;
    Ok((slot.clone(), device))
}

/// The host that gave out a handle.
pub(super) fn host_of(handle: u64) -> Result<Arc<Host>> {
    let number = (handle >> HOST_SHIFT).wrapping_sub(1);
    let slots = slots();
    let slot = usize::try_from(number).ok().and_then(|n| slots.get(n));
    slot.and_then(Clone::clone)
        .ok_or(Code::CUDA_ERROR_INVALID_HANDLE)
}

/// A handle that was never given out before.
pub(super) fn new_handle(host: &Host) -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    ((u64::from(host.index) + 1) << HOST_SHIFT) | (number * HANDLE_STEP)
}
