//! [`PeerState`]: what an endpoint knows of a peer, and what it has to say to it.

use crate::config::EndpointConfig;
use crate::endpoint_info::EndpointInfo;
use crate::flow_control::{ReceiveWindow, SendWindow};
use crate::immediate::Immediate;
use crate::in_flight::WriteKind;
use crate::peer_id::PeerIdentity;
use crate::transport::Write;
use std::collections::VecDeque;

/// What an endpoint knows of a peer.
pub struct PeerState {
    pub peer: PeerIdentity,
    /// Sizes, and number of channels, that the peer told.
    pub regions: Vec<u64>,
    pub channels: u16,
    pub send_window: SendWindow,
    pub receive_window: ReceiveWindow,
    /// Puts that wait for credits or for the transport.
    pub queue: VecDeque<Write>,
    /// A message without data that waits for the transport.
    pub message: Option<Write>,
    /// Writes posted, not known to have left.
    pub in_flight: u32,
    /// Whether it has said goodbye; whether that was said to it, and has come there or never will.
    pub peer_closed: bool,
    pub close_sent: bool,
    pub close_acked: bool,
}

/// Why an endpoint says goodbye.
#[derive(Clone, Copy)]
pub struct CloseReason {
    /// Whose loss makes it give up; nobody's if its work is done.
    pub lost_rank: Option<u32>,
}

impl PeerState {
    /// Before the first put. `receives` are those that this endpoint keeps.
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
            regions: info.regions,
            channels: info.channels,
            queue: VecDeque::new(),
            message: None,
            in_flight: 0,
            peer_closed: false,
            close_sent: false,
            close_acked: false,
        }
    }

    /// Whether something waits for credits or for the transport.
    pub fn has_more(&self) -> bool {
        self.message.is_some() || !self.queue.is_empty()
    }

    /// What is to be said to the peer now, if anything. A goodbye is answered once all puts to that peer have left: it
    /// stays until then.
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
}
