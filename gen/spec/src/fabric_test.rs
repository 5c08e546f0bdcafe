//! The declarations that host and device share for the fabric test, which sends messages from a GPU to the same GPU of every other
//! node. Each message is acknowledged, timed, and on request checked word by word. `templates/fabric_test.cu.tera` has the same
//! declarations.

use crate::abi::{MAX_RANKS, StructLayout, layout};
use crate::fabric::{CommandRing, PUT_CHANNELS};

/// The kernel's symbol.
pub const KERNEL: &str = "fabric_test";

/// The number of CTAs: one CTA sends, one CTA receives.
pub const CTAS: u32 = 2;

/// Threads of each CTA.
pub const THREADS: u32 = 256;

/// The most nodes of a test.
pub const MAX_NODES: u32 = 64;

/// The channel of messages.
pub const MESSAGES: u16 = 0;
/// The channel of acknowledgements.
pub const ACKS: u16 = 1;
const _: () = assert!(MESSAGES < PUT_CHANNELS && ACKS < PUT_CHANNELS);

/// The number of commands whose times are kept: the last commands of a call.
pub const PICK_UPS: u32 = 1024;

/// The unit of the size of a message.
pub const WORD_BYTES: u32 = 4;

/// The kernel's one parameter. All addresses are valid on the device.
///
/// Region 0 of every endpoint has `window` slots of `slot_bytes` for outgoing messages, shared by all peers, and behind them
/// `window` slots per peer for incoming messages. Peers are the other nodes, in their order.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FabricTestArgs {
    /// The ring to which commands are posted.
    pub ring: CommandRing,
    /// The workspaces, as waits use them. Every entry is this rank's own, since the memory of other nodes cannot be
    /// accessed.
    pub workspaces: [u64; MAX_RANKS],
    /// Address of the [`HostPage`](crate::abi::HostPage).
    pub host: u64,
    /// Address of the [`Gate`](crate::abi::Gate).
    pub gate: u64,
    /// The deadline of every wait.
    pub deadline_ns: u64,
    /// Arrival words, by peer and channel, [`FLAG_STRIDE_BYTES`](crate::abi::FLAG_STRIDE_BYTES) apart.
    pub arrivals: u64,
    /// The address of region 0.
    pub region: u64,
    /// Address of the [`FabricTestResults`].
    pub results: u64,
    /// The seed of the contents of all messages.
    pub seed: u64,
    /// The local rank on its node.
    pub rank: u32,
    /// The number of this rank's node.
    pub node: u32,
    /// The number of nodes, at most [`MAX_NODES`].
    pub nodes: u32,
    /// Messages to each peer; a multiple of `batch`.
    pub messages: u32,
    /// The number of those messages that are sent before the clock starts.
    pub untimed: u32,
    /// Messages of all earlier calls to each peer, modulo 2^32.
    pub messages_before: u32,
    /// Acknowledgements of all earlier calls, modulo 2^32.
    pub acks_before: u32,
    /// Bytes of a message.
    pub message_bytes: u32,
    /// Bytes from one slot to the next.
    pub slot_bytes: u32,
    /// The most messages to a peer in flight, at least `batch`.
    pub window: u32,
    /// Messages that are acknowledged together.
    pub batch: u32,
    /// Whether contents are written before each message, and checked after.
    pub checks: u32,
    /// Whether the time until the proxy has read a command is measured.
    pub probes: u32,
}

/// The results of a call. They are zeroed before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FabricTestResults {
    /// The time from the first timed message to the last acknowledgement.
    pub elapsed_ns: u64,
    /// The number of wrong words in the messages of each peer.
    pub wrong_words: [u64; MAX_NODES as usize],
    /// The times from posting a command until this GPU saw that the proxy had read it. Timed command i is at index i
    /// modulo [`PICK_UPS`].
    pub pick_up_ns: [u32; PICK_UPS as usize],
}

/// The layout of the parameter. The template declares the struct, and asserts its size and offsets.
#[must_use]
pub fn args_layout() -> StructLayout {
    layout!(FabricTestArgs: ring, workspaces, host, gate, deadline_ns, arrivals, region, results, seed, rank, node, nodes,
        messages, untimed, messages_before, acks_before, message_bytes, slot_bytes, window, batch, checks, probes)
}

/// The layout of the results. The template declares the struct, and asserts its size and offsets.
#[must_use]
pub fn results_layout() -> StructLayout {
    layout!(FabricTestResults: elapsed_ns, wrong_words, pick_up_ns)
}
