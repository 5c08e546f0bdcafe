//! What kernels and the host's proxy agree on byte by byte, to put data on other nodes. `mk/abi.cuh` has the same.

/// Channels from one endpoint to one peer are numbered below this: 11 bits of a put's immediate.
pub const MAX_CHANNELS: u32 = 1 << 11;

/// [`Command::kind`] of a put to one peer.
pub const COMMAND_PUT: u16 = 1;

/// [`Command::kind`] of a put to several peers, each from the source offset to the same offset of the same region.
///
/// [`Command::target_region`] is the number of peers, at most [`MAX_MASK_PEERS`]. The first one is [`Command::peer`], and
/// the others follow in their order; peer 0 comes after the last peer. [`Command::target_offset`] is a mask with a bit for
/// each of them, the lowest for the first. A peer whose bit is not set gets an empty put, which only raises its arrival
/// word.
pub const COMMAND_PUT_TO_PEERS: u16 = 2;

/// The most peers of a [`COMMAND_PUT_TO_PEERS`]: a mask of as many bits leaves the [`PHASE_BIT`] free.
pub const MAX_MASK_PEERS: u32 = 63;

/// The bit that every tag has, so that zeroed memory holds no command.
pub const TAG_VALID: u32 = 1 << 31;

/// The largest ring has two to the power of this many slots. A lap takes less than half of the indices, so that an
/// index and `consumed` can be compared modulo 2^32.
pub const MAX_CAPACITY_LOG2: u32 = 16;

/// The bit of a slot's second, third and fourth 64-bit word by which the proxy tells whether this lap has written it: so a
/// kernel stores a command's words in any order.
pub const PHASE_BIT: u64 = 1 << 63;

/// One slot of the ring: a put of `bytes` bytes to a peer. Written by a kernel as four 64-bit words, the last three with
/// their [`PHASE_BIT`]; read by the proxy.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// [`tag`] of its index.
    pub tag: u32,
    /// To whom: a number of this endpoint's table of peers.
    pub peer: u16,
    /// On which channel; below [`MAX_CHANNELS`].
    pub channel: u16,
    /// Where from.
    pub source_region: u8,
    /// Where to: the peer's counterpart of that region.
    pub target_region: u8,
    /// [`COMMAND_PUT`] or [`COMMAND_PUT_TO_PEERS`].
    pub kind: u16,
    /// How many bytes, less than 2^31; 0 only raises the arrival word.
    pub bytes: u32,
    /// In the source region, in bytes.
    pub source_offset: u64,
    /// In the target region, in bytes.
    pub target_offset: u64,
}

/// The tag of the command with this index in a ring of 2^`capacity_log2` slots: another one in each lap.
#[must_use]
pub const fn tag(index: u32, capacity_log2: u32) -> u32 {
    TAG_VALID | (index >> capacity_log2)
}

/// The [`PHASE_BIT`] of the command with this index, or 0: the other one in each lap, set in the first.
#[must_use]
pub const fn phase(index: u32, capacity_log2: u32) -> u64 {
    if (index >> capacity_log2) & 1 == 0 {
        PHASE_BIT
    } else {
        0
    }
}

/// What the proxy tells producers, in pinned host memory. Both count commands from the first one, modulo 2^32.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingWords {
    /// Commands read: slots of lower indices may be written again.
    pub consumed: u32,
    /// Commands whose bytes have left: sources of lower indices may be written again.
    pub sent: u32,
}

/// What producers share, in device memory. Zero before the first command; nothing resets it after.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingState {
    /// Commands claimed.
    pub claimed: u32,
    /// [`RingWords::consumed`] as a producer last saw it, so that few have to look across PCIe.
    pub consumed_seen: u32,
}

/// A ring as kernels get it: addresses on the device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandRing {
    /// Of 2^`capacity_log2` [`Command`]s in pinned host memory, aligned to 32 bytes.
    pub slots: u64,
    /// Of the [`RingWords`].
    pub words: u64,
    /// Of the [`RingState`].
    pub state: u64,
    /// At most [`MAX_CAPACITY_LOG2`].
    pub capacity_log2: u32,
}
