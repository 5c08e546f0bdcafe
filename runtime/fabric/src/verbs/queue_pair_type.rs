//! [`QueuePairType`]: the differences between RC and SRD queue pairs, and the work requests that these queue pairs take.

use super::connect_info::{QueuePairInfo, RailInfo, RemoteAddress};
use super::device::{Device, Port};
use super::queue_pair::{Capability, QueuePair};
use super::rail::{Rail, Sender};
use ibverbs_sys::ibv_sge;
use std::io;

/// A write in the form that a queue pair takes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WorkRequest {
    /// The id that the completion of the write reports.
    pub(super) id: u64,
    pub(super) peer: u16,
    pub(super) local_address: u64,
    pub(super) local_key: u32,
    pub(super) bytes: u32,
    pub(super) remote_address: u64,
    pub(super) remote_key: u32,
    pub(super) immediate: u32,
    /// Whether the CPU can read the source, because it is not in GPU memory.
    pub(super) on_host: bool,
}

/// The purpose of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Writes to peers, and writes of peers.
    Put,
    /// Reads of this endpoint's own memory, one at a time.
    Flush,
}

/// A type of queue pair: RC or SRD.
pub(super) trait QueuePairType: Send + Sized {
    /// The name of the type in messages.
    const NAME: &'static str;
    /// The number of the type in connection info.
    const SERVICE: u8;
    /// Whether completions come in the order of posting, so that one completion acknowledges all earlier requests.
    const IN_ORDER: bool;
    /// Whether a queue pair serves all peers. Otherwise each queue pair serves one peer, and the queue pairs of a NIC share a
    /// receive queue.
    const SERVES_ALL_PEERS: bool;
    /// The most queue pairs on a NIC, for each peer or for all peers.
    const MAX_QUEUE_PAIRS: u8;

    /// Returns the capability of the type on a port of the device, or the feature that the device lacks.
    fn capability(device: &Device, port: &Port) -> Result<Capability, String>;

    /// Creates a queue pair, and posts the receives of a queue pair for puts unless it uses the receives of the rail. Peers need
    /// `nonce` in addition to the queue pair's number.
    fn new(rail: &Rail, nonce: u32, purpose: Purpose) -> Result<Self, String>;

    /// Returns the queue pair that underlies every type.
    fn pair(&self) -> &QueuePair;

    /// Derives the nonce for the connection info from 32 random bits.
    fn nonce(random: u32) -> u32;

    /// Makes the queue pair ready to write to a queue pair of a peer and to receive that peer's writes. Returns the sender that
    /// completions report for these writes, or `None` if the queue pair serves this peer only.
    fn connect(
        &mut self,
        peer: u16,
        rail: &Rail,
        to: &RailInfo,
        at: QueuePairInfo,
    ) -> Result<Option<Sender>, String>;

    /// Posts all of `requests` in order.
    fn post(&mut self, requests: &[WorkRequest]) -> io::Result<()>;

    /// Posts a read of memory at the other end, which is peer 0. The queue pair was created for flushes.
    fn read(&mut self, to: ibv_sge, from: RemoteAddress) -> io::Result<()>;

    /// Posts `count` receives to the receive queue for arrivals at this queue pair.
    fn receive(&self, rail: &Rail, count: u32) -> io::Result<()>;
}
