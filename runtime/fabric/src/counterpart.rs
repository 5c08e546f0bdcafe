//! [`PeerState`]: what an endpoint knows of a peer, and what it has to say to it.

use crate::config::EndpointConfig;
use crate::flights::Cargo;
use crate::immediate::Immediate;
use crate::offer::Offer;
use crate::peer::{Incoming, Outgoing};
use crate::peer_id::PeerIdentity;
use crate::transport::Write;
use std::collections::VecDeque;

/// What an endpoint knows of a peer.
pub struct PeerState {
    pub peer: PeerIdentity,
    /// Sizes, and number of channels, that the peer told.
    pub regions: Vec<u64>,
    pub channels: u16,
    pub outgoing: Outgoing,
    pub incoming: Incoming,
    /// Puts that wait for credits or for the transport.
    pub queue: VecDeque<Write>,
    /// A message without data that waits for the transport.
    pub message: Option<Write>,
    /// Writes posted, not known to have left.
    pub in_flight: u32,
    /// Whether it has said goodbye; whether that was said to it, and has come there or never will.
    pub has_ended: bool,
    pub was_told: bool,
    pub has_heard: bool,
}

/// Why an endpoint says goodbye.
#[derive(Clone, Copy)]
pub struct Leave {
    /// Whose loss makes it give up; nobody's if its work is done.
    pub lost: Option<u32>,
}

impl PeerState {
    /// Before the first put. `receives` are those that this endpoint keeps.
    pub fn new(peer: &PeerIdentity, offer: Offer, receives: u32, config: &EndpointConfig) -> Self {
        let first = config.first_count;
        Self {
            peer: peer.clone(),
            outgoing: Outgoing::new(offer.receives, offer.channels, first),
            incoming: Incoming::new(receives, config.channels, first),
            regions: offer.regions,
            channels: offer.channels,
            queue: VecDeque::new(),
            message: None,
            in_flight: 0,
            has_ended: false,
            was_told: false,
            has_heard: false,
        }
    }

    /// Whether something waits for credits or for the transport.
    pub fn has_more(&self) -> bool {
        self.message.is_some() || !self.queue.is_empty()
    }

    /// What is to be said to the peer now, if anything. A goodbye is answered once all puts to that peer have left: it
    /// stays until then.
    pub fn news(&mut self, leave: Option<Leave>, has_puts: bool) -> Option<(Immediate, Cargo)> {
        let answer = (self.has_ended && !has_puts).then_some(Leave { lost: None });
        if let Some(Leave { lost }) = leave.or(answer) {
            let is_new = !std::mem::replace(&mut self.was_told, true);
            return is_new.then_some((Immediate::Goodbye { lost }, Cargo::Goodbye));
        }
        if self.has_ended {
            return None;
        }
        let returned = self.incoming.credit()?;
        Some((Immediate::Credit { returned }, Cargo::Credit))
    }
}
