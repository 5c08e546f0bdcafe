//! A NIC in software: bandwidth, latency and faults that can be set, for tests and for several nodes on one host.
//!
//! The sender's NIC holds a write back until it is due, reads its bytes only then, and puts them on the [`Wire`]; what a
//! peer finds on its wire has arrived. The completion comes with the peer's acknowledgement, a latency later. So time is
//! that of the sender's model alone: what copies take counts only where it is longer.

mod clock;
pub mod frame;
mod model;
mod mover;
mod wire;

pub use clock::{Clock, VirtualClock};
pub use frame::MAX_WRITE_BYTES;
pub use model::{Failure, Faults, Nic};
pub use mover::{HostMover, Mover};
pub use wire::{Pipe, Wire, pipe};

use crate::error::FabricError;
use crate::transport::{
    Event, Limits, MAX_REGIONS, Memory, PeerId, PeerOffer, RegionId, Transport, Write,
};
use frame::{Frame, WriteHead};
use model::Timing;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

const OFFER: &[u8] = b"MKEM1";

/// An endpoint's NICs in software.
pub struct Emulated {
    nic: Nic,
    faults: Faults,
    timing: Timing,
    clock: Clock,
    mover: Box<dyn Mover>,
    regions: Vec<Memory>,
    links: Vec<Link>,
    /// By ticket: writes on their way. Low half of a ticket: where; high half: the how-manieth there.
    flights: Vec<(u32, Option<Flight>)>,
    free: Vec<u32>,
    due: BinaryHeap<Reverse<(u64, u64, Due)>>,
    posted: u64,
    scheduled: u64,
}

#[derive(Clone, Copy)]
struct Flight {
    write: Write,
    is_acked: bool,
}

/// What is to be done at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Depart { ticket: u64 },
    Complete { ticket: u64 },
    SentAgain { id: u64 },
    ArrivedAgain { peer: PeerId, immediate: u32 },
}

struct Link {
    wire: Box<dyn Wire>,
    is_lost: bool,
    in_flight: u32,
    /// Bytes for the wire, from `sent` on.
    output: Vec<u8>,
    sent: usize,
    /// Bytes of the wire that are no whole frame yet.
    input: Vec<u8>,
}

impl Emulated {
    /// An endpoint with a wire per peer, in the order of the table of peers.
    ///
    /// # Errors
    ///
    /// [`FabricError::Config`] for figures that cannot be.
    pub fn new(
        nic: Nic,
        faults: Faults,
        clock: Clock,
        mover: Box<dyn Mover>,
        wires: Vec<Box<dyn Wire>>,
    ) -> Result<Self, FabricError> {
        nic.check()?;
        let link = |wire| Link {
            wire,
            is_lost: false,
            in_flight: 0,
            output: Vec::new(),
            sent: 0,
            input: Vec::new(),
        };
        Ok(Self {
            timing: Timing::new(&nic, &faults),
            nic,
            faults,
            clock,
            mover,
            regions: Vec::new(),
            links: wires.into_iter().map(link).collect(),
            flights: Vec::new(),
            free: Vec::new(),
            due: BinaryHeap::new(),
            posted: 0,
            scheduled: 0,
        })
    }

    fn schedule(&mut self, at_ns: u64, due: Due) {
        self.scheduled += 1;
        self.due.push(Reverse((at_ns, self.scheduled, due)));
    }

    /// Whether nothing comes or goes any more.
    fn is_silent(&self) -> Result<bool, FabricError> {
        match self.faults.failure {
            Some(Failure::Nic { after_writes }) if self.posted >= after_writes => {
                Err(FabricError::Nic {
                    reason: format!("it was set to fail after {after_writes} writes"),
                })
            }
            Some(Failure::Silence { after_writes }) => Ok(self.posted >= after_writes),
            _ => Ok(false),
        }
    }

    fn take_off(&mut self, write: Write) -> u64 {
        let flight = Flight {
            write,
            is_acked: false,
        };
        let at = self.free.pop().unwrap_or_else(|| {
            self.flights.push((0, None));
            self.flights.len() as u32 - 1
        });
        let (turn, place) = &mut self.flights[at as usize];
        *turn = turn.wrapping_add(1);
        *place = Some(flight);
        u64::from(*turn) << 32 | u64::from(at)
    }

