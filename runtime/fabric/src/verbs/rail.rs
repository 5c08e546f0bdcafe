//! [`Rail`]: an open NIC of an endpoint with its port, its completion queue and its scratch memory.

use super::completion_queue::CompletionQueue;
use super::connect_info::RemoteAddress;
use super::device::{Device, Port};
use super::library;
use super::options::Options;
use super::queue_pair::{Capability, QueueDepth};
use super::registration::Registration;
use crate::error::FabricError;
use crate::transport::{MemoryKind, MemoryRange};
use ibverbs_sys::ibv_sge;
use rustc_hash::FxHashMap;
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SCRATCH_BYTES: usize = 64;

/// Returns what a type of queue pair can do on a port of a device, or what the device lacks.
pub(super) type CapabilityQuery = fn(&Device, &Port) -> Result<Capability, String>;

/// The id of a lane: the index of its peer, and its own index among the lanes of that peer.
pub(super) type LaneId = (u16, u16);

/// A NIC and what an endpoint created on it.
pub(super) struct Rail {
    pub(super) device: Arc<Device>,
    pub(super) port: Port,
    pub(super) queue: Arc<CompletionQueue>,
    /// The lane of each queue pair number. Completions name the queue pair.
    pub(super) lanes: FxHashMap<u32, LaneId>,
    /// The time since which the port has been down.
    pub(super) down_since: Option<Instant>,
    pub(super) service_level: u8,
    pub(super) traffic_class: u8,
    /// How long requests to a peer that does not answer are repeated.
    pub(super) peer_timeout: Duration,
    pub(super) write_bytes: u32,
    /// The registration of scratch memory, which serves receives and writes of 0 bytes. It is dropped before the
    /// memory.
    scratch: Registration,
    scratch_memory: Box<UnsafeCell<[u8; SCRATCH_BYTES]>>,
}

impl Rail {
    /// Opens the NICs that the options name, or the first that is suitable.
    pub(super) fn open_all(
        options: &Options,
        queue_pair_type: &str,
        capability: CapabilityQuery,
    ) -> Result<Vec<Self>, FabricError> {
        let nic = |reason| FabricError::Nic { reason };
        let verbs = library::verbs()?;
        let open = |name: &String| {
            Device::open(verbs, name)
                .and_then(|device| Self::new(device, options, capability))
                .map_err(|error| format!("{name}: {error}"))
        };
        if !options.devices.is_empty() {
            return options
                .devices
                .iter()
                .map(open)
                .collect::<Result<_, _>>()
                .map_err(nic);
        }
        let mut refused = vec![format!("no RDMA device is suitable for {queue_pair_type}")];
        for name in Device::names(verbs).map_err(nic)? {
            match open(&name) {
                Ok(rail) => return Ok(vec![rail]),
                Err(error) => refused.push(error),
            }
        }
        Err(nic(refused.join("; ")))
    }

    fn new(device: Device, options: &Options, capability: CapabilityQuery) -> Result<Self, String> {
        let port = device.port(options.port, options.gid_index)?;
        let able = capability(&device, &port)?;
        let wanted = options.depth();
        for (what, wanted, able) in [
            ("writes", wanted.writes, able.depth.writes),
            ("receives", wanted.receives, able.depth.receives),
        ] {
            if wanted > able {
                return Err(format!(
                    "{what} is {wanted}, but its queue pairs support at most {able}; set fewer"
                ));
            }
        }
        let device = Arc::new(device);
        let entries = u32::from(options.peers)
            * u32::from(options.queue_pairs)
            * (wanted.writes + wanted.receives);
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
            queue: Arc::new(CompletionQueue::new(&device, entries)?),
            scratch: Registration::new(&device, &memory)?,
            scratch_memory,
            lanes: FxHashMap::default(),
            down_since: None,
            service_level: options.service_level,
            traffic_class: options.traffic_class,
            peer_timeout: options.peer_timeout,
            write_bytes: able.write_bytes,
            port,
            device,
        })
    }

    /// Returns an error if the port has been down for `limit`.
    ///
    /// Other rails cannot take over writes that are in flight on this port. Such a write may have been delivered
    /// although its acknowledgement is missing. Then later calls may already use its source and its target again,
    /// because they know from the arrival that the put has completed. If the write was posted again, it would carry new
    /// bytes of the source, or it would overwrite new bytes of the target. The reorder window drops the second
    /// arrival but cannot undo that. Only the receiver knows what has arrived, and this endpoint does not know what
    /// the peer has in flight to this port. New writes do use other rails.
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

/// The depth of the queue pairs that these options request.
impl Options {
    pub(super) fn depth(&self) -> QueueDepth {
        QueueDepth {
            writes: self.writes,
            receives: self.receives,
        }
    }
}
