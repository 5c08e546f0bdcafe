//! A NIC of an endpoint: device, port, completion queue.

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

/// A queue pair's place: its peer's number, and its own among that peer's lanes.
pub(super) type LaneId = (u16, u16);

/// A NIC with what an endpoint made on it.
pub(super) struct Rail {
    pub(super) device: Arc<Device>,
    pub(super) port: Port,
    pub(super) queue: Arc<CompletionQueue>,
    /// Which lane a completion is of, by the queue pair's number.
    pub(super) lanes: FxHashMap<u32, LaneId>,
    /// Since when its port has been down.
    pub(super) down_since: Option<Instant>,
    pub(super) service_level: u8,
    pub(super) traffic_class: u8,
    /// How long a silent peer is tried.
    pub(super) peer_timeout: Duration,
    pub(super) write_bytes: u32,
    /// Registered memory of no meaning: for receives, and for writes of 0 bytes. Dropped before what it registers.
    scratch: Registration,
    scratch_memory: Box<UnsafeCell<[u8; SCRATCH_BYTES]>>,
}

impl Rail {
    /// Opens the NICs that the options name, or the first that fits.
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
        let mut refused = vec![format!("no RDMA device is fit for {}", queue_pair_type)];
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
                    "{what} = {wanted}, but its queue pairs take at most {able}"
                ));
            }
        }
        let device = Arc::new(device);
        let entries = u32::from(options.peers)
            * u32::from(options.queue_pairs)
            * (wanted.writes + wanted.receives);
        let scratch_memory = Box::new(UnsafeCell::new([0; SCRATCH_BYTES]));
        // SAFETY: the box stays where it is until the registration is gone; nobody reads or writes it but NICs.
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

    /// An error if the port has been down for `limit`.
    ///
    /// Other rails cannot take over what is on its way here. Such a write may have been delivered without its
    /// acknowledgement; then its source and its target may be in use again by later calls, which know from the arrival that
    /// the put is over. Posted again it would bring new bytes of the source, or overwrite new bytes of the target, and the
    /// window of sequence numbers, which drops the second arrival, does not undo that. Only the receiver knows what has
    /// arrived, and what the peer has on its way to this port is unknown here. New writes do take other rails.
    pub(super) fn ensure_up(&self, now: Instant, limit: Duration) -> Result<(), FabricError> {
        let Some(since) = self.down_since.filter(|since| now - *since >= limit) else {
            return Ok(());
        };
        Err(FabricError::Nic {
            reason: format!(
                "{}: port {} has been down for {} ms: look at the cable, the switch and `ip link`",
                self.device.name,
                self.port.number,
                (now - since).as_millis()
            ),
        })
    }

    /// Where peers write 0 bytes.
    pub(super) fn scratch(&self) -> RemoteAddress {
        RemoteAddress {
            address: self.scratch_memory.get() as u64,
            key: self.scratch.remote_key(),
        }
    }

    /// The scratch memory as a part of work requests.
    pub(super) fn scratch_sge(&self) -> ibv_sge {
        let (addr, lkey) = (self.scratch_memory.get() as u64, self.scratch.local_key());
        ibv_sge {
            addr,
            length: SCRATCH_BYTES as u32,
            lkey,
        }
    }
}

/// How many of each a queue pair of these options has.
impl Options {
    pub(super) fn depth(&self) -> QueueDepth {
        QueueDepth {
            writes: self.writes,
            receives: self.receives,
        }
    }
}
