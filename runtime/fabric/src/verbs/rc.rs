//! [`ReliableConnection`]: RC, the reliable connection of InfiniBand and RoCE. Requests of a queue pair are ordered.

use super::connect_info::{QueuePairInfo, RailInfo, RemoteAddress};
use super::device::{Device, Port};
use super::errno::result;
use super::gid::LinkLayer;
use super::queue_pair::{Capability, QueueDepth, QueuePair, capabilities};
use super::queue_pair_type::{Purpose, QueuePairType, WorkRequest};
use super::rail::{Rail, Sender};
use super::receives::SharedReceiveQueue;
use ibverbs_sys::{
    ibv_access_flags, ibv_ah_attr, ibv_global_route, ibv_qp_attr, ibv_qp_attr_mask as mask,
    ibv_qp_init_attr, ibv_qp_state, ibv_qp_type, ibv_send_flags, ibv_send_wr, ibv_sge,
    ibv_wr_opcode,
};
use std::io;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

/// Writes of host memory up to this size are inline in the work request, so that the NIC does not have to fetch them.
const INLINE_BYTES: u32 = 64;

/// The bits of a packet sequence number.
const PACKET_NUMBER: u32 = 0x00ff_ffff;

/// The number of times that a packet is repeated before the peer is lost. The highest value of the field, 7, means for ever on
/// Soft-RoCE.
const RETRIES: u8 = 6;

/// The time for which a peer without a posted receive asks the sender to wait, in InfiniBand's encoding: 81.92 ms. This does
/// not happen while both sides keep the contract. A peer that violates the contract is lost after seven such waits.
const NOT_READY_TIMER: u8 = 26;
/// The value 7 would mean for ever.
const NOT_READY_RETRIES: u8 = 6;

/// An RC queue pair. Its arrivals take receives from the queue that all queue pairs of the NIC share.
pub(super) struct ReliableConnection {
    pair: QueuePair,
    /// The shared receive queue, which is dropped after the queue pair.
    receives: Arc<SharedReceiveQueue>,
    nonce: u32,
    inline_bytes: u32,
    requests: Vec<ibv_send_wr>,
    sges: Vec<ibv_sge>,
}

// SAFETY: the pointers in `requests` are only used in the call of `post` that wrote them.
unsafe impl Send for ReliableConnection {}

impl QueuePairType for ReliableConnection {
    const NAME: &'static str = "rc";
    const SERVICE: u8 = 1;
    const IN_ORDER: bool = true;
    const SERVES_ALL_PEERS: bool = false;
    const MAX_QUEUE_PAIRS: u8 = 16;

    fn capability(device: &Device, port: &Port) -> Result<Capability, String> {
        if !device.infiniband {
            return Err(
                "it has no reliable connections with immediate data; use an InfiniBand or RoCE device".into(),
            );
        }
        if device.attributes.max_srq <= 0 {
            return Err("it has no shared receive queues; update its driver and firmware".into());
        }
        let depth = QueueDepth {
            writes: device.attributes.max_qp_wr.max(0) as u32,
            receives: device.attributes.max_srq_wr.max(0) as u32,
        };
        Ok(Capability {
            write_bytes: port.message_bytes,
            depth,
        })
    }

