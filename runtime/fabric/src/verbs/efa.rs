//! [`ScalableDatagram`]: SRD, the scalable reliable datagram of Amazon's EFA.
//!
//! SRD is reliable and unordered, and needs no connections: a queue pair serves all peers. A write names the address handle of
//! the peer's NIC, and the number and the key of one of the peer's queue pairs. An arrival names the address handle of the
//! sender's NIC and the number of the sender's queue pair. SRD supports extended work requests only.

use super::connect_info::{QueuePairInfo, RailInfo, RemoteAddress};
use super::device::{Device, Port};
use super::efadv::{
    AddressAttributes, CAN_RDMA_READ, CAN_RDMA_WRITE, CAN_RECEIVE_UNSOLICITED, DeviceAttributes,
    QueuePairAttributes, RECEIVE_UNSOLICITED, TYPE_SRD,
};
use super::errno::{failure, result};
use super::library::efadv;
use super::queue_pair::{Capability, QueueDepth, QueuePair, capabilities};
use super::queue_pair_type::{Purpose, QueuePairType, WorkRequest};
use super::rail::{Rail, Sender};
use ibverbs_sys::{
    IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_INIT_ATTR_PD,
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, ibv_ah, ibv_ah_attr, ibv_global_route, ibv_qp_attr,
    ibv_qp_attr_mask as mask, ibv_qp_ex, ibv_qp_init_attr_ex, ibv_qp_state, ibv_qp_type,
    ibv_send_flags, ibv_sge,
};
use std::io;
use std::sync::Arc;

/// Queue keys with the highest bit set are reserved for the kernel.
const USER_QUEUE_KEY: u32 = 0x7fff_ffff;

/// The number of receives to create a queue pair with if it never needs a receive.
const UNUSED_RECEIVES: u32 = 64;

/// An SRD queue pair for all peers.
pub(super) struct ScalableDatagram {
    pair: QueuePair,
    functions: Functions,
    /// Whether arrivals consume no receives.
    unsolicited: bool,
    /// The destination of writes to each peer, by peer.
    to: Vec<Option<Destination>>,
}

/// The functions of an extended queue pair that a request needs.
struct Functions {
    extended: *mut ibv_qp_ex,
    start: unsafe extern "C" fn(*mut ibv_qp_ex),
    /// The function that begins a write, for a queue pair for puts.
    write: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
    /// The function that begins a read, for a queue pair for flushes.
    read: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
    sge: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32),
    destination: unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_ah, u32, u32),
    complete: unsafe extern "C" fn(*mut ibv_qp_ex) -> i32,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for Functions {}

/// The queue pair of a peer, with an address handle.
struct Destination {
    device: Arc<Device>,
    handle: *mut ibv_ah,
    at: QueuePairInfo,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for Destination {}

impl Destination {
    fn new(rail: &Rail, to: &RailInfo, at: QueuePairInfo) -> Result<Self, String> {
        let mut address = ibv_ah_attr {
            is_global: 1,
            port_num: rail.port.number,
            grh: ibv_global_route {
                sgid_index: rail.port.gid_index,
                ..ibv_global_route::default()
            },
            ..ibv_ah_attr::default()
        };
        address.grh.dgid.raw = to.gid;
        // SAFETY: the protection domain lives as long as the device.
        let handle = unsafe { (rail.device.verbs.create_ah)(rail.device.pd, &raw mut address) };
        if handle.is_null() {
            return Err(format!("cannot create an address handle: {}", failure()));
        }
        Ok(Self {
            device: Arc::clone(&rail.device),
            handle,
            at,
        })
    }

