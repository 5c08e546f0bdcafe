//! The layout of the memory that kernels and the host's proxy share to put data on other nodes. `mk/abi.cuh` declares the same
//! layout.

/// The most channels from one endpoint to one peer. A put's immediate has 11 bits for the channel.
pub const MAX_CHANNELS: u32 = 1 << 11;

/// [`Command::kind`] of a put to one peer.
pub const COMMAND_PUT: u16 = 1;

/// [`Command::kind`] of puts to several peers. Each put has the same source offset, target offset and region.
///
/// [`Command::target_region`] is the number of peers, at most [`MAX_MASK_PEERS`]. The first peer is [`Command::peer`], and the
/// other peers follow in their order; peer 0 comes after the last peer. [`Command::target_offset`] is a mask with one bit for each
/// peer, the lowest bit for the first peer. A peer whose bit is not set gets an empty put, which only raises its arrival word.
pub const COMMAND_PUT_TO_PEERS: u16 = 2;

/// The most peers of a [`COMMAND_PUT_TO_PEERS`]: a mask with this number of bits leaves the [`PHASE_BIT`] free.
pub const MAX_MASK_PEERS: u32 = 63;

/// The bit that every tag has. Zeroed memory therefore holds no command.
pub const TAG_VALID: u32 = 1 << 31;

/// The base-2 logarithm of the most slots of a ring. A lap is less than half of the range of indices, so an index and
/// `consumed` can be compared modulo 2^32.
pub const MAX_CAPACITY_LOG2: u32 = 16;

/// The bit by which the proxy sees whether the second, third and fourth 64-bit word of a slot have been written in this
/// lap. A kernel can therefore store the words of a command in any order.
pub const PHASE_BIT: u64 = 1 << 63;

/// One slot of the ring: a put of `bytes` bytes. A kernel writes the slot as four 64-bit words and sets the [`PHASE_BIT`] in the
/// last three. The proxy reads the slot.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// The [`tag`] of the command's index.
    pub tag: u32,
    /// The peer, by its index in the endpoint's table of peers.
    pub peer: u16,
    /// The channel, less than [`MAX_CHANNELS`].
    pub channel: u16,
    /// The region that is read.
    pub source_region: u8,
    /// The region of the peer that is written.
    pub target_region: u8,
    /// [`COMMAND_PUT`] or [`COMMAND_PUT_TO_PEERS`].
    pub kind: u16,
    /// The number of bytes, less than 2^31. A put of 0 bytes only raises the arrival word.
    pub bytes: u32,
    /// The offset in the source region in bytes.
    pub source_offset: u64,
    /// The offset in the target region in bytes.
    pub target_offset: u64,
}

/// Returns the tag of the command with this index in a ring of 2^`capacity_log2` slots. Each lap has its own tag.
#[must_use]
pub const fn tag(index: u32, capacity_log2: u32) -> u32 {
    TAG_VALID | (index >> capacity_log2)
}

/// Returns the [`PHASE_BIT`] or 0 for the command with this index. The bit is set in the first lap and changes with
/// each lap.
#[must_use]
pub const fn phase(index: u32, capacity_log2: u32) -> u64 {
    if (index >> capacity_log2) & 1 == 0 {
        PHASE_BIT
    } else {
        0
    }
}

/// The progress of the proxy, in pinned host memory. Both words count commands from the first one, modulo 2^32.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingWords {
    /// The number of commands read. Slots of lower indices may be written again.
    pub consumed: u32,
    /// The number of commands whose bytes have been sent. The sources of lower indices may be written again.
    pub sent: u32,
}

/// The state that producers share, in device memory. It is zero before the first command and is never reset.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingState {
    /// The number of claimed commands.
    pub claimed: u32,
    /// The value of [`RingWords::consumed`] that a producer saw last. It saves most producers a read across PCIe.
    pub consumed_seen: u32,
}

/// The addresses of a ring on the device, as kernels use them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandRing {
    /// The address of 2^`capacity_log2` [`Command`]s in pinned host memory, aligned to 32 bytes.
    pub slots: u64,
    /// The address of the [`RingWords`].
    pub words: u64,
    /// The address of the [`RingState`].
    pub state: u64,
    /// The base-2 logarithm of the number of slots, at most [`MAX_CAPACITY_LOG2`].
    pub capacity_log2: u32,
}

/// The channels from each peer that a communicator's endpoint has for operators.
pub const PUT_CHANNELS: u16 = 2;

/// The most puts of a call to a peer on a channel.
pub const MAX_CALL_PUTS: u32 = 0x7fff;

/// The state that all calls across nodes of a communicator share, in device memory. The words behind this struct count the puts of
/// all watched calls, modulo 2^32, by peer and channel. All words are zero before the first call and are never reset.
#[repr(C, align(128))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkState {
    /// The number of calls across nodes whose number every CTA has read.
    pub calls: u32,
    /// The number of calls across nodes whose puts have all arrived.
    pub watched: u32,
}

/// The low bits of the place of a tensor in symmetric memory, which hold its offset. The bits above hold the number of its extent,
/// which is also the number of its region.
pub const PLACE_OFFSET_BITS: u32 = 48;

/// A communicator's endpoint, as its kernels use it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelEndpoint {
    /// The ring of commands.
    pub ring: CommandRing,
    /// The address of the arrival words in host memory, by peer and channel,
    /// [`FLAG_STRIDE_BYTES`](crate::abi::FLAG_STRIDE_BYTES) apart.
    pub arrivals: u64,
    /// The address of the [`NetworkState`].
    pub network: u64,
    /// The offset of the operator's workspace in its region in bytes. The offset is the same on all ranks.
    pub workspace_offset: u64,
    /// The region of the workspace. The region has the same number on all ranks.
    pub region: u32,
}
