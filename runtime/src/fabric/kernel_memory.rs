//! [`KernelMemory`]: the memory that kernels share with the proxy, besides regions.

use super::arrivals::PinnedArrivals;
use super::heartbeat::{Heartbeat, HeartbeatArrivals};
use super::ring::DeviceRing;
use crate::error::Error;
use crate::shared::Shared;
use crate::simulation::BusyGuard;
use crate::symmetric::OwnMemory;
use mkernel_fabric::{Arrivals, HostRing};
use mkernel_spec::fabric::{KernelEndpoint, NetworkState, PUT_CHANNELS, RingState};
use std::sync::Arc;

/// The command ring, the arrival words, and the state of both in device memory.
pub(super) struct KernelMemory {
    ring: DeviceRing,
    arrivals: PinnedArrivals,
    /// with] The [`NetworkState`] with its counts of puts, followed by the [`RingState`].
    state: OwnMemory,
    /// The number of counts of puts.
    counts: usize,
}

impl KernelMemory {
    pub fn allocate(shared: &Shared, peers: &[u32]) -> Result<Self, Error> {
        let counts = peers.len() * usize::from(PUT_CHANNELS);
        let bytes = ring_state_offset(counts) + size_of::<RingState>();
        Ok(Self {
            ring: DeviceRing::allocate(&shared.ctx)?,
            arrivals: PinnedArrivals::allocate(shared, peers)?,
            state: OwnMemory::allocate(
                &shared.ctx,
                &shared.stream,
                bytes as u64,
                shared.gpu_timeout(),
            )?,
            counts,
        })
    }

    /// Returns the addresses for kernels, without the place of the workspace.
    pub fn for_kernels(&self) -> KernelEndpoint {
        let ring_state = self.state.address() + ring_state_offset(self.counts) as u64;
        KernelEndpoint {
            ring: self.ring.on_device(ring_state),
            arrivals: self.arrivals.device_address(),
            network: self.state.address(),
            ..KernelEndpoint::default()
        }
    }

    /// Returns the ring for the proxy.
    pub fn ring(&self) -> Arc<HostRing> {
        self.ring.ring.clone()
    }

    pub fn arrivals_for_proxy(&self, heartbeat: Option<Arc<Heartbeat>>) -> Box<dyn Arrivals> {
        let arrivals = self.arrivals.clone();
        match heartbeat {
            Some(heartbeat) => Box::new(HeartbeatArrivals {
                arrivals,
                heartbeat,
            }),
            None => Box::new(arrivals),
        }
    }

    /// Multiplies the counts of calls and of puts, for tests of counters that wrap around. No call may be under way.
    #[cfg(feature = "testing")]
    pub fn pretend(&self, times: u32) -> Result<(), Error> {
        let edit = |bytes: &mut [u8]| {
            for word in bytes.chunks_exact_mut(4) {
                if let Ok(count) = <[u8; 4]>::try_from(&*word) {
                    let count = u32::from_ne_bytes(count).wrapping_mul(times);
                    word.copy_from_slice(&count.to_ne_bytes());
                }
            }
        };
        // SAFETY: the caller guarantees that nothing else accesses the state, which lives as long as this value.
        unsafe {
            crate::driver::edit_memory(self.state.address(), ring_state_offset(self.counts), edit)?
        };
        self.arrivals.pretend(times);
        Ok(())
    }

    /// Pauses the clock of simulated GPUs while the fabric may still change their memory: puts are under way, or other
    /// nodes have been active lately.
    pub fn pause_clock(
        &self,
        shared: &Shared,
        heartbeat: Option<Arc<Heartbeat>>,
    ) -> Option<BusyGuard> {
        shared.simulated.as_ref().map(|simulated| {
            let (ring, arrivals, limit) = (self.ring(), self.arrivals.clone(), shared.timeout());
            let may_receive = move || {
                heartbeat
                    .as_ref()
                    .is_some_and(|heartbeat| heartbeat.is_within(limit))
            };
            // A proxy that has failed has made kernels abort.
            simulated.pause_clock_while(move || {
                !arrivals.are_over() && (!ring.is_drained() || may_receive())
            })
        })
    }
}

/// Returns the offset of the [`RingState`], which has a cache line of its own.
const fn ring_state_offset(counts: usize) -> usize {
    (size_of::<NetworkState>() + counts * size_of::<u32>())
        .next_multiple_of(align_of::<NetworkState>())
}
