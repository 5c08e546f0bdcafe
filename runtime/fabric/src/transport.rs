//! [`Transport`]: the contract between an endpoint and the driver of its NICs.
//!
//! A transport performs writes with 32 bits of immediate data and guarantees no order between them. The endpoint
//! above it provides sequence numbers, in-order and exactly-once arrivals, credits, range checks, deadlines, and
//! errors that reach kernels.
//!
//! # Life cycle
//!
//! - A transport is created for a given number of peers.
//! - [`connect_info`](Transport::connect_info) is called once per peer, and the caller sends the result to that peer.
//! - [`connect`](Transport::connect) is called. Then the caller passes a barrier with all peers, so that no endpoint
//!   posts to a peer that is not connected yet.
//! - [`post`](Transport::post) and [`poll`](Transport::poll) are called until the transport is dropped.
//! - Regions are added in between, in one order on every endpoint. For each region, the caller calls
//!   [`register`](Transport::register), sends the [`region_info`](Transport::region_info) to all peers, and passes the infos of
//!   the peers to [`add_peer_region`](Transport::add_peer_region). After a barrier with all peers, writes may name the region.
//!
//! Only one thread calls a transport at a time. Dropping it ends all access to its regions before `drop` returns. An
//! error of any call but `register` is final for the transport. No call waits, except `connect`, which waits until its
//! deadline at most.

use crate::error::FabricError;
use crate::peer_id::{PeerId, PeerIdentity};
use crate::stats::RailCounters;
use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// The most regions of an endpoint. `register` refuses further regions.
pub const MAX_REGIONS: usize = 64;

/// The most bytes that [`Transport::connect_info`] may return and that `connect` reads.
pub const MAX_CONNECT_INFO_BYTES: usize = 16 << 10;

/// The number of a region, in the order of registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u8);

/// A position in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionOffset {
    /// The region. For a source it is a region of this endpoint, for a target a region of the peer.
    pub region: RegionId,
    /// The offset from the start of the region in bytes. Any alignment is allowed.
    pub offset: u64,
}

/// A write to a peer's memory. The caller has checked peer, regions, ranges and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The peer to write to.
    pub peer: PeerId,
    /// The source of the bytes. It has no meaning if `bytes` is 0.
    pub source: RegionOffset,
    /// The target of the bytes. It has no meaning if `bytes` is 0.
    pub target: RegionOffset,
    /// The number of bytes, 0 to [`Limits::write_bytes`]. A write of 0 bytes only delivers the immediate data.
    pub bytes: u32,
    /// The immediate data, which the peer's [`Event::Arrived`] reports. The transport does not interpret the data.
    pub immediate: u32,
    /// The id that this endpoint's [`Event::Sent`] reports. No two writes of a transport share an id.
    pub id: u64,
}

/// A completion or a failure. Events come in any order. After a fault, a `Sent` or `Arrived` event may be reported twice, which
/// the caller has to tolerate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A write has completed: the peer or its NIC has acknowledged it, and its source may be overwritten.
    Sent {
        /// The id of the write.
        id: u64,
    },
    /// All bytes of a peer's write are in the target region.
    ///
    /// The bytes are visible to this CPU. If the region is GPU memory, the bytes are also visible to a kernel that acquires a
    /// word which this thread releases afterwards. Where the GPU does not ensure this, the transport reports the arrival after
    /// a flush. The receive that the write consumed has been posted again.
    Arrived {
        /// The peer that wrote.
        peer: PeerId,
        /// The immediate data of the write.
        immediate: u32,
    },
    /// The peer is lost: nothing more arrives from the peer or reaches it. The `Sent` events of writes to the peer may be
    /// missing. Later writes to the peer are dropped.
    Lost {
        /// The lost peer.
        peer: PeerId,
        /// The cause in words, such as the text of an error or the status of a completion.
        reason: String,
    },
    /// A write of a sender that is not a peer has arrived. It was dropped: its immediate data are lost, and the receive
    /// that it consumed has been posted again.
    Dropped {
        /// The known facts about the sender, in words.
        reason: String,
    },
}

/// The limits of a transport. They never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The size of the longest write in bytes.
    pub write_bytes: u32,
    /// The most writes to one peer that may be posted and not completed. `post` accepts at most this number, and rarely fewer.
    pub writes: u32,
    /// The number of receives that are kept posted for each peer, or each peer's share of the receives of a NIC.
    ///
    /// A caller must never have more writes to a peer in flight than the *peer's* limit. A write is in flight from
    /// its `post` until the caller knows that the peer's `poll` has reported it. A transport may report a peer that
    /// exceeds the limit as lost. If peers share the receives of a NIC, the writes of other peers may fail too.
    pub receives: u32,
    /// The number of NICs that share the writes.
    pub rails: u32,
}

impl Limits {
    /// Checks that a put of `bytes` bytes is not longer than a write.
    ///
    /// # Errors
    ///
    /// [`FabricError::Config`] with both lengths.
    pub fn check_put_bytes(&self, bytes: u64) -> Result<(), FabricError> {
        if bytes <= self.write_bytes.into() {
            return Ok(());
        }
        Err(FabricError::Config(vec![format!(
            "puts have up to {bytes} bytes, but writes of these NICs have at most {}; choose other NICs, or a plan with \
             smaller puts",
            self.write_bytes
        )]))
    }
}