    /// Returns the number by which the NIC names the address handle in completions. All address handles of a GID share one
    /// number.
    fn handle_number(&self) -> Result<u16, String> {
        let mut attributes = AddressAttributes::default();
        let efadv = efadv().map_err(|error| error.to_string())?;
        // SAFETY: the handle is alive, and the size is the size of the structure.
        result(unsafe {
            (efadv.query_ah)(
                self.handle,
                &raw mut attributes,
                size_of::<AddressAttributes>() as u32,
            )
        })
        .map_err(|error| format!("cannot query an address handle: {error}"))?;
        Ok(attributes.ahn)
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        // SAFETY: no work request uses the handle any more, because requests are copied when they are posted.
        unsafe { (self.device.verbs.destroy_ah)(self.handle) };
    }
}

/// Queries the EFA attributes of a device.
fn attributes(device: &Device) -> Result<DeviceAttributes, String> {
    let mut attributes = DeviceAttributes::default();
    let efadv = efadv().map_err(|error| error.to_string())?;
    // SAFETY: the context is open, and the size is the size of the structure.
    result(unsafe {
        (efadv.query_device)(
            device.context,
            &raw mut attributes,
            size_of::<DeviceAttributes>() as u32,
        )
    })
    .map_err(|error| format!("it is no EFA device: {error}"))?;
    Ok(attributes)
}

impl QueuePairType for ScalableDatagram {
    const NAME: &'static str = "efa";
    const SERVICE: u8 = 2;
    const IN_ORDER: bool = false;
    const SERVES_ALL_PEERS: bool = true;
    const MAX_QUEUE_PAIRS: u8 = 4;

    fn capability(device: &Device, _: &Port) -> Result<Capability, String> {
        let attributes = attributes(device)?;
        if attributes.device_caps & CAN_RDMA_WRITE == 0 {
            return Err("it cannot write to memory of peers; this requires an EFA device of generation 2 or later (EC2 p5, \
                        p5en, …), EFA driver 2.8 or newer, and libefa of rdma-core 48 or newer"
                .into());
        }
        Ok(Capability {
            // The longest message of the port is the limit of sends, not of RDMA writes.
            write_bytes: attributes.max_rdma_size,
            depth: QueueDepth {
                writes: attributes.max_sq_wr,
                receives: match attributes.device_caps & CAN_RECEIVE_UNSOLICITED {
                    0 => attributes.max_rq_wr,
                    _ => u32::MAX,
                },
            },
        })
    }

    fn new(rail: &Rail, nonce: u32, purpose: Purpose) -> Result<Self, String> {
        let device = &rail.device;
        let able = attributes(device)?.device_caps;
        if purpose == Purpose::Flush && able & CAN_RDMA_READ == 0 {
            return Err("it cannot read memory, so arrivals cannot wait for a flush; set the option flush to never".into());
        }
        let unsolicited = able & CAN_RECEIVE_UNSOLICITED != 0;
        let (writes, receives, requests) = match purpose {
            Purpose::Flush => (1, UNUSED_RECEIVES, IBV_QP_EX_WITH_RDMA_READ),
            Purpose::Put => (
                rail.depth.writes,
                if unsolicited {
                    UNUSED_RECEIVES
                } else {
                    rail.depth.receives
                },
                IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
            ),
        };
        let mut general = ibv_qp_init_attr_ex {
            send_cq: rail.queue.cq,
            recv_cq: rail.queue.cq,
            cap: capabilities(writes, receives, 0),
            qp_type: ibv_qp_type::IBV_QPT_DRIVER,
            comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            pd: device.pd,
            send_ops_flags: requests.into(),
            ..ibv_qp_init_attr_ex::default()
        };
        let mut own = QueuePairAttributes {
            driver_qp_type: TYPE_SRD,
            flags: if unsolicited { RECEIVE_UNSOLICITED } else { 0 },
            sl: rail.service_level,
            ..QueuePairAttributes::default()
        };
        let efadv = efadv().map_err(|error| error.to_string())?;
        // SAFETY: protection domain and completion queue live as long as the rail's device, and the size is the size of the
        // structure.
        let pair = unsafe {
            let size = size_of::<QueuePairAttributes>() as u32;
            let qp = (efadv.create_qp_ex)(device.context, &raw mut general, &raw mut own, size);
            QueuePair::created(&rail.queue, qp, writes)?
        };
        make_ready(&pair, rail, nonce)?;
        let functions =
            Functions::of(&pair).ok_or("its driver does not support extended work requests")?;
        let new = Self {
            pair,
            functions,
            unsolicited,
            to: Vec::new(),
        };
        if purpose == Purpose::Put {
            new.receive(rail, receives)
                .map_err(|error| format!("cannot post receives: {error}"))?;
        }
        Ok(new)
    }

    fn pair(&self) -> &QueuePair {
        &self.pair
    }