    fn flight(&mut self, ticket: u64) -> Option<&mut Flight> {
        let (turn, flight) = self.flights.get_mut(ticket as u32 as usize)?;
        flight.as_mut().filter(|_| u64::from(*turn) == ticket >> 32)
    }

    /// Does what is due by now.
    fn catch_up(&mut self, events: &mut Vec<Event>) -> Result<(), FabricError> {
        let now = self.clock.now_ns();
        while let Some(Reverse((at, _, due))) = self.due.peek().copied()
            && at <= now
        {
            self.due.pop();
            match due {
                Due::Depart { ticket } => self.depart(ticket)?,
                Due::Complete { ticket } => self.complete(ticket, now, events),
                Due::SentAgain { id } => events.push(Event::Sent { id }),
                Due::ArrivedAgain { peer, immediate } => {
                    events.push(Event::Arrived { peer, immediate });
                }
            }
        }
        Ok(())
    }

    /// Reads a write's bytes and puts them on the wire.
    fn depart(&mut self, ticket: u64) -> Result<(), FabricError> {
        let Some(&mut Flight { write, .. }) = self.flight(ticket) else {
            return Ok(());
        };
        let link = &mut self.links[usize::from(write.peer.0)];
        if link.is_lost {
            return Ok(());
        }
        let head = WriteHead {
            ticket,
            region: write.target.region.0,
            offset: write.target.offset,
            bytes: write.bytes,
            immediate: write.immediate,
        };
        let (mover, regions) = (&mut self.mover, &self.regions);
        let payload = |out: &mut Vec<u8>| {
            if write.bytes == 0 {
                return Ok(());
            }
            let region = &regions[usize::from(write.source.region.0)];
            mover.take(region, write.source.offset, write.bytes, out)
        };
        frame::put_write(&mut link.output, head, payload)
            .map_err(|reason| FabricError::Nic { reason })
    }

    fn complete(&mut self, ticket: u64, now: u64, events: &mut Vec<Event>) {
        let at = ticket as u32;
        let Some(Flight { write, .. }) = self.flights[at as usize].1.take() else {
            return;
        };
        self.free.push(at);
        self.links[usize::from(write.peer.0)].in_flight -= 1;
        events.push(Event::Sent { id: write.id });
        if self.timing.random.chance(self.faults.duplicates) {
            let later = now.saturating_add(self.timing.way_ns());
            self.schedule(later, Due::SentAgain { id: write.id });
        }
    }

    /// Whatever has come from a peer; an error is about the peer.
    fn listen(&mut self, peer: usize, events: &mut Vec<Event>) -> Result<(), String> {
        let link = &mut self.links[peer];
        let open = link.wire.receive(&mut link.input);
        let input = std::mem::take(&mut link.input);
        let (mut used, mut tickets) = (0, Vec::new());
        while let Some((frame, bytes)) = frame::parse(&input[used..])? {
            used += bytes;
            match frame {
                Frame::Write(head, payload) => {
                    self.land(peer, head, payload, events)?;
                    tickets.push(head.ticket);
                }
                Frame::Acks(body) => self.acknowledged(peer, body)?,
            }
        }
        if tickets.len() > self.nic.receives as usize {
            let receives = self.nic.receives;
            return Err(format!(
                "{} writes of it came at once, but {receives} receives were posted",
                tickets.len()
            ));
        }
        let link = &mut self.links[peer];
        link.input = input;
        link.input.drain(..used);
        if !tickets.is_empty() {
            frame::put_acks(&mut link.output, &tickets);
        }
        open
    }

    fn land(
        &mut self,
        peer: usize,
        head: WriteHead,
        payload: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), String> {
        if head.bytes > 0 {
            let region = self.regions.get(usize::from(head.region));
            let region = region.ok_or_else(|| format!("it wrote to region {}", head.region))?;
            let end = head.offset.checked_add(head.bytes.into());
            if end.is_none_or(|end| end > region.bytes()) {
                return Err(format!(
                    "it wrote {} bytes at {} to region {}, which has {}",
                    head.bytes,
                    head.offset,
                    head.region,
                    region.bytes()
                ));
            }
            self.mover.place(region, head.offset, head.bytes, payload)?;
        } else if !payload.is_empty() {
            return Err("it wrote no bytes, but brought some".into());
        }
        let (peer, immediate) = (PeerId(peer as u16), head.immediate);
        events.push(Event::Arrived { peer, immediate });
        if self.timing.random.chance(self.faults.duplicates) {
            let later = self.clock.now_ns().saturating_add(self.timing.way_ns());
            self.schedule(later, Due::ArrivedAgain { peer, immediate });
        }
        Ok(())
    }