    fn new(rail: &Rail, nonce: u32, purpose: Purpose) -> Result<Self, String> {
        // Peers cannot read: only the queue pair for flushes, which no peer reaches, allows reads.
        let (writes, access) = match purpose {
            Purpose::Put => (rail.depth.writes, ibv_access_flags::IBV_ACCESS_REMOTE_WRITE),
            Purpose::Flush => (1, ibv_access_flags::IBV_ACCESS_REMOTE_READ),
        };
        let receives = rail.receives.as_ref();
        let receives = Arc::clone(receives.ok_or("the NIC has no shared receive queue")?);
        let mut attributes = ibv_qp_init_attr {
            send_cq: rail.queue.cq,
            recv_cq: rail.queue.cq,
            srq: receives.srq,
            cap: capabilities(writes, 0, INLINE_BYTES),
            qp_type: ibv_qp_type::IBV_QPT_RC,
            ..ibv_qp_init_attr::default()
        };
        // SAFETY: the protection domain lives as long as the rail's device, and the new queue pair keeps the completion
        // queue and the receive queue.
        let pair = unsafe {
            let qp = (rail.device.verbs.create_qp)(rail.device.pd, &raw mut attributes);
            QueuePair::created(&rail.queue, qp, writes)?
        };
        pair.modify(
            ibv_qp_state::IBV_QPS_INIT,
            ibv_qp_attr {
                pkey_index: rail.partition_key,
                port_num: rail.port.number,
                qp_access_flags: access.0,
                ..ibv_qp_attr::default()
            },
            &[
                mask::IBV_QP_PKEY_INDEX,
                mask::IBV_QP_PORT,
                mask::IBV_QP_ACCESS_FLAGS,
            ],
        )?;
        let inline_bytes = attributes.cap.max_inline_data.min(INLINE_BYTES);
        Ok(Self {
            pair,
            receives,
            nonce,
            inline_bytes,
            requests: Vec::new(),
            sges: Vec::new(),
        })
    }

    fn pair(&self) -> &QueuePair {
        &self.pair
    }

    fn nonce(random: u32) -> u32 {
        random & PACKET_NUMBER
    }

    fn connect(
        &mut self,
        _: u16,
        rail: &Rail,
        to: &RailInfo,
        at: QueuePairInfo,
    ) -> Result<Option<Sender>, String> {
        self.pair.modify(
            ibv_qp_state::IBV_QPS_RTR,
            ibv_qp_attr {
                path_mtu: rail.port.mtu.min(to.mtu).into(),
                dest_qp_num: at.number,
                rq_psn: at.nonce & PACKET_NUMBER,
                max_dest_rd_atomic: 1,
                min_rnr_timer: NOT_READY_TIMER,
                ah_attr: address(rail, to),
                ..ibv_qp_attr::default()
            },
            &[
                mask::IBV_QP_AV,
                mask::IBV_QP_PATH_MTU,
                mask::IBV_QP_DEST_QPN,
                mask::IBV_QP_RQ_PSN,
                mask::IBV_QP_MAX_DEST_RD_ATOMIC,
                mask::IBV_QP_MIN_RNR_TIMER,
            ],
        )?;
        self.pair.modify(
            ibv_qp_state::IBV_QPS_RTS,
            ibv_qp_attr {
                sq_psn: self.nonce,
                timeout: timeout_code(rail.peer_timeout),
                retry_cnt: RETRIES,
                rnr_retry: NOT_READY_RETRIES,
                max_rd_atomic: 1,
                ..ibv_qp_attr::default()
            },
            &[
                mask::IBV_QP_SQ_PSN,
                mask::IBV_QP_TIMEOUT,
                mask::IBV_QP_RETRY_CNT,
                mask::IBV_QP_RNR_RETRY,
                mask::IBV_QP_MAX_QP_RD_ATOMIC,
            ],
        )?;
        Ok(None)
    }

    fn post(&mut self, writes: &[WorkRequest]) -> io::Result<()> {
        self.sges.clear();
        self.sges.extend(writes.iter().map(sge));
        self.requests.clear();
        self.requests
            .extend(writes.iter().map(|work| request(work, self.inline_bytes)));
        let Some(last) = self.requests.last_mut() else {
            return Ok(());
        };
        // One completion acknowledges all requests, because the queue is ordered.
        last.send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
        self.post_requests()
    }

    fn read(&mut self, to: ibv_sge, from: RemoteAddress) -> io::Result<()> {
        let mut request = ibv_send_wr {
            opcode: ibv_wr_opcode::IBV_WR_RDMA_READ,
            send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
            ..ibv_send_wr::default()
        };
        request.wr.rdma.remote_addr = from.address;
        request.wr.rdma.rkey = from.key;
        self.sges = vec![to];
        self.requests = vec![request];
        self.post_requests()
    }

