//! [`PeerState`]: the state that an endpoint tracks for each peer, and the messages that the endpoint owes the peer.

use crate::config::EndpointConfig;
use crate::endpoint_info::EndpointInfo;
use crate::flow_control::{ReceiveWindow, SendWindow};
use crate::immediate::Immediate;
use crate::in_flight::WriteKind;
use crate::peer_id::PeerIdentity;
use crate::transport::{RegionId, RegionOffset, Write};
use mkernel_spec::fabric::Command;
use std::collections::VecDeque;

/// The state of the connection to one peer.
pub struct PeerState {
    /// The peer, for errors.
    pub peer: PeerIdentity,
    /// The sizes of the peer's regions in bytes, from their region info.
    pub regions: Vec<u64>,
    /// The number of the peer's channels, from its connection info.
    pub channels: u16,
    /// Sequence numbers and credits of puts to the peer.
    pub send_window: SendWindow,
    /// The order and the credits of puts from the peer.
    pub receive_window: ReceiveWindow,
    /// Puts that wait for credits or for room in the transport.
    pub queue: VecDeque<Write>,
    /// A message without data that waits for room in the transport.
    pub message: Option<Write>,
    /// The number of writes that are posted and not known to have completed.
    pub in_flight: u32,
    /// The bytes of the puts among these writes.
    pub bytes_in_flight: u64,
    /// Whether the puts in the queue wait for credits.
    waits_for_credits: bool,
    /// Whether the peer has sent its close.
    pub peer_closed: bool,
    /// Whether this endpoint has sent its close.
    pub close_sent: bool,
    /// The write of the close, once the transport has accepted it.
    pub close_id: Option<u64>,
    /// Whether the peer has received the close, or is lost and never will receive it.
    pub close_acked: bool,
}

/// The reason why an endpoint closes.
#[derive(Clone, Copy)]
pub struct CloseReason {
    /// The rank whose loss makes the endpoint abort. `None` if the endpoint's work is done.
    pub lost_rank: Option<u32>,
}

impl PeerState {
    /// Creates the state before the first put. `receives` is the number of receives that this endpoint keeps for the
    /// peer.
    pub fn new(
        peer: &PeerIdentity,
        info: EndpointInfo,
        receives: u32,
        config: &EndpointConfig,
    ) -> Self {
        let first = config.first_count;
        Self {
            peer: peer.clone(),
            send_window: SendWindow::new(info.receives, info.channels, first),
            receive_window: ReceiveWindow::new(receives, config.channels, first),
            regions: Vec::new(),
            channels: info.channels,
            queue: VecDeque::new(),
            message: None,
            in_flight: 0,
            bytes_in_flight: 0,
            waits_for_credits: false,
            peer_closed: false,
            close_sent: false,
            close_id: None,
            close_acked: false,
        }
    }

    /// Appends a put that has been checked to the queue.
    pub fn enqueue(&mut self, put: &Command, id: u64) {
        let immediate = Immediate::Put {
            channel: put.channel,
            sequence: self.send_window.next_sequence(put.channel),
        };
        self.queue.push_back(Write {
            peer: self.peer.id,
            source: RegionOffset {
                region: RegionId(put.source_region),
                offset: put.source_offset,
            },
            target: RegionOffset {
                region: RegionId(put.target_region),
                offset: put.target_offset,
            },
            bytes: put.bytes,
            immediate: immediate.encode(),
            id,
        });
    }

    /// Returns whether a put or a message waits for credits or for the transport.
    pub fn has_more(&self) -> bool {
        self.message.is_some() || !self.queue.is_empty()
    }

    /// Returns whether the puts in the queue have begun to wait for credits since the last call.
    pub fn begins_to_wait(&mut self) -> bool {
        let waits = !self.queue.is_empty() && self.send_window.available() == 0;
        let waited = std::mem::replace(&mut self.waits_for_credits, waits);
        waits && !waited
    }

    /// Returns the number of puts at the front of the queue that fit into a window of `byte_window` bytes, at most `most`. A put
    /// always fits if nothing is in flight.
    pub fn puts_in_window(&self, most: usize, byte_window: u64) -> usize {
        let (front, _) = self.queue.as_slices();
        let mut bytes = self.bytes_in_flight;
        let fits = |write: &&Write| {
            let is_first = bytes == 0;
            bytes += u64::from(write.bytes);
            is_first || bytes <= byte_window
        };
        front.iter().take(most).take_while(fits).count()
    }

    /// Returns the next message for the peer, or `None` if no message is due.
    ///
    /// The endpoint answers a peer's close once all its own puts to that peer have completed. The peer stays
    /// connected until then, within its shutdown limit, so that these puts can complete.
    pub fn next_message(
        &mut self,
        closing: Option<CloseReason>,
        has_puts: bool,
    ) -> Option<(Immediate, WriteKind)> {
        let answer = (self.peer_closed && !has_puts).then_some(CloseReason { lost_rank: None });
        if let Some(CloseReason { lost_rank }) = closing.or(answer) {
            let is_new = !std::mem::replace(&mut self.close_sent, true);
            return is_new.then_some((Immediate::Close { lost_rank }, WriteKind::Close));
        }
        if self.peer_closed {
            return None;
        }
        let delivered = self.receive_window.next_credit()?;
        Some((Immediate::Credit { delivered }, WriteKind::Credit))
    }

    /// Returns a write to the peer that carries a message and no data.
    pub fn message_write(&self, message: Immediate, id: u64) -> Write {
        let no_data = RegionOffset {
            region: RegionId(0),
            offset: 0,
        };
        Write {
            peer: self.peer.id,
            source: no_data,
            target: no_data,
            bytes: 0,
            immediate: message.encode(),
            id,
        }
    }
}
