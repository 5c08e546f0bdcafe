//! One GPU's end of the fabric, as a state machine: the proxy thread steps it, tests do so under a clock of their own.

use crate::arrivals::Arrivals;
use crate::command::{self, Target};
use crate::counterpart::{Leave, PeerState};
use crate::error::FabricError;
use crate::flights::{Cargo, Flights};
use crate::immediate::Immediate;
use crate::peer_id::PeerId;
use crate::ring::{Consumer, Ring};
use crate::transport::{Event, Limits, Place, RegionId, Transport, Write};
use crate::turns::Turns;
use mkernel_spec::fabric::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Commands that a step takes from the ring.
const COMMANDS_PER_STEP: usize = 128;
/// Puts to one peer that wait outside of the ring, so that others get through. Then the ring fills.
const QUEUE_PER_PEER: usize = 512;
/// Writes that have left or wait while an older one has not left.
const MAX_FLIGHTS: usize = 1 << 16;

/// An endpoint that is connected.
pub struct Endpoint {
    transport: Box<dyn Transport>,
    deadline: Duration,
    limits: Limits,
    regions: Vec<u64>,
    ring: Consumer,
    /// A command whose peer's queue is full.
    blocked: Option<(u32, Command)>,
    arrivals: Box<dyn Arrivals>,
    peers: Vec<PeerState>,
    /// Peers with a queue, and those of which something has come that may have to be answered.
    turns: Turns,
    flights: Flights,
    events: Vec<Event>,
    leave: Option<Leave>,
}

impl Endpoint {
    /// Over a connected transport.
    pub(crate) fn new(
        transport: Box<dyn Transport>,
        deadline: Duration,
        regions: Vec<u64>,
        ring: Arc<Ring>,
        arrivals: Box<dyn Arrivals>,
        peers: Vec<PeerState>,
    ) -> Self {
        Self {
            limits: transport.limits(),
            transport,
            deadline,
            regions,
            ring: Consumer::new(ring),
            blocked: None,
            arrivals,
            turns: Turns::new(peers.len()),
            peers,
            flights: Flights::new(),
            events: Vec::new(),
            leave: None,
        }
    }

    /// Does what there is to do, without waiting. Whether there was anything.
    ///
    /// # Errors
    ///
    /// Whatever ends the fabric. It is to be told by [`abort`](Self::abort), and no step taken after it.
    pub fn step(&mut self, now: Instant) -> Result<bool, FabricError> {
        // Slots are given back before anything that takes longer.
        let mut has_moved = self.take_commands(now)?;
        self.ring.publish(0);
        for _ in 0..self.turns.len() {
            let Some(peer) = self.turns.take() else {
                break;
            };
            let has_sent = self.send(peer.into(), now)?;
            if has_sent || self.peers[usize::from(peer)].has_more() {
                self.turns.add(peer);
            }
            has_moved |= has_sent;
        }
        has_moved |= self.hear()?;
        self.ring.publish(self.flights.leave());
        self.check_deadline(now)?;
        Ok(has_moved)
    }