    fn nonce(random: u32) -> u32 {
        random & USER_QUEUE_KEY
    }

    fn connect(
        &mut self,
        peer: u16,
        rail: &Rail,
        to: &RailInfo,
        at: QueuePairInfo,
    ) -> Result<Option<Sender>, String> {
        let destination = Destination::new(rail, to, at)?;
        let sender = Sender {
            address_handle: destination.handle_number()?,
            queue_pair: at.number,
        };
        let peer = usize::from(peer);
        self.to.resize_with(self.to.len().max(peer + 1), || None);
        self.to[peer] = Some(destination);
        Ok(Some(sender))
    }

    fn post(&mut self, requests: &[WorkRequest]) -> io::Result<()> {
        if requests
            .iter()
            .any(|work| self.to_peer(work.peer).is_none())
        {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let Functions {
            extended,
            start,
            write,
            sge,
            destination,
            complete,
            ..
        } = self.functions;
        let write = write.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: `extended` is the live queue pair. Requests are built between `start` and `complete`, which posts
        // either all requests or none.
        result(unsafe {
            start(extended);
            for (work, to) in requests
                .iter()
                .filter_map(|work| Some((work, self.to_peer(work.peer)?)))
            {
                (*extended).wr_id = work.id;
                // SRD supports neither requests without a completion nor inline data.
                (*extended).wr_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
                write(
                    extended,
                    work.remote_key,
                    work.remote_address,
                    work.immediate.to_be(),
                );
                sge(extended, work.local_key, work.local_address, work.bytes);
                destination(extended, to.handle, to.at.number, to.at.nonce);
            }
            complete(extended)
        })
    }

    fn read(&mut self, to: ibv_sge, from: RemoteAddress) -> io::Result<()> {
        let peer = self.to_peer(0).ok_or(io::ErrorKind::NotConnected)?;
        let of = &self.functions;
        let read = of.read.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: `extended` is the live queue pair. The request is built between `start` and `complete`.
        result(unsafe {
            (of.start)(of.extended);
            (*of.extended).wr_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
            read(of.extended, from.key, from.address);
            (of.sge)(of.extended, to.lkey, to.addr, to.length);
            (of.destination)(of.extended, peer.handle, peer.at.number, peer.at.nonce);
            (of.complete)(of.extended)
        })
    }

    fn receive(&self, rail: &Rail, count: u32) -> io::Result<()> {
        // libefa rejects receives without memory, so they use the scratch memory.
        if self.unsolicited {
            Ok(())
        } else {
            self.pair.post_receives(count, Some(rail.scratch_sge()))
        }
    }
}

/// Moves a new queue pair to the state in which it sends and receives.
fn make_ready(pair: &QueuePair, rail: &Rail, nonce: u32) -> Result<(), String> {
    pair.modify(
        ibv_qp_state::IBV_QPS_INIT,
        ibv_qp_attr {
            port_num: rail.port.number,
            qkey: nonce,
            ..ibv_qp_attr::default()
        },
        &[
            mask::IBV_QP_PKEY_INDEX,
            mask::IBV_QP_PORT,
            mask::IBV_QP_QKEY,
        ],
    )?;
    pair.modify(ibv_qp_state::IBV_QPS_RTR, ibv_qp_attr::default(), &[])?;
    pair.modify(
        ibv_qp_state::IBV_QPS_RTS,
        ibv_qp_attr::default(),
        &[mask::IBV_QP_SQ_PSN],
    )
}

impl ScalableDatagram {
    fn to_peer(&self, peer: u16) -> Option<&Destination> {
        self.to.get(usize::from(peer))?.as_ref()
    }
}

impl Functions {
    fn of(pair: &QueuePair) -> Option<Self> {
        // SAFETY: the queue pair is alive, and libefa fills the function table before it returns a queue pair.
        unsafe {
            let extended = (pair.device().verbs.qp_to_qp_ex)(pair.qp);
            let table = extended.as_ref()?;
            Some(Self {
                extended,
                start: table.wr_start?,
                write: table.wr_rdma_write_imm,
                read: table.wr_rdma_read,
                sge: table.wr_set_sge?,
                destination: table.wr_set_ud_addr?,
                complete: table.wr_complete?,
            })
        }
    }
}
