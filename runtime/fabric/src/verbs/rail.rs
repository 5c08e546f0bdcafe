//! [`Rail`]: an open NIC of an endpoint with its port, its completion queue, its receives and its scratch memory.

use super::completion_queue::CompletionQueue;
use super::connect_info::{QueuePairInfo, RailInfo, RemoteAddress};
use super::device::{Device, Port};
use super::options::Options;
use super::queue_pair::{Capability, QueueDepth};
use super::receives::SharedReceiveQueue;
use super::registration::{Access, Registration};
use crate::error::FabricError;
use crate::transport::{MemoryKind, MemoryRange};
use ibverbs_sys::ibv_sge;
use rustc_hash::FxHashMap;
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SCRATCH_BYTES: usize = 64;

/// The index of a lane among all lanes of a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaneId(pub(super) u32);

/// The sender of a write, as reported by a completion at a queue pair that serves all peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sender {
    /// The number of the address handle of the sender's NIC.
    pub(super) address_handle: u16,
    /// The number of the sender's queue pair on its NIC.
    pub(super) queue_pair: u32,
}

/// A NIC and the objects that an endpoint created on it.
pub(super) struct Rail {
    pub(super) device: Arc<Device>,
    pub(super) port: Port,
    pub(super) queue: Arc<CompletionQueue>,
    pub(super) depth: QueueDepth,
    /// The receives of all queue pairs, unless each queue pair has its own.
    pub(super) receives: Option<Arc<SharedReceiveQueue>>,
    /// The lane of each queue pair number. Completions name the queue pair.
    pub(super) lanes: FxHashMap<u32, LaneId>,
    /// The peer of each sender, if queue pairs serve all peers.
    pub(super) senders: FxHashMap<Sender, u16>,
    /// The time since which the port has been down.
    pub(super) down_since: Option<Instant>,
    pub(super) service_level: u8,
    pub(super) traffic_class: u8,
    pub(super) partition_key: u16,
    /// The time for which requests to a peer that does not answer are repeated.
    pub(super) peer_timeout: Duration,
    pub(super) write_bytes: u32,
    /// The registration of scratch memory, which serves receives and writes of 0 bytes. The registration is dropped before the
    /// memory.
    scratch: Registration,
    scratch_memory: Box<UnsafeCell<[u8; SCRATCH_BYTES]>>,
}

impl Rail {
    /// Creates the queues and the scratch memory of a device. The completion queue has `completions` entries.
    pub(super) fn new(
        (device, port): (Arc<Device>, Port),
        options: &Options,
        (able, depth): (&Capability, QueueDepth),
        completions: u32,
        receives: Option<Arc<SharedReceiveQueue>>,
    ) -> Result<Self, String> {
        let scratch_memory = Box::new(UnsafeCell::new([0; SCRATCH_BYTES]));
        // SAFETY: the box stays in place until the registration is gone, and only NICs read or write its content.
        let memory = unsafe {
            MemoryRange::new(
                scratch_memory.get() as u64,
                SCRATCH_BYTES as u64,
                MemoryKind::Host,
            )
        };
        Ok(Self {
            queue: Arc::new(CompletionQueue::new(&device, completions)?),
            scratch: Registration::new(&device, &memory, Access::default())?,
            scratch_memory,
            depth,
            receives,
            lanes: FxHashMap::default(),
            senders: FxHashMap::default(),
            down_since: None,
            service_level: options.service_level,
            traffic_class: options.traffic_class,
            partition_key: options.partition_key,
            peer_timeout: options.peer_timeout,
            write_bytes: able.write_bytes,
            port,
            device,
        })
    }

    /// Returns an error if the port has been down for `limit`.
    ///
    /// Other rails cannot take over writes that are in flight on this port. Such a write may have been delivered although its
    /// acknowledgement is missing. Later calls may then already reuse the source and the target of the write, because the
    /// arrival has told them that the put has completed. If the write was posted again, it would carry new bytes of the source,
    /// or it would overwrite new bytes of the target. The reorder window drops the second arrival but cannot undo the
    /// overwriting. Only the receiver knows which writes have arrived, and this endpoint does not know which writes the peer
    /// has in flight to this port. New writes do use other rails.
    pub(super) fn ensure_up(&self, now: Instant, limit: Duration) -> Result<(), FabricError> {
        let Some(since) = self.down_since.filter(|since| now - *since >= limit) else {
            return Ok(());
        };
        Err(FabricError::Nic {
            reason: format!(
                "{}: port {} has been down for {} ms; check the cable, the switch and `ip link`",
                self.device.name,
                self.port.number,
                (now - since).as_millis()
            ),
        })
    }

    /// Returns the connection info of the rail with the given queue pairs.
    pub(super) fn info(&self, queue_pairs: Vec<QueuePairInfo>) -> RailInfo {
        RailInfo {
            link: self.port.link as u8,
            mtu: self.port.mtu,
            lid: self.port.lid,
            gid: self.port.gid,
            scratch: self.scratch(),
            queue_pairs,
        }
    }

    /// Returns the target for the peers' writes of 0 bytes.
    pub(super) fn scratch(&self) -> RemoteAddress {
        RemoteAddress {
            address: self.scratch_memory.get() as u64,
            key: self.scratch.remote_key(),
        }
    }

    /// Returns the scratch memory as a scatter/gather element.
    pub(super) fn scratch_sge(&self) -> ibv_sge {
        let (addr, lkey) = (self.scratch_memory.get() as u64, self.scratch.local_key());
        ibv_sge {
            addr,
            length: SCRATCH_BYTES as u32,
            lkey,
        }
    }
}
