//! A NIC in software: bandwidth, latency and faults that can be set, for tests and for several nodes on one host.
//!
//! The sender's NIC says at once on the [`Wire`] what comes, and when it will have arrived by its model. The receiver's
//! [`Mover`] brings the bytes meanwhile, and the arrival is told when both are over: so what copies take hides behind the
//! time that the network would have taken, and counts only where it is longer. The completion comes with the peer's
//! acknowledgement, a latency later.

mod clock;
pub mod frame;
mod link;
mod model;
mod mover;
mod slots;
mod wire;

pub use clock::{Clock, VirtualClock};
pub use frame::MAX_WRITE_BYTES;
pub use model::{Failure, Faults, Nic};
pub use mover::{HostMover, Mover, Placed};
pub use wire::{Pipe, Wire, pipe};

use crate::error::FabricError;
use crate::peer_id::PeerId;
use crate::transport::{
    Event, Limits, MAX_REGIONS, MemoryRange, PeerConnectInfo, RegionId, Transport, Write,
};
use frame::{Frame, WriteHead};
use link::Link;
use model::Timing;
use slots::Slots;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

const CONNECT_INFO: &[u8] = b"MKEM2";

/// An endpoint's NICs in software.
pub struct Emulated {
    nic: Nic,
    faults: Faults,
    timing: Timing,
    clock: Clock,
    /// Dropped before the regions that it reaches.
    mover: Box<dyn Mover>,
    regions: Vec<MemoryRange>,
    links: Vec<Link>,
    /// Writes on their way from here, by ticket.
    flights: Slots<Flight>,
    /// Writes of peers that came and were not told, by the mover's token; and how many of them it still moves.
    landings: Slots<Landing>,
    moving: u32,
    placed: Vec<u64>,
    due: BinaryHeap<Reverse<(u64, u64, Due)>>,
    posted: u64,
    scheduled: u64,
}

struct Flight {
    peer: PeerId,
    id: u64,
    is_acked: bool,
}

struct Landing {
    peer: PeerId,
    ticket: u64,
    immediate: u32,
    due_ns: u64,
}