/// The location of memory.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum MemoryKind {
    /// CPU memory of this process. NICs need only its address.
    Host,
    /// GPU memory that is mapped at its address in the CUDA context of this process.
    Gpu {
        /// The ordinal of the GPU in the CUDA driver.
        device: u32,
        /// A dma-buf of the memory, if the driver provides one.
        dma_buf: Option<DmaBuf>,
    },
}

/// A dma-buf that contains a range of GPU memory.
#[derive(Clone, Debug)]
pub struct DmaBuf {
    /// The file descriptor of the dma-buf.
    pub fd: Arc<OwnedFd>,
    /// The offset of the range in the dma-buf in bytes.
    pub offset_bytes: u64,
}

/// A range of memory to be registered as a region.
#[derive(Clone, Debug)]
pub struct MemoryRange {
    address: u64,
    bytes: u64,
    kind: MemoryKind,
    _owner: Option<Arc<dyn Any + Send + Sync>>,
}

impl MemoryRange {
    /// Describes a range of memory.
    ///
    /// # Safety
    ///
    /// The range must be mapped, readable and writable until every transport that it was registered with has been
    /// dropped. While a write from or to the range is in flight, its content must only be accessed through atomics,
    /// raw pointers or a GPU. No Rust reference to those bytes may exist then.
    #[must_use]
    pub unsafe fn new(address: u64, bytes: u64, kind: MemoryKind) -> Self {
        Self {
            address,
            bytes,
            kind,
            _owner: None,
        }
    }

    /// Attaches the owner that keeps the range mapped. The owner lives as long as a transport may access the range,
    /// so the first requirement of [`new`](Self::new) holds whatever is dropped first.
    #[must_use]
    pub fn with_owner(self, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self {
            _owner: Some(owner),
            ..self
        }
    }

    /// Returns the address of the range.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the size of the range in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the location of the range.
    #[must_use]
    pub fn kind(&self) -> &MemoryKind {
        &self.kind
    }
}

/// A peer and the connection info that its transport created for this endpoint.
#[derive(Clone, Debug)]
pub struct PeerConnectInfo {
    /// The peer. `peer.id` is its index in the slice that `connect` gets.
    pub peer: PeerIdentity,
    /// The result of the peer's [`Transport::connect_info`] for this endpoint. It is untrusted.
    pub connect_info: Vec<u8>,
}

/// Moves bytes to the memory of peers. The [module](self) describes the life cycle of a transport.
pub trait Transport: Send {
    /// Returns the limits of the transport.
    fn limits(&self) -> Limits;

    /// Returns the counters of the NICs, which the transport raises when it posts a write.
    fn rail_counters(&self) -> Arc<[RailCounters]>;

    /// Registers memory as a region. Regions get the numbers 0, 1, and so on in the order of calls. At most
    /// [`MAX_REGIONS`] are allowed. The transport keeps the [`MemoryRange`] until it has ended all access to it.
    ///
    /// # Errors
    ///
    /// [`FabricError::Register`] if the memory is refused. The state of the transport is then unchanged.
    fn register(&mut self, memory: MemoryRange) -> Result<RegionId, FabricError>;

    /// Returns the info that peers need to write to a registered region of this endpoint. All peers get the same info. The info
    /// holds at most [`MAX_CONNECT_INFO_BYTES`] bytes and contains a version.
    fn region_info(&self, region: RegionId) -> Vec<u8>;

    /// Adds the next region of a connected peer. Returns its size in bytes. Validates every byte of the info.
    ///
    /// # Errors
    ///
    /// Returns the reason why the info is invalid.
    fn add_peer_region(&mut self, peer: PeerId, region_info: &[u8]) -> Result<u64, String>;

    /// Returns the info that `peer` needs to connect to this endpoint. The info holds at most [`MAX_CONNECT_INFO_BYTES`] bytes
    /// and contains a version.
    ///
    /// # Errors
    ///
    /// [`FabricError::Nic`] if something must be created for the peer and cannot be.
    fn connect_info(&mut self, peer: PeerId) -> Result<Vec<u8>, FabricError>;

    /// Connects to all peers. Validates every byte of their connection info.
    ///
    /// # Errors
    ///
    /// [`FabricError::ConnectInfo`], [`FabricError::Connect`].
    fn connect(&mut self, peers: &[PeerConnectInfo], deadline: Instant) -> Result<(), FabricError>;

    /// Accepts writes from the front of the slice and returns the number of accepted writes.
    ///
    /// If not all writes are accepted, a queue is full, and the caller should poll and retry the rest later. Accepted writes
    /// start at once, without a further call.
    ///
    /// # Errors
    ///
    /// [`FabricError::Nic`]. A failure of one peer is reported as its [`Event::Lost`].
    fn post(&mut self, writes: &[Write]) -> Result<usize, FabricError>;

    /// Appends the events since the last call, at most some hundred. No event is delayed to a later call without
    /// need.
    ///
    /// # Errors
    ///
    /// The same errors as [`post`](Self::post).
    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), FabricError>;
}
