//! The actions of an endpoint on the events of its transport.

use super::Endpoint;
use crate::error::FabricError;
use crate::immediate::{CREDIT_MODULUS, Immediate};
use crate::in_flight::WriteKind;
use crate::peer_id::PeerId;
use crate::peer_state::PeerState;
use crate::transport::Event;

impl Endpoint {
    /// Polls the transport and handles its events.
    pub(super) fn process_events(&mut self) -> Result<bool, FabricError> {
        let mut events = std::mem::take(&mut self.events);
        self.transport.poll(&mut events)?;
        let has_progressed = !events.is_empty();
        for event in events.drain(..) {
            match event {
                Event::Sent { id } => {
                    let done = self.in_flight.complete(id);
                    let done = done.map_err(|reason| FabricError::Nic { reason })?;
                    if let Some((peer, kind, bytes)) = done {
                        self.ready.mark(peer);
                        let state = &mut self.peers[usize::from(peer)];
                        state.in_flight -= 1;
                        state.bytes_in_flight -= u64::from(bytes);
                        match kind {
                            WriteKind::Put => (),
                            WriteKind::Credit => state.receive_window.credit_completed(),
                            WriteKind::Close => state.close_acked = true,
                        }
                    } else if let Some(state) =
                        (self.peers.iter_mut()).find(|peer| peer.close_id == Some(id))
                    {
                        state.close_acked = true; // A closed peer's messages count as completed early.
                    }
                }
                Event::Arrived { peer, immediate } => {
                    self.ready.mark(peer.0);
                    self.on_arrival(peer, immediate)?;
                }
                Event::Lost { peer, reason } => {
                    self.ready.mark(peer.0);
                    self.on_lost(peer, reason)?;
                }
                Event::Dropped { reason } => {
                    self.counters.dropped_writes.add(1);
                    self.counters.first_dropped.get_or_init(|| reason);
                }
            }
        }
        self.events = events;
        Ok(has_progressed)
    }

    fn peer_mut(&mut self, peer: PeerId) -> Result<&mut PeerState, FabricError> {
        let count = self.peers.len();
        self.peers
            .get_mut(usize::from(peer.0))
            .ok_or_else(|| FabricError::Nic {
                reason: format!(
                    "the NIC reported an event of peer {}, but there are {count} peers",
                    peer.0
                ),
            })
    }

    fn on_arrival(&mut self, id: PeerId, immediate: u32) -> Result<(), FabricError> {
        let state = self.peer_mut(id)?;
        let meaning = Immediate::decode(immediate);
        if let Ok(Immediate::Close { lost_rank }) = meaning {
            return self.on_close(id, lost_rank);
        }
        let outcome = meaning.and_then(|meaning| match meaning {
            Immediate::Credit { delivered } => {
                state.send_window.receive_credit(delivered).map(|()| None)
            }
            Immediate::Put { channel, sequence } => {
                let window = &mut state.receive_window;
                let before = window.delivered();
                let count = window.receive_put(channel, sequence)?;
                let new = window.delivered().wrapping_sub(before) % CREDIT_MODULUS;
                Ok(count.map(|count| (channel, count, new)))
            }
            Immediate::Close { .. } => Ok(None),
        });
        let peer = &state.peer;
        let raised = outcome.map_err(|reason| FabricError::Protocol {
            peer: peer.clone(),
            reason,
        })?;
        if let Some((channel, count, new)) = raised {
            self.counters.arrivals.add(new.into());
            self.arrivals.raise(id, channel, count);
        }
        Ok(())
    }

    /// Handles a close of the peer. Writes that are in flight to the peer may still complete.
    fn on_close(&mut self, id: PeerId, lost_rank: Option<u32>) -> Result<(), FabricError> {
        let is_closing = self.closing.is_some();
        let state = self.peer_mut(id)?;
        state.peer_closed = true;
        if state.message.take().is_some() {
            state.close_sent = false; // If the message was the close, it has to be sent again.
        }
        if let (Some(lost_rank), false) = (lost_rank, is_closing) {
            let peer = state.peer.clone();
            return Err(FabricError::PeerAborted { peer, lost_rank });
        }
        if !state.queue.is_empty() {
            let peer = state.peer.clone();
            return Err(FabricError::PeerClosed { peer });
        }
        self.in_flight.complete_messages(id.0);
        Ok(())
    }

    /// Handles the loss of a peer.
    ///
    /// The loss is no error if either side has sent a close and no put to the peer is in flight.
    fn on_lost(&mut self, id: PeerId, reason: String) -> Result<(), FabricError> {
        let (is_closing, has_puts) = (self.closing.is_some(), self.in_flight.has_pending_put(id.0));
        let state = self.peer_mut(id)?;
        state.close_acked = true; // The peer cannot receive the close any more.
        let peer = state.peer.clone();
        match state.peer_closed {
            true if has_puts => Err(FabricError::PeerClosed { peer }),
            false if has_puts || !is_closing => Err(FabricError::Lost { peer, reason }),
            _ => self.on_close(id, None),
        }
    }
}