    fn acknowledged(&mut self, peer: usize, body: &[u8]) -> Result<(), String> {
        let now = self.clock.now_ns();
        for ticket in frame::tickets(body) {
            let flight = self.flight(ticket);
            let known = flight
                .filter(|flight| usize::from(flight.write.peer.0) == peer && !flight.is_acked);
            let known = known
                .ok_or_else(|| format!("it acknowledged {ticket:#x}, which was not sent to it"))?;
            known.is_acked = true;
            let later = now.saturating_add(self.timing.way_ns());
            self.schedule(later, Due::Complete { ticket });
        }
        Ok(())
    }
}

impl Link {
    fn flush(&mut self) -> Result<(), String> {
        while self.sent < self.output.len() {
            let sent = self.wire.send(&self.output[self.sent..])?;
            if sent == 0 {
                return Ok(());
            }
            self.sent += sent;
        }
        self.output.clear();
        self.sent = 0;
        Ok(())
    }
}

impl Transport for Emulated {
    fn limits(&self) -> Limits {
        Limits {
            write_bytes: self.nic.write_bytes,
            writes: self.nic.queue_depth,
            receives: self.nic.receives,
            rails: self.nic.rails,
        }
    }

    fn register(&mut self, memory: Memory) -> Result<RegionId, FabricError> {
        let outcome = if self.regions.len() == MAX_REGIONS {
            Err(format!("there are {MAX_REGIONS} regions already"))
        } else {
            self.mover.check(&memory)
        };
        outcome.map_err(|reason| FabricError::Register {
            address: memory.address(),
            bytes: memory.bytes(),
            reason,
        })?;
        self.regions.push(memory);
        Ok(RegionId(self.regions.len() as u8 - 1))
    }

    fn offer(&mut self, _: PeerId) -> Result<Vec<u8>, FabricError> {
        Ok(OFFER.to_vec())
    }

    fn connect(&mut self, peers: &[PeerOffer], _: Instant) -> Result<(), FabricError> {
        if peers.len() != self.links.len() {
            return Err(FabricError::Config(vec![format!(
                "{} peers for {} wires",
                peers.len(),
                self.links.len()
            )]));
        }
        match peers.iter().find(|peer| peer.offer != OFFER) {
            None => Ok(()),
            Some(PeerOffer { peer, .. }) => Err(FabricError::Offer {
                peer: peer.clone(),
                reason: "it has no emulated NIC of this version".into(),
            }),
        }
    }

    fn post(&mut self, writes: &[Write]) -> Result<usize, FabricError> {
        let now = self.clock.now_ns();
        for (accepted, write) in writes.iter().enumerate() {
            let is_silent = self.is_silent()?;
            let link = &mut self.links[usize::from(write.peer.0)];
            if link.is_lost || is_silent {
                continue;
            }
            if link.in_flight >= self.nic.queue_depth {
                return Ok(accepted);
            }
            link.in_flight += 1;
            self.posted += 1;
            let ticket = self.take_off(*write);
            let arrival = self.timing.arrival_ns(now, write.bytes);
            self.schedule(arrival, Due::Depart { ticket });
        }
        Ok(writes.len())
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), FabricError> {
        if self.is_silent()? {
            return Ok(());
        }
        self.catch_up(events)?;
        for peer in 0..self.links.len() {
            if self.links[peer].is_lost {
                continue;
            }
            let heard = self.listen(peer, events);
            if !self.links[peer].output.is_empty() {
                self.clock.expect(self.clock.now_ns()); // the peer is to look at once
            }
            let outcome = heard.and_then(|()| self.links[peer].flush());
            if let Err(reason) = outcome {
                self.links[peer].is_lost = true;
                let peer = PeerId(peer as u16);
                events.push(Event::Lost { peer, reason });
            }
        }
        if let Some(Reverse((at, _, _))) = self.due.peek() {
            self.clock.expect(*at);
        }
        Ok(())
    }
}
