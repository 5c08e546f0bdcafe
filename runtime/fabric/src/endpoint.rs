//! [`Endpoint`]: one GPU's connection to the fabric, as a state machine.
//!
//! The proxy thread steps it in production. Tests step it under a virtual clock.

use crate::arrivals::Arrivals;
use crate::command_check::{self, Target};
use crate::command_ring::{CommandConsumer, HostRing};
use crate::config::EndpointConfig;
use crate::error::FabricError;
use crate::in_flight::InFlightWrites;
use crate::peer_state::{CloseReason, PeerState};
use crate::ready_peers::ReadyPeers;
use crate::stats::{Counters, EndpointStats, StatsReader};
use crate::transport::{Event, Limits, Transport};
use mkernel_spec::fabric::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The number of puts after which a step takes no more commands from the ring. A command can have many puts.
const PUTS_PER_STEP: usize = 128;
/// The most puts to one peer that wait outside the ring, so that puts to other peers can overtake them. Beyond this
/// limit the ring fills.
const QUEUE_PER_PEER: usize = 512;
/// The most writes that are tracked: writes that have not completed, and writes that completed before an older write.
const MAX_IN_FLIGHT: usize = 1 << 16;

/// A connected endpoint.
pub struct Endpoint {
    transport: Box<dyn Transport>,
    deadline: Duration,
    byte_window: u64,
    limits: Limits,
    /// The sizes of the regions in bytes.
    regions: Vec<u64>,
    ring: CommandConsumer,
    /// A command that was taken from the ring while the queue of its peer was full.
    blocked: Option<(u32, Command)>,
    arrivals: Box<dyn Arrivals>,
    peers: Vec<PeerState>,
    /// Peers with a queue, and peers that have sent something that may need an answer.
    ready: ReadyPeers,
    in_flight: InFlightWrites,
    events: Vec<Event>,
    counters: Arc<Counters>,
    closing: Option<CloseReason>,
}

impl Endpoint {
    /// Creates an endpoint over a connected transport.
    pub(crate) fn new(
        transport: Box<dyn Transport>,
        config: &EndpointConfig,
        ring: Arc<HostRing>,
        arrivals: Box<dyn Arrivals>,
        peers: Vec<PeerState>,
    ) -> Self {
        let counters = Arc::new(Counters::new(transport.rail_counters()));
        Self {
            limits: transport.limits(),
            transport,
            deadline: config.deadline,
            byte_window: config.byte_window,
            regions: Vec::new(),
            ring: CommandConsumer::new(ring),
            blocked: None,
            arrivals,
            ready: ReadyPeers::new(peers.len()),
            peers,
            in_flight: InFlightWrites::new(),
            events: Vec::new(),
            counters,
            closing: None,
        }
    }

    /// Does the work that is available, without waiting. Returns whether there was any work.
    ///
    /// # Errors
    ///
    /// Returns the error that ends the fabric. The caller must pass the error to [`abort_kernels`](Self::abort_kernels) and
    /// must not step the endpoint again, except to announce a loss.
    pub fn step(&mut self, now: Instant) -> Result<bool, FabricError> {
        // Slots are released before anything that takes longer.
        let mut has_progressed = self.take_commands(now)?;
        self.ring.publish(0);
        for _ in 0..self.ready.len() {
            let Some(peer) = self.ready.next() else {
                break;
            };
            let has_sent = self.send(peer.into(), now)?;
            if has_sent || self.peers[usize::from(peer)].has_more() {
                self.ready.mark(peer);
            }
            has_progressed |= has_sent;
        }
        has_progressed |= self.process_events()?;
        self.ring.publish(self.in_flight.retire());
        self.check_deadline(now)?;
        Ok(has_progressed)
    }

