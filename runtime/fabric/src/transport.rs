//! What moves bytes to the memory of a peer: the contract between the proxy and a NIC's driver.
//!
//! A transport gives writes with a 32-bit immediate, and no order whatsoever between them. The proxy above it gives
//! sequence numbers, in-order and exactly-once arrivals, credits, range checks, deadlines and errors that reach kernels.
//!
//! Life of a transport: it is made for a given number of peers; [`register`](Transport::register) for each region, in
//! the same order on every endpoint; [`offer`](Transport::connect_info) once per peer; the caller carries offers to peers;
//! [`connect`](Transport::connect); the caller meets all peers, so that none posts to one who isn't connected yet; then
//! [`post`](Transport::post) and [`poll`](Transport::poll) until it is dropped. One thread calls it at a time. Dropping
//! it ends all access to its regions before `drop` returns.
//!
//! An error of any call is final for the transport. No call waits, except `connect` (until its deadline).

use crate::error::FabricError;
use crate::peer_id::{PeerId, PeerIdentity};
use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// The most regions of an endpoint; more are refused.
pub const MAX_REGIONS: usize = 16;

/// The most bytes that [`Transport::connect_info`] may return, and that `connect` reads.
pub const MAX_CONNECT_INFO_BYTES: usize = 16 << 10;

/// A region: the order in which it was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u8);

/// A place in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionOffset {
    /// Which region: this endpoint's for a source, the peer's for a target.
    pub region: RegionId,
    /// Bytes from its start; any alignment.
    pub offset: u64,
}

/// Bytes to bring to a peer's memory. The caller has checked peer, regions, ranges and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// To whom.
    pub peer: PeerId,
    /// From where. Without meaning if `bytes` is 0.
    pub source: RegionOffset,
    /// To where. Without meaning if `bytes` is 0.
    pub target: RegionOffset,
    /// How many, 0 to [`Limits::write_bytes`]. With 0 only the immediate travels.
    pub bytes: u32,
    /// What the peer's [`Event::Arrived`] says. Its bits have no meaning for the transport.
    pub immediate: u32,
    /// What this endpoint's [`Event::Sent`] says. Unlike that of any other write of this transport.
    pub id: u64,
}

/// What happened. Events come in any order; a fault may make `Sent` or `Arrived` come twice, which the caller copes with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A write has left: its source may be overwritten. The peer, or its NIC, has acknowledged it.
    Sent {
        /// Of the write.
        id: u64,
    },
    /// All bytes of a peer's write are in the target region: visible to this CPU and, in GPU memory, to a kernel that
    /// then acquires a word which this thread releases. The receive that it used is posted again.
    Arrived {
        /// From whom.
        peer: PeerId,
        /// Of the write.
        immediate: u32,
    },
    /// Nothing more comes from this peer, nor reaches it; `Sent` of its writes may be missing. Writes to it that are
    /// posted from now on are dropped.
    Lost {
        /// Who.
        peer: PeerId,
        /// Why, for people: an error's text, a completion's status.
        reason: String,
    },
}

/// Figures of a transport; the same over its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest write.
    pub write_bytes: u32,
    /// Writes to one peer that may be posted and not yet `Sent`: `post` accepts no more, and seldom fewer.
    pub writes: u32,
    /// Receives that are kept posted for each peer. A caller never has more writes to a peer on their way than the
    /// *peer's* figure: those posted, of which it doesn't know that the peer's `poll` has reported them. A transport
    /// may report a peer that exceeds it as lost.
    pub receives: u32,
    /// NICs that share the work.
    pub rails: u32,
}

/// Where memory lies.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Memory of this process, on the CPU; NICs need no more than its address.
    Host,
    /// Memory of a GPU, mapped at its address in the CUDA context of this process.
    Gpu {
        /// Its number for the driver.
        device: u32,
        /// A dma-buf of it, where the driver gives one.
        dma_buf: Option<DmaBuf>,
    },
}

/// A dma-buf that contains a range of GPU memory.
#[derive(Clone, Debug)]
pub struct DmaBuf {
    /// Its file.
    pub fd: Arc<OwnedFd>,
    /// Where the range starts in it.
    pub offset_bytes: u64,
}

/// Memory that is to become a region.
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
    /// The range is mapped, may be read and written, and stays so until every transport that it was registered with has
    /// been dropped. Its content is only reached through atomics, raw pointers or a GPU while a write from or to
    /// it is on its way: no Rust reference to those bytes may live then.
    #[must_use]
    pub unsafe fn new(address: u64, bytes: u64, kind: MemoryKind) -> Self {
        Self {
            address,
            bytes,
            kind,
            _owner: None,
        }
    }

    /// Keeps `owner`, which keeps the range mapped, for as long as a transport may reach the range: so the first promise of
    /// [`new`](Self::new) holds whatever is dropped first.
    #[must_use]
    pub fn with_owner(self, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self {
            _owner: Some(owner),
            ..self
        }
    }

    /// Where it starts.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where it lies.
    #[must_use]
    pub fn kind(&self) -> &MemoryKind {
        &self.kind
    }
}

/// A peer, and what its transport offered to this one.
#[derive(Clone, Debug)]
pub struct PeerConnectInfo {
    /// Who. `peer.id` is its index in the slice that `connect` gets.
    pub peer: PeerIdentity,
    /// What the peer's [`Transport::connect_info`] returned for this endpoint. Not to be trusted.
    pub connect_info: Vec<u8>,
}

/// Moves bytes to the memory of peers. See the [module](self) for its life.
pub trait Transport: Send {
    /// Its figures.
    fn limits(&self) -> Limits;

    /// Makes memory a region: numbers 0, 1, … in the order of calls, at most [`MAX_REGIONS`]. The transport keeps the
    /// [`MemoryRange`] until it has ended all access to it.
    ///
    /// # Errors
    ///
    /// [`FabricError::Register`].
    fn register(&mut self, memory: MemoryRange) -> Result<RegionId, FabricError>;

    /// What `peer` must know of this endpoint to reach its regions: at most [`MAX_CONNECT_INFO_BYTES`], with a version in it.
    ///
    /// # Errors
    ///
    /// [`FabricError::Nic`], where something has to be created for the peer and cannot be.
    fn connect_info(&mut self, peer: PeerId) -> Result<Vec<u8>, FabricError>;

    /// Makes ready to write to all peers and to be written by them. Checks every byte of their offers.
    ///
    /// # Errors
    ///
    /// [`FabricError::ConnectInfo`], [`FabricError::Connect`].
    fn connect(&mut self, peers: &[PeerConnectInfo], deadline: Instant) -> Result<(), FabricError>;

    /// Accepts writes from the front of the slice and returns how many. Fewer than all means that a queue is full: poll,
    /// and try the rest later. Accepted writes start at once, without a further call.
    ///
    /// # Errors
    ///
    /// [`FabricError::Nic`]. What goes wrong with one peer is its [`Event::Lost`].
    fn post(&mut self, writes: &[Write]) -> Result<usize, FabricError>;

    /// Appends what has happened, some hundred events at most; none is kept back until the next call for nothing.
    ///
    /// # Errors
    ///
    /// As `post`.
    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), FabricError>;
}
