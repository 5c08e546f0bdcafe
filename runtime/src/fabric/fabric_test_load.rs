//! The options, the loads and the results of a fabric test.

use super::transport::Transport;
use crate::error::{Error, NetworkError};
use mkernel_spec::fabric_test::{MAX_NODES, WORD_BYTES};
use std::time::Duration;

/// The alignment of slots, in bytes.
const SLOT_ALIGNMENT_BYTES: u32 = 128;

/// The largest window. A larger window is of no use, since the proxy does not have more puts to a peer in flight.
const MAX_WINDOW: u32 = 1024;

/// The options of a fabric test. All ranks must pass equal options.
#[derive(Clone, Debug)]
pub struct FabricTestOptions {
    /// The number of hosts, if ranks are on several. On one host, the number of nodes into which the ranks are divided
    /// in order: 2 to 64 nodes of equal size.
    pub nodes: u32,
    /// The length of the longest message of any load.
    pub message_bytes: u32,
    /// The largest number of messages to a peer that are in flight at once.
    pub window: u32,
    /// The transport for the messages. All ranks must choose transports of one kind.
    pub transport: Transport,
}

/// The messages that every rank sends to its peers. All ranks must pass equal loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FabricTestLoad {
    /// The length of a message in bytes, a multiple of 4.
    pub message_bytes: u32,
    /// The number of messages to each peer, a multiple of `batch`.
    pub messages: u32,
    /// The number of messages to each peer, out of `messages`, that are sent before the clock starts.
    pub untimed: u32,
    /// The number of messages to a peer that are in flight at once. With 1, the time per message is the round trip of a message
    /// and its acknowledgement.
    pub window: u32,
    /// The number of messages that are acknowledged together, at most `window`.
    pub batch: u32,
    /// A seed. If it is set, the contents of each message are written from this seed before it is sent, and every word
    /// is checked on arrival. If it is `None`, only times are measured.
    pub check: Option<u64>,
    /// Whether the time from each command to its pick-up by the proxy is measured. This slows messages down.
    pub probe: bool,
}

/// The result of a load on this rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricTestResult {
    /// The time from the first timed message until all peers had acknowledged all messages.
    pub elapsed: Duration,
    /// The median time from the post of a command until the GPU saw that the proxy had taken the command, if it was measured.
    /// This time includes the answer's way back over PCIe.
    pub pick_up: Option<Duration>,
    /// The number of timed messages to each peer.
    pub messages: u32,
    /// The ranks whose messages had wrong words, each with the number of wrong words.
    pub wrong_words: Vec<(u32, u64)>,
}

pub(super) fn check_load(options: &FabricTestOptions, load: &FabricTestLoad) -> Result<(), Error> {
    let FabricTestLoad {
        message_bytes,
        messages,
        untimed,
        window,
        batch,
        ..
    } = *load;
    let mut mistakes = Vec::new();
    let mut require = |holds: bool, mistake: String| {
        if !holds {
            mistakes.push(mistake);
        }
    };
    require(
        message_bytes.is_multiple_of(WORD_BYTES),
        format!(
            "messages of {message_bytes} bytes are not possible: the length must be a multiple of {WORD_BYTES}"
        ),
    );
    require(
        message_bytes <= options.message_bytes,
        format!(
            "messages of {message_bytes} bytes are longer than the {} of the test's options",
            options.message_bytes
        ),
    );
    require(
        (1..=options.window).contains(&window),
        format!(
            "a window of {window} messages is not possible: use 1 to {}",
            options.window
        ),
    );
    require(
        (1..=window).contains(&batch),
        format!(
            "acknowledgements of {batch} messages are not possible: use 1 to {window}, the window"
        ),
    );
    require(
        messages > 0 && batch > 0 && messages.is_multiple_of(batch.max(1)),
        format!("{messages} messages are not possible: use a multiple of the batch of {batch}"),
    );
    require(
        untimed < messages,
        format!("{untimed} of {messages} messages are untimed, so none is left to measure"),
    );
    if mistakes.is_empty() {
        Ok(())
    } else {
        Err(Error::Network(NetworkError::FabricTest(mistakes)))
    }
}

/// Returns the distance from one slot to the next.
pub(super) fn slot_bytes(message_bytes: u32) -> u32 {
    message_bytes.max(1).next_multiple_of(SLOT_ALIGNMENT_BYTES)
}

/// Returns a description of everything that must be equal on all ranks.
pub(super) fn identity(options: &FabricTestOptions) -> String {
    let FabricTestOptions {
        nodes,
        message_bytes,
        window,
        transport,
    } = options;
    format!(
        "{nodes} nodes, messages of {message_bytes} bytes in windows of {window}, {}",
        transport.identity()
    )
}

pub(super) fn check(options: &FabricTestOptions) -> Result<(), Error> {
    let FabricTestOptions {
        nodes,
        message_bytes,
        window,
        ..
    } = *options;
    let mut mistakes = Vec::new();
    if nodes > MAX_NODES {
        mistakes.push(format!(
            "{nodes} nodes are not possible: use at most {MAX_NODES}"
        ));
    }
    let write_bytes = options.transport.write_bytes();
    if message_bytes > write_bytes {
        mistakes.push(format!(
            "messages of {message_bytes} bytes are not possible: a write of this NIC has at most {write_bytes} bytes"
        ));
    }
    if !(1..=MAX_WINDOW).contains(&window) {
        mistakes.push(format!(
            "a window of {window} messages is not possible: use 1 to {MAX_WINDOW}"
        ));
    }
    if mistakes.is_empty() {
        Ok(())
    } else {
        Err(Error::Network(NetworkError::FabricTest(mistakes)))
    }
}