    /// Puts that are not known to have left; more may be in the ring.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.flights.puts()
    }

    /// Whether nothing is on its way from here, as far as the last step saw.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.flights.len() == 0 && self.blocked.is_none()
    }

    /// Begins to say goodbye: for an endpoint that is [idle](Self::is_idle) and whose kernels are done. Its steps take no
    /// more commands. Peers that have nothing more for it are then free of it, however it ends.
    pub fn leave(&mut self) {
        self.leave = Some(Leave { lost: None });
        self.turns.add_all();
    }

    /// Begins to say goodbye because `lost` is lost, with whatever is on its way. Peers give up too, and say the same. Errors
    /// of steps are of no interest any more.
    pub fn give_up(&mut self, lost: u32) {
        self.leave = Some(Leave { lost: Some(lost) });
        self.blocked = None;
        self.peers.iter_mut().for_each(|peer| peer.queue.clear());
        self.turns.add_all();
    }

    /// Whether all is said: every peer has said goodbye, too, or is gone. So none of them still waits for a completion. Of
    /// an endpoint that gives up: whether every peer has heard so.
    #[must_use]
    pub fn has_left(&self) -> bool {
        let mut peers = self.peers.iter();
        match self.leave {
            None => false,
            Some(Leave { lost: None }) => {
                self.flights.len() == 0 && peers.all(|peer| peer.has_ended)
            }
            Some(Leave { lost: Some(_) }) => peers.all(|peer| peer.has_ended || peer.has_heard),
        }
    }

    /// Tells kernels that all is over. Who is lost, if the error is about that.
    pub fn abort(&mut self, error: &FabricError) -> Option<u32> {
        self.arrivals.abort(error)
    }

    /// Takes in what the transport says.
    fn hear(&mut self) -> Result<bool, FabricError> {
        let mut events = std::mem::take(&mut self.events);
        self.transport.poll(&mut events)?;
        let has_moved = !events.is_empty();
        for event in events.drain(..) {
            match event {
                Event::Sent { id } => {
                    let done = self.flights.done(id);
                    let done = done.map_err(|reason| FabricError::Nic { reason })?;
                    if let Some((peer, cargo)) = done {
                        self.turns.add(peer);
                        let state = &mut self.peers[usize::from(peer)];
                        state.in_flight -= 1;
                        match cargo {
                            Cargo::Put => (),
                            Cargo::Credit => state.incoming.credit_left(),
                            Cargo::Goodbye => state.has_heard = true,
                        }
                    }
                }
                Event::Arrived { peer, immediate } => {
                    self.turns.add(peer.0);
                    self.arrived(peer, immediate)?;
                }
                Event::Lost { peer, reason } => {
                    self.turns.add(peer.0);
                    self.lost(peer, reason)?;
                }
            }
        }
        self.events = events;
        Ok(has_moved)
    }

    fn known(&mut self, peer: PeerId) -> Result<&mut PeerState, FabricError> {
        let count = self.peers.len();
        self.peers
            .get_mut(usize::from(peer.0))
            .ok_or_else(|| FabricError::Nic {
                reason: format!("an event of peer {}, but there are {count}", peer.0),
            })
    }

    fn arrived(&mut self, id: PeerId, immediate: u32) -> Result<(), FabricError> {
        let state = self.known(id)?;
        let meaning = Immediate::decode(immediate);
        if let Ok(Immediate::Goodbye { lost }) = meaning {
            return self.ended(id, lost);
        }
        let outcome = meaning.and_then(|meaning| match meaning {
            Immediate::Credit { returned } => state.outgoing.give_back(returned).map(|()| None),
            Immediate::Put { channel, sequence } => {
                let count = state.incoming.arrived(channel, sequence)?;
                Ok(count.map(|count| (channel, count)))
            }
            Immediate::Goodbye { .. } => Ok(None),
        });
        let peer = &state.peer;
        let raised = outcome.map_err(|reason| FabricError::Protocol {
            peer: peer.clone(),
            reason,
        })?;
        if let Some((channel, count)) = raised {
            self.arrivals.raise(id, channel, count);
        }
        Ok(())
    }

    /// A peer has said goodbye. What is on its way to it may still complete.
    fn ended(&mut self, id: PeerId, lost: Option<u32>) -> Result<(), FabricError> {
        let is_leaving = self.leave.is_some();
        let state = self.known(id)?;
        state.has_ended = true;
        if state.message.take().is_some() {
            state.was_told = false; // if that was the goodbye, it is to be said again
        }
        if let (Some(lost), false) = (lost, is_leaving) {
            let peer = state.peer.clone();
            return Err(FabricError::GaveUp { peer, lost });
        }
        if !state.queue.is_empty() {
            let peer = state.peer.clone();
            return Err(FabricError::Ended { peer });
        }
        self.flights.forgo_messages(id.0);
        Ok(())
    }

    /// A peer is gone. That is no loss if it has said so, or this endpoint has, and nothing is on its way to it.
    fn lost(&mut self, id: PeerId, reason: String) -> Result<(), FabricError> {
        let (is_leaving, has_puts) = (self.leave.is_some(), self.flights.has_put_to(id.0));
        let state = self.known(id)?;
        state.has_heard = true; // it will hear nothing more
        let peer = state.peer.clone();
        match state.has_ended {
            true if has_puts => Err(FabricError::Ended { peer }),
            false if has_puts || !is_leaving => Err(FabricError::Lost { peer, reason }),
            _ => self.ended(id, None),
        }
    }

    /// From the ring to the queues of peers, until one of these is full.
    fn take_commands(&mut self, now: Instant) -> Result<bool, FabricError> {
        if self.leave.is_some() {
            return Ok(false);
        }
        for taken in 0..COMMANDS_PER_STEP {
            if self.flights.len() >= MAX_FLIGHTS {
                return Ok(taken > 0);
            }
            let next = match self.blocked.take() {
                Some(blocked) => Some(blocked),
                None => self.ring.take()?,
            };
            let Some((index, command)) = next else {
                return Ok(taken > 0);
            };
            self.check(index, &command)?;
            let state = &mut self.peers[usize::from(command.peer)];
            if state.has_ended {
                let peer = state.peer.clone();
                return Err(FabricError::Ended { peer });
            }
            if state.queue.len() >= QUEUE_PER_PEER {
                self.blocked = Some((index, command));
                return Ok(taken > 0);
            }
            self.turns.add(command.peer);
            let sequence = state.outgoing.number(command.channel);
            state.queue.push_back(Write {
                peer: PeerId(command.peer),
                source: Place {
                    region: RegionId(command.source_region),
                    offset: command.source_offset,
                },
                target: Place {
                    region: RegionId(command.target_region),
                    offset: command.target_offset,
                },
                bytes: command.bytes,
                immediate: Immediate::Put {
                    channel: command.channel,
                    sequence,
                }
                .encode(),
                id: self.flights.add(command.peer, Cargo::Put, now),
            });
        }
        Ok(true)
    }

    fn check(&self, index: u32, command: &Command) -> Result<(), FabricError> {
        let peer = self.peers.get(usize::from(command.peer));
        let target = peer.map(|peer| Target {
            peer: &peer.peer,
            channels: peer.channels,
            regions: &peer.regions,
        });
        let (limits, peers) = (&self.limits, self.peers.len());
        command::check(index, command, limits, &self.regions, target, peers)
    }

    /// To the transport: messages first, then puts as far as the peer's credits go.
    fn send(&mut self, at: usize, now: Instant) -> Result<bool, FabricError> {
        let state = &mut self.peers[at];
        let has_ended = state.has_ended;
        if has_ended && state.was_told && state.message.is_none() {
            return Ok(false);
        }
        let has_puts = has_ended && self.flights.has_put_to(at as u16);
        if state.message.is_none()
            && let Some((immediate, cargo)) = state.news(self.leave, has_puts)
        {
            let nowhere = Place {
                region: RegionId(0),
                offset: 0,
            };
            state.message = Some(Write {
                peer: state.peer.id,
                source: nowhere,
                target: nowhere,
                bytes: 0,
                immediate: immediate.encode(),
                id: self.flights.add(at as u16, cargo, now),
            });
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
            self.flights.posted(message.id);
            if has_ended {
                // The peer may be gone before its completion comes.
                self.flights.forgo_messages(at as u16);
            }
            return Ok(true); // puts in the next step
        }
        let (front, _) = state.queue.as_slices();
        let puts = front
            .len()
            .min(room.min(state.outgoing.available()) as usize);
        if puts == 0 {
            return Ok(false);
        }
        let accepted = self.transport.post(&front[..puts])?.min(puts);
        for write in state.queue.drain(..accepted) {
            self.flights.posted(write.id);
        }
        state.in_flight += accepted as u32;
        state.outgoing.posted(accepted as u32);
        Ok(accepted > 0)
    }

    fn check_deadline(&self, now: Instant) -> Result<(), FabricError> {
        let Some((peer, is_posted, since)) = self.flights.oldest() else {
            return Ok(());
        };
        let waited = now.saturating_duration_since(since);
        if waited < self.deadline {
            return Ok(());
        }
        Err(FabricError::Silent {
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

#[cfg(test)]
mod tests;
