//! One GPU's end of the fabric, as a state machine: the proxy thread steps it, tests do so under a clock of their own.

use crate::arrivals::Arrivals;
use crate::error::{FabricError, Peer};
use crate::flights::Flights;
use crate::immediate::Immediate;
use crate::offer::Offer;
use crate::peer::{Incoming, Outgoing};
use crate::ring::{Consumer, Ring};
use crate::setup::Config;
use crate::transport::{Event, Limits, PeerId, Place, RegionId, Transport, Write};
use mkernel_spec::fabric::{COMMAND_PUT, Command};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Commands that a step takes from the ring.
const COMMANDS_PER_STEP: usize = 128;
/// Puts to one peer that wait outside of the ring, so that others get through. Then the ring fills.
const QUEUE_PER_PEER: usize = 512;
/// Writes that have left or wait while an older one has not left.
const MAX_FLIGHTS: usize = 1 << 16;

/// What an endpoint knows of a peer.
pub(crate) struct PeerState {
    peer: Peer,
    /// Sizes, and number of channels, that the peer told.
    regions: Vec<u64>,
    channels: u16,
    outgoing: Outgoing,
    incoming: Incoming,
    /// Puts that wait for credits or for the transport.
    queue: VecDeque<Write>,
    /// A credit message that waits for the transport.
    credit: Option<Write>,
    /// Writes posted, not known to have left.
    in_flight: u32,
}

impl PeerState {
    /// Before the first put. `receives` are those that this endpoint keeps.
    pub(crate) fn new(peer: &Peer, offer: Offer, receives: u32, config: &Config) -> Self {
        let first = config.first_count;
        Self {
            peer: peer.clone(),
            outgoing: Outgoing::new(offer.receives, offer.channels, first),
            incoming: Incoming::new(receives, config.channels, first),
            regions: offer.regions,
            channels: offer.channels,
            queue: VecDeque::new(),
            credit: None,
            in_flight: 0,
        }
    }
}

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
    flights: Flights,
    events: Vec<Event>,
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
            peers,
            flights: Flights::new(),
            events: Vec::new(),
        }
    }

    /// Does what there is to do, without waiting. Whether there was anything.
    ///
    /// # Errors
    ///
    /// Whatever ends the fabric. It is to be told by [`abort`](Self::abort), and no step taken after it.
    pub fn step(&mut self, now: Instant) -> Result<bool, FabricError> {
        let mut has_moved = self.hear()?;
        has_moved |= self.take_commands(now)?;
        for peer in 0..self.peers.len() {
            has_moved |= self.send(peer, now)?;
        }
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

    /// Tells kernels that all is over.
    pub fn abort(&mut self, error: &FabricError) {
        self.arrivals.abort(error);
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
                    if let Some((peer, is_put)) = done {
                        let state = &mut self.peers[usize::from(peer)];
                        state.in_flight -= 1;
                        if !is_put {
                            state.incoming.credit_left();
                        }
                    }
                }
                Event::Arrived { peer, immediate } => self.arrived(peer, immediate)?,
                Event::Lost { peer, reason } => {
                    let peer = self.known(peer)?.peer.clone();
                    return Err(FabricError::Lost { peer, reason });
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
        let outcome = match Immediate::decode(immediate) {
            Immediate::Credit { returned } => state.outgoing.give_back(returned).map(|()| None),
            Immediate::Put { channel, sequence } => {
                let count = state.incoming.arrived(channel, sequence);
                count.map(|count| count.map(|count| (channel, count)))
            }
        };
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

    /// From the ring to the queues of peers, until one of these is full.
    fn take_commands(&mut self, now: Instant) -> Result<bool, FabricError> {
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
            if state.queue.len() >= QUEUE_PER_PEER {
                self.blocked = Some((index, command));
                return Ok(taken > 0);
            }
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
                id: self.flights.add(command.peer, true, now),
            });
        }
        Ok(true)
    }

    /// Whether a command can be carried out at all.
    fn check(&self, index: u32, command: &Command) -> Result<(), FabricError> {
        let fault = |field, value: u64, limit: String| FabricError::Command {
            index,
            field,
            value,
            limit,
        };
        if command.kind != COMMAND_PUT {
            let limit = format!("a put is {COMMAND_PUT}, and there is no other");
            return Err(fault("kind", command.kind.into(), limit));
        }
        let Some(peer) = self.peers.get(usize::from(command.peer)) else {
            let limit = format!("there are {} peers", self.peers.len());
            return Err(fault("peer", command.peer.into(), limit));
        };
        if command.channel >= peer.channels {
            let limit = format!("{} has {} channels", peer.peer, peer.channels);
            return Err(fault("channel", command.channel.into(), limit));
        }
        let bytes = command.bytes;
        if bytes > self.limits.write_bytes {
            let limit = format!("a write has at most {} bytes", self.limits.write_bytes);
            return Err(fault("bytes", bytes.into(), limit));
        }
        if bytes == 0 {
            return Ok(());
        }
        let places = [
            (
                "source_region",
                "source_offset",
                command.source_region,
                command.source_offset,
                &self.regions,
            ),
            (
                "target_region",
                "target_offset",
                command.target_region,
                command.target_offset,
                &peer.regions,
            ),
        ];
        for (region_field, offset_field, region, offset, regions) in places {
            let Some(size) = regions.get(usize::from(region)) else {
                let limit = format!("there are {} regions", regions.len());
                return Err(fault(region_field, region.into(), limit));
            };
            if offset
                .checked_add(bytes.into())
                .is_none_or(|end| end > *size)
            {
                let limit = format!("region {region} has {size} bytes, and the put {bytes}");
                return Err(fault(offset_field, offset, limit));
            }
        }
        Ok(())
    }

    /// To the transport: credits first, then puts as far as the peer's credits go.
    fn send(&mut self, at: usize, now: Instant) -> Result<bool, FabricError> {
        let state = &mut self.peers[at];
        if state.credit.is_none()
            && let Some(returned) = state.incoming.credit()
        {
            let nowhere = Place {
                region: RegionId(0),
                offset: 0,
            };
            state.credit = Some(Write {
                peer: state.peer.id,
                source: nowhere,
                target: nowhere,
                bytes: 0,
                immediate: Immediate::Credit { returned }.encode(),
                id: self.flights.add(at as u16, false, now),
            });
        }
        let room = self.limits.writes.saturating_sub(state.in_flight);
        if room == 0 {
            return Ok(false);
        }
        if let Some(credit) = state.credit {
            if self.transport.post(&[credit])? == 0 {
                return Ok(false);
            }
            state.credit = None;
            state.in_flight += 1;
            self.flights.posted(credit.id);
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