    fn receive(&self, _: &Rail, count: u32) -> io::Result<()> {
        self.receives.post(count)
    }
}

impl ReliableConnection {
    /// Posts the chain of `requests`, each with its element of `sges`.
    fn post_requests(&mut self) -> io::Result<()> {
        let mut next = ptr::null_mut();
        for (request, sge) in self.requests.iter_mut().zip(&mut self.sges).rev() {
            request.next = next;
            request.num_sge = i32::from(sge.length > 0);
            request.sg_list = sge;
            next = request;
        }
        let mut refused = ptr::null_mut();
        // SAFETY: the chain and its scatter/gather elements live for the call, and drivers set the table's member.
        result(unsafe {
            let post = (*self.pair.device().context)
                .ops
                .post_send
                .ok_or(io::ErrorKind::Unsupported)?;
            post(self.pair.qp, next, &raw mut refused)
        })
    }
}

fn sge(work: &WorkRequest) -> ibv_sge {
    ibv_sge {
        addr: work.local_address,
        length: work.bytes,
        lkey: work.local_key,
    }
}

/// Builds a write with immediate data. The chain and the memory are set later.
fn request(work: &WorkRequest, inline_bytes: u32) -> ibv_send_wr {
    let mut request = ibv_send_wr {
        wr_id: work.id,
        opcode: ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
        ..ibv_send_wr::default()
    };
    if work.on_host && work.bytes <= inline_bytes {
        request.send_flags = ibv_send_flags::IBV_SEND_INLINE.0;
    }
    request.__bindgen_anon_1.imm_data = work.immediate.to_be();
    request.wr.rdma.remote_addr = work.remote_address;
    request.wr.rdma.rkey = work.remote_key;
    request
}

/// Returns the address of a peer's NIC.
fn address(rail: &Rail, to: &RailInfo) -> ibv_ah_attr {
    let port = &rail.port;
    let other_subnet = port.gid[..8] != to.gid[..8];
    let mut address = ibv_ah_attr {
        dlid: to.lid,
        sl: rail.service_level,
        is_global: u8::from(port.link == LinkLayer::Ethernet || other_subnet),
        port_num: port.number,
        grh: ibv_global_route {
            sgid_index: port.gid_index,
            hop_limit: 64,
            traffic_class: rail.traffic_class,
            ..ibv_global_route::default()
        },
        ..ibv_ah_attr::default()
    };
    address.grh.dgid.raw = to.gid;
    address
}

/// Returns InfiniBand's code t for the time after which a packet is repeated, 4.096 µs · 2^t. The code is the largest with
/// which all attempts take no longer than `peer_timeout`.
fn timeout_code(peer_timeout: Duration) -> u8 {
    let attempts = u32::from(RETRIES) + 1;
    let units = peer_timeout.as_nanos() / u128::from(4096 * attempts);
    units.max(1).ilog2().clamp(1, 31) as u8
}

#[cfg(test)]
mod tests {
    use super::super::options::Options;
    use super::timeout_code;
    use std::time::Duration;

    fn all_attempts(peer_timeout: Duration) -> Duration {
        Duration::from_nanos(7 * 4096) * 2u32.pow(timeout_code(peer_timeout).into())
    }

    #[test]
    fn all_attempts_fit_into_the_peer_timeout() {
        for ms in [10, 500, 4000, 60_000, 600_000] {
            let peer_timeout = Duration::from_millis(ms);
            let all = all_attempts(peer_timeout);
            assert!(
                all <= peer_timeout && all * 2 > peer_timeout,
                "{peer_timeout:?}: {all:?}"
            );
        }
        assert_eq!(timeout_code(Duration::ZERO), 1);
    }

    #[test]
    fn the_default_tolerates_a_link_that_is_down_for_20_seconds() {
        assert!(all_attempts(Options::new(1).peer_timeout) >= Duration::from_secs(20));
    }
}