/// What is to be done at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Arrive { token: u64 },
    Complete { ticket: u64 },
    SentAgain { id: u64 },
    ArrivedAgain { peer: PeerId, immediate: u32 },
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
        Ok(Self {
            timing: Timing::new(&nic, &faults),
            nic,
            faults,
            clock,
            mover,
            regions: Vec::new(),
            links: wires.into_iter().map(Link::new).collect(),
            flights: Slots::new(),
            landings: Slots::new(),
            moving: 0,
            placed: Vec::new(),
            due: BinaryHeap::new(),
            posted: 0,
            scheduled: 0,
        })
    }

    fn schedule(&mut self, at_ns: u64, due: Due) {
        self.scheduled += 1;
        self.due.push(Reverse((at_ns, self.scheduled, due)));
    }

    /// Puts a write on the wire.
    fn depart(&mut self, write: &Write, now: u64) -> Result<(), FabricError> {
        let flight = Flight {
            peer: write.peer,
            id: write.id,
            is_acked: false,
        };
        let head = WriteHead {
            ticket: self.flights.insert(flight),
            due_ns: self.timing.arrival_ns(now, write.bytes),
            region: write.target.region.0,
            offset: write.target.offset,
            bytes: write.bytes,
            immediate: write.immediate,
        };
        let link = &mut self.links[usize::from(write.peer.0)];
        let (mover, regions) = (&mut self.mover, &self.regions);
        let payload = |out: &mut Vec<u8>| {
            if write.bytes == 0 {
                return Ok(());
            }
            let region = &regions[usize::from(write.source.region.0)];
            mover.take(region, write.source.offset, write.bytes, out)
        };
        link.in_flight += 1;
        self.posted += 1;
        frame::put_write(&mut link.output, head, payload)
            .map_err(|reason| FabricError::Nic { reason })
    }

    /// Puts on wires what they take. Whether there was anything.
    fn flush(&mut self) -> bool {
        let links = self.links.iter_mut().filter(|link| !link.is_lost);
        links.fold(false, |any, link| any | link.flush())
    }

    /// Takes in what has come from a peer; an error is about the peer.
    fn listen(&mut self, peer: usize, now: u64) -> Result<(), String> {
        self.links[peer].receive();
        let mut input = std::mem::take(&mut self.links[peer].input);
        let mut used = 0;
        while let Some((frame, bytes)) = frame::parse(&input[used..])? {
            used += bytes;
            match frame {
                Frame::Write(head, payload) => self.land(peer, head, payload)?,
                Frame::Acks(body) => self.acknowledged(peer, body, now)?,
            }
        }
        input.drain(..used);
        self.links[peer].input = input;
        Ok(())
    }

    fn land(&mut self, peer: usize, head: WriteHead, payload: &[u8]) -> Result<(), String> {
        let link = &mut self.links[peer];
        if link.landings == self.nic.receives {
            return Err(format!(
                "more than {} writes of it came at once, but so many receives were posted",
                link.landings
            ));
        }
        let region = if head.bytes > 0 {
            Some(target(&self.regions, &head)?)
        } else if payload.is_empty() {
            None
        } else {
            return Err("it wrote no bytes, but brought some".into());
        };
        let token = self.landings.insert(Landing {
            peer: PeerId(peer as u16),
            ticket: head.ticket,
            immediate: head.immediate,
            due_ns: head.due_ns,
        });
        link.landings += 1;
        let placed = region.map_or(Ok(Placed::Done), |region| {
            (self.mover).place(region, head.offset, head.bytes, payload, token)
        })?;
        match placed {
            Placed::Done => self.schedule(head.due_ns, Due::Arrive { token }),
            Placed::Pending => self.moving += 1,
        }
        Ok(())
    }

    fn acknowledged(&mut self, peer: usize, body: &[u8], now: u64) -> Result<(), String> {
        for ticket in frame::tickets(body) {
            let flight = self.flights.get_mut(ticket);
            let known =
                flight.filter(|flight| usize::from(flight.peer.0) == peer && !flight.is_acked);
            let known = known
                .ok_or_else(|| format!("it acknowledged {ticket:#x}, which was not sent to it"))?;
            known.is_acked = true;
            let later = now.saturating_add(self.timing.way_ns());
            self.schedule(later, Due::Complete { ticket });
        }
        Ok(())
    }

    /// Lets the mover go on.
    fn settle(&mut self) -> Result<(), FabricError> {
        let mut placed = std::mem::take(&mut self.placed);
        (self.mover.poll(&mut placed)).map_err(|reason| FabricError::Nic { reason })?;
        for token in placed.drain(..) {
            if let Some(landing) = self.landings.get_mut(token) {
                let due_ns = landing.due_ns;
                self.moving -= 1;
                self.schedule(due_ns, Due::Arrive { token });
            }
        }
        self.placed = placed;
        Ok(())
    }

    /// Does what is due by now.
    fn catch_up(&mut self, now: u64, events: &mut Vec<Event>) {
        while let Some(Reverse((at, _, due))) = self.due.peek().copied()
            && at <= now
        {
            self.due.pop();
            match due {
                Due::Arrive { token } => self.arrive(token, now, events),
                Due::Complete { ticket } => self.complete(ticket, now, events),
                Due::SentAgain { id } => events.push(Event::Sent { id }),
                Due::ArrivedAgain { peer, immediate } => {
                    events.push(Event::Arrived { peer, immediate });
                }
            }
        }
    }

    fn arrive(&mut self, token: u64, now: u64, events: &mut Vec<Event>) {
        let Some(landing) = self.landings.remove(token) else {
            return;
        };
        let (peer, immediate) = (landing.peer, landing.immediate);
        let link = &mut self.links[usize::from(peer.0)];
        link.landings -= 1;
        if link.is_lost {
            return;
        }
        link.acks.push(landing.ticket);
        events.push(Event::Arrived { peer, immediate });
        if self.timing.random.chance(self.faults.duplicates) {
            let later = now.saturating_add(self.timing.way_ns());
            self.schedule(later, Due::ArrivedAgain { peer, immediate });
        }
    }

    fn complete(&mut self, ticket: u64, now: u64, events: &mut Vec<Event>) {
        let Some(Flight { peer, id, .. }) = self.flights.remove(ticket) else {
            return;
        };
        self.links[usize::from(peer.0)].in_flight -= 1;
        events.push(Event::Sent { id });
        if self.timing.random.chance(self.faults.duplicates) {
            let later = now.saturating_add(self.timing.way_ns());
            self.schedule(later, Due::SentAgain { id });
        }
    }

    fn lose(&mut self, peer: usize, reason: String, events: &mut Vec<Event>) {
        self.links[peer].is_lost = true;
        let peer = PeerId(peer as u16);
        events.push(Event::Lost { peer, reason });
    }
}