    /// Returns the limits of the transport.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns the statistics of the endpoint so far.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        StatsReader(Arc::clone(&self.counters)).read()
    }

    /// Returns the counters, to be read by other threads.
    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Sets the deadline of puts, including puts under way.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    /// Returns the number of puts that have not completed. The ring may hold more.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.in_flight.puts()
    }

    /// Returns whether no write was in flight at the end of the last step.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.in_flight.len() == 0 && self.blocked.is_none()
    }

    /// Starts the close handshake of an endpoint that is [idle](Self::is_idle) and whose kernels have finished.
    ///
    /// Later steps take no more commands. Once a peer has received the close and has no more puts for this endpoint, the peer
    /// no longer depends on this endpoint, however the endpoint ends.
    pub fn close(&mut self) {
        self.closing = Some(CloseReason { lost_rank: None });
        self.ready.mark_all();
    }

    /// Sends a close that names the lost rank, whatever is in flight. Peers abort too and forward the number of the
    /// rank.
    ///
    /// Errors of later steps may be ignored.
    pub fn close_after_loss(&mut self, lost_rank: u32) {
        self.closing = Some(CloseReason {
            lost_rank: Some(lost_rank),
        });
        self.blocked = None;
        self.peers.iter_mut().for_each(|peer| peer.queue.clear());
        self.ready.mark_all();
    }

    /// Returns whether the close handshake is complete.
    ///
    /// The handshake is complete when every peer has received the close or is gone, and after [`close`](Self::close) also when
    /// [no peer needs](Self::is_needed) this endpoint. The close of an endpoint that goes earlier may be lost with its queue
    /// pairs.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let has_lost = matches!(self.closing, Some(CloseReason { lost_rank: Some(_) }));
        self.closing.is_some()
            && (has_lost || !self.is_needed())
            && self.peers.iter().all(|peer| peer.close_acked)
    }

    /// Returns whether a write is in flight, or a peer that is not gone has not closed yet and may have puts for this endpoint.
    #[must_use]
    pub fn is_needed(&self) -> bool {
        self.in_flight.len() > 0 || self.peers.iter().any(|peer| !peer.peer_closed)
    }

    /// Makes kernels abort. Returns the number of the lost rank if the error is about a loss.
    pub fn abort_kernels(&mut self, error: &FabricError) -> Option<u32> {
        self.arrivals.abort(error)
    }

    /// Moves commands from the ring to the queues of their peers until one queue is full.
    fn take_commands(&mut self, now: Instant) -> Result<bool, FabricError> {
        if self.closing.is_some() {
            return Ok(false);
        }
        let mut taken = 0;
        while taken < PUTS_PER_STEP {
            if self.in_flight.len() >= MAX_IN_FLIGHT {
                return Ok(taken > 0);
            }
            let next = match self.blocked.take() {
                Some(blocked) => Some(blocked),
                None => self.ring.take()?,
            };
            let Some((index, command)) = next else {
                return Ok(taken > 0);
            };
            command_check::check_peers(index, &command, self.peers.len())?;
            for put in command_check::puts(&command, self.peers.len()) {
                self.check_put(index, &put)?;
                let state = &self.peers[usize::from(put.peer)];
                if state.peer_closed {
                    let peer = state.peer.clone();
                    return Err(FabricError::PeerClosed { peer });
                }
                if state.queue.len() >= QUEUE_PER_PEER {
                    self.blocked = Some((index, command));
                    return Ok(taken > 0);
                }
            }
            self.counters.commands.add(1);
            let mut puts = command_check::puts(&command, self.peers.len()).peekable();
            while let Some(put) = puts.next() {
                let ends_command = puts.peek().is_none();
                let id = self
                    .in_flight
                    .add_put(put.peer, put.bytes, ends_command, now);
                self.peers[usize::from(put.peer)].enqueue(&put, id);
                self.ready.mark(put.peer);
                taken += 1;
            }
        }
        Ok(true)
    }

    fn check_put(&self, index: u32, put: &Command) -> Result<(), FabricError> {
        let peer = &self.peers[usize::from(put.peer)];
        let target = Target {
            peer: &peer.peer,
            channels: peer.channels,
            regions: &peer.regions,
        };
        command_check::check_put(index, put, &self.limits, &self.regions, &target)
    }

    /// Posts to the transport: messages first, then as many puts as the peer's credits allow.
    fn send(&mut self, at: usize, now: Instant) -> Result<bool, FabricError> {
        let state = &mut self.peers[at];
        let peer_closed = state.peer_closed;
        if peer_closed && state.close_sent && state.message.is_none() {
            return Ok(false);
        }
        let has_puts = peer_closed && self.in_flight.has_pending_put(at as u16);
        if state.message.is_none()
            && let Some((immediate, kind)) = state.next_message(self.closing, has_puts)
        {
            let id = self.in_flight.add_message(at as u16, kind, now);
            state.message = Some(state.message_write(immediate, id));
        }
        let room = self.limits.writes.saturating_sub(state.in_flight);
        if room == 0 {
            return Ok(false);
        }
        if let Some(message) = state.message {
            if self.transport.post(&[message])? == 0 {
                return Ok(false);
            }
            state.message = None;
            state.in_flight += 1;
            if state.close_sent {
                state.close_id = Some(message.id);
            }
            self.in_flight.mark_posted(message.id);
            if peer_closed {
                // The peer may be gone before the completion of this message arrives.
                self.in_flight.complete_messages(at as u16);
            }
            return Ok(true); // Puts follow in the next step.
        }
        if state.begins_to_wait() {
            self.counters.credit_stalls.add(1);
        }
        let (front, _) = state.queue.as_slices();
        let most = room.min(state.send_window.available());
        let puts = state.puts_in_window(most as usize, self.byte_window);
        if puts == 0 {
            return Ok(false);
        }
        let accepted = self.transport.post(&front[..puts])?.min(puts);
        let mut bytes = 0;
        for write in state.queue.drain(..accepted) {
            self.in_flight.mark_posted(write.id);
            bytes += u64::from(write.bytes);
        }
        self.counters.puts.add(accepted as u64);
        self.counters.put_bytes.add(bytes);
        state.in_flight += accepted as u32;
        state.bytes_in_flight += bytes;
        state.send_window.record_posted(accepted as u32);
        Ok(accepted > 0)
    }

    fn check_deadline(&self, now: Instant) -> Result<(), FabricError> {
        let Some((peer, is_posted, since)) = self.in_flight.oldest() else {
            return Ok(());
        };
        let waited = now.saturating_duration_since(since);
        if waited < self.deadline {
            return Ok(());
        }
        Err(FabricError::Timeout {
            peer: self.peers[usize::from(peer)].peer.clone(),
            awaited: if is_posted {
                "the completion of a put"
            } else {
                "credits for a put"
            },
            waited,
            limit: self.deadline,
        })
    }
}

mod events;
mod regions;
#[cfg(test)]
mod tests;