/// The region to which a peer writes, if it has the place.
fn target<'a>(regions: &'a [MemoryRange], head: &WriteHead) -> Result<&'a MemoryRange, String> {
    let region = regions.get(usize::from(head.region));
    let region = region.ok_or_else(|| format!("it wrote to region {}", head.region))?;
    let end = head.offset.checked_add(head.bytes.into());
    if end.is_some_and(|end| end <= region.bytes()) {
        return Ok(region);
    }
    Err(format!(
        "it wrote {} bytes at {} to region {}, which has {}",
        head.bytes,
        head.offset,
        head.region,
        region.bytes()
    ))
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

    fn register(&mut self, memory: MemoryRange) -> Result<RegionId, FabricError> {
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

    fn connect_info(&mut self, _: PeerId) -> Result<Vec<u8>, FabricError> {
        Ok(CONNECT_INFO.to_vec())
    }

    fn connect(&mut self, peers: &[PeerConnectInfo], _: Instant) -> Result<(), FabricError> {
        if peers.len() != self.links.len() {
            return Err(FabricError::Config(vec![format!(
                "{} peers for {} wires",
                peers.len(),
                self.links.len()
            )]));
        }
        match peers.iter().find(|peer| peer.connect_info != CONNECT_INFO) {
            None => Ok(()),
            Some(PeerConnectInfo { peer, .. }) => Err(FabricError::ConnectInfo {
                peer: peer.clone(),
                reason: "it has no emulated NIC of this version".into(),
            }),
        }
    }

    fn post(&mut self, writes: &[Write]) -> Result<usize, FabricError> {
        let now = self.clock.now_ns();
        for (accepted, write) in writes.iter().enumerate() {
            let is_silent = self.faults.is_silent(self.posted)?;
            let link = &self.links[usize::from(write.peer.0)];
            if link.is_lost || is_silent {
                continue;
            }
            if link.in_flight >= self.nic.queue_depth {
                return Ok(accepted);
            }
            self.depart(write, now)?;
        }
        Ok(writes.len())
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), FabricError> {
        if self.faults.is_silent(self.posted)? {
            return Ok(());
        }
        let now = self.clock.now_ns();
        // What takes long comes first, so that it delays nothing that this call tells.
        let mut is_busy = self.flush();
        self.settle()?;
        for peer in 0..self.links.len() {
            if !self.links[peer].is_lost
                && let Err(reason) = self.listen(peer, now)
            {
                self.lose(peer, reason, events);
            }
        }
        self.catch_up(now, events);
        for peer in 0..self.links.len() {
            let link = &self.links[peer];
            is_busy |= !link.acks.is_empty();
            if !link.is_lost
                && let Some(reason) = link.end().map(str::to_owned)
            {
                self.lose(peer, reason, events);
            }
        }
        if is_busy || self.moving > 0 {
            self.clock.expect(now); // somebody is to be polled again at once
        }
        if let Some(Reverse((at, _, _))) = self.due.peek() {
            self.clock.expect(*at);
        }
        Ok(())
    }
}
