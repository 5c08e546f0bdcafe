//! [`EmulatedTransport`]: the implementation of [`Transport`] over NICs in software.

use super::clock::Clock;
use super::copy_engine::{CopyEngine, CopyStatus};
use super::frame::{self, Frame, WriteHead, target};
use super::nic_model::{Faults, NicModel, Timing};
use super::peer_link::PeerLink;
use super::pending::{Action, ReceivedWrite, SentWrite};
use super::slab::Slab;
use super::wire::Wire;
use crate::error::FabricError;
use crate::flush::FlushQueue;
use crate::peer_id::PeerId;
use crate::stats::RailCounters;
use crate::transport::{
    Event, Limits, MAX_REGIONS, MemoryRange, PeerConnectInfo, RegionId, Transport, Write,
};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Instant;

mod due;

const CONNECT_INFO: &[u8] = b"MKEM3";
/// The start of the info of a region. Its size follows, little-endian.
const REGION_INFO: &[u8] = b"MKER1";

/// The NICs of an endpoint in software.
pub struct EmulatedTransport {
    nic: NicModel,
    faults: Faults,
    timing: Timing,
    clock: Clock,
    /// The engine is dropped before the regions that it accesses.
    copy_engine: Box<dyn CopyEngine>,
    regions: Vec<MemoryRange>,
    links: Vec<PeerLink>,
    /// Writes in flight from this endpoint, by ticket.
    sent_writes: Slab<SentWrite>,
    /// Writes of peers that have not been reported as arrived, by the token of the copy engine.
    received_writes: Slab<ReceivedWrite>,
    /// The number of these writes that the copy engine is still copying.
    copies_pending: u32,
    completed: Vec<u64>,
    /// Arrivals that wait for a flush.
    flushes: FlushQueue,
    /// Losses that are reported once no arrival waits for a flush.
    lost: Vec<Event>,
    due: BinaryHeap<Reverse<(u64, u64, Action)>>,
    posted: u64,
    scheduled: u64,
}

impl EmulatedTransport {
    /// Creates an endpoint with one wire per peer, in the order of the table of peers.
    ///
    /// # Errors
    ///
    /// [`FabricError::Config`] for an invalid model.
    pub fn new(
        nic: NicModel,
        faults: Faults,
        clock: Clock,
        copy_engine: Box<dyn CopyEngine>,
        wires: Vec<Box<dyn Wire>>,
    ) -> Result<Self, FabricError> {
        nic.check()?;
        Ok(Self {
            timing: Timing::new(&nic, &faults),
            nic,
            faults,
            clock,
            copy_engine,
            regions: Vec::new(),
            links: wires.into_iter().map(PeerLink::new).collect(),
            sent_writes: Slab::new(),
            received_writes: Slab::new(),
            copies_pending: 0,
            completed: Vec::new(),
            flushes: FlushQueue::default(),
            lost: Vec::new(),
            due: BinaryHeap::new(),
            posted: 0,
            scheduled: 0,
        })
    }

    /// Appends a write to the output of its link.
    fn send_write(&mut self, write: &Write, now: u64) -> Result<(), FabricError> {
        let sent = SentWrite {
            peer: write.peer,
            id: write.id,
            is_acked: false,
        };
        let head = WriteHead {
            ticket: self.sent_writes.insert(sent),
            due_ns: self.timing.arrival_ns(now, write.bytes),
            region: write.target.region.0,
            offset: write.target.offset,
            bytes: write.bytes,
            immediate: write.immediate,
        };
        let link = &mut self.links[usize::from(write.peer.0)];
        let (copy_engine, regions) = (&mut self.copy_engine, &self.regions);
        let payload = |out: &mut Vec<u8>| {
            if write.bytes == 0 {
                return Ok(());
            }
            let region = &regions[usize::from(write.source.region.0)];
            copy_engine.stage(region, write.source.offset, write.bytes, out)
        };
        link.in_flight += 1;
        self.posted += 1;
        frame::put_write(&mut link.output, head, payload)
            .map_err(|reason| FabricError::Nic { reason })
    }

    /// Sends as much output as the wires accept. Returns whether there was any output.
    fn flush(&mut self) -> bool {
        let links = self.links.iter_mut().filter(|link| !link.is_lost);
        links.fold(false, |any, link| any | link.flush())
    }

    /// Handles the frames that a peer has sent. An error is about the peer.
    fn receive_frames(&mut self, peer: usize, now: u64) -> Result<(), String> {
        self.links[peer].receive();
        let mut input = std::mem::take(&mut self.links[peer].input);
        let mut used = 0;
        while let Some((frame, bytes)) = frame::parse(&input[used..])? {
            used += bytes;
            match frame {
                Frame::Write(head, payload) => self.on_write(peer, head, payload)?,
                Frame::Acks(body) => self.on_acks(peer, body, now)?,
            }
        }
        input.drain(..used);
        self.links[peer].input = input;
        Ok(())
    }

    fn on_write(&mut self, peer: usize, head: WriteHead, payload: &[u8]) -> Result<(), String> {
        let link = &mut self.links[peer];
        if link.receives_in_use == self.nic.receives {
            return Err(format!(
                "it has more than {} writes in flight, the number of receives that are posted for it",
                link.receives_in_use
            ));
        }
        let region = if head.bytes > 0 {
            Some(target(&self.regions, &head)?)
        } else if payload.is_empty() {
            None
        } else {
            return Err("it sent a write of 0 bytes with a payload".into());
        };
        let token = self.received_writes.insert(ReceivedWrite {
            peer: PeerId(peer as u16),
            ticket: head.ticket,
            immediate: head.immediate,
            due_ns: head.due_ns,
        });
        link.receives_in_use += 1;
        let completed = region.map_or(Ok(CopyStatus::Done), |region| {
            (self.copy_engine).start_copy(region, head.offset, head.bytes, payload, token)
        })?;
        match completed {
            CopyStatus::Done => self.schedule(head.due_ns, Action::Arrive { token }),
            CopyStatus::Pending => self.copies_pending += 1,
        }
        Ok(())
    }

    fn on_acks(&mut self, peer: usize, body: &[u8], now: u64) -> Result<(), String> {
        for ticket in frame::tickets(body) {
            let write = self.sent_writes.get_mut(ticket);
            let known = write.filter(|write| usize::from(write.peer.0) == peer && !write.is_acked);
            let known = known.ok_or_else(|| {
                format!("it acknowledged the ticket {ticket:#x}, which is not in flight to it")
            })?;
            known.is_acked = true;
            let later = now.saturating_add(self.timing.latency_ns());
            self.schedule(later, Action::Complete { ticket });
        }
        Ok(())
    }

    /// Polls the copy engine and schedules the arrivals of completed copies.
    fn poll_copies(&mut self) -> Result<(), FabricError> {
        let mut completed = std::mem::take(&mut self.completed);
        (self.copy_engine.poll(&mut completed)).map_err(|reason| FabricError::Nic { reason })?;
        for token in completed.drain(..) {
            if let Some(write) = self.received_writes.get_mut(token) {
                let due_ns = write.due_ns;
                self.copies_pending -= 1;
                self.schedule(due_ns, Action::Arrive { token });
            }
        }
        self.completed = completed;
        Ok(())
    }
}

impl Transport for EmulatedTransport {
    fn limits(&self) -> Limits {
        Limits {
            write_bytes: self.nic.write_bytes,
            writes: self.nic.queue_depth,
            receives: self.nic.receives,
            rails: self.nic.rails,
        }
    }

    fn rail_counters(&self) -> Arc<[RailCounters]> {
        self.timing.counters()
    }

    fn register(&mut self, memory: MemoryRange) -> Result<RegionId, FabricError> {
        let outcome = if self.regions.len() == MAX_REGIONS {
            Err(format!("the limit of {MAX_REGIONS} regions is reached"))
        } else {
            self.copy_engine.check(&memory)
        };
        outcome.map_err(|reason| FabricError::Register {
            address: memory.address(),
            bytes: memory.bytes(),
            reason,
        })?;
        self.regions.push(memory);
        Ok(RegionId(self.regions.len() as u8 - 1))
    }

    fn region_info(&self, region: RegionId) -> Vec<u8> {
        let region = self.regions.get(usize::from(region.0));
        let bytes = region.map_or(0, MemoryRange::bytes);
        [REGION_INFO, &bytes.to_le_bytes()].concat()
    }

    fn add_peer_region(&mut self, _: PeerId, region_info: &[u8]) -> Result<u64, String> {
        let bytes = region_info.strip_prefix(REGION_INFO);
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.map(u64::from_le_bytes).ok_or_else(|| {
            "its info is not from an emulated NIC of the same version; run the same build on all nodes".to_owned()
        })
    }

    fn connect_info(&mut self, _: PeerId) -> Result<Vec<u8>, FabricError> {
        Ok(CONNECT_INFO.to_vec())
    }

    fn connect(&mut self, peers: &[PeerConnectInfo], _: Instant) -> Result<(), FabricError> {
        if peers.len() != self.links.len() {
            return Err(FabricError::Config(vec![format!(
                "there are {} peers, but {} wires",
                peers.len(),
                self.links.len()
            )]));
        }
        match peers.iter().find(|peer| peer.connect_info != CONNECT_INFO) {
            None => Ok(()),
            Some(PeerConnectInfo { peer, .. }) => Err(FabricError::ConnectInfo {
                peer: peer.clone(),
                reason: "it is not from an emulated NIC of the same version; run the same build on all nodes".into(),
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
            self.send_write(write, now)?;
        }
        Ok(writes.len())
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), FabricError> {
        if self.faults.is_silent(self.posted)? {
            return Ok(());
        }
        let now = self.clock.now_ns();
        // Slow work comes first, so that it does not delay the events that this call reports.
        let mut is_busy = self.flush();
        self.poll_copies()?;
        for peer in 0..self.links.len() {
            if !self.links[peer].is_lost
                && let Err(reason) = self.receive_frames(peer, now)
            {
                self.report_lost(peer, reason);
            }
        }
        self.run_due(now, events)?;
        for peer in 0..self.links.len() {
            let link = &self.links[peer];
            is_busy |= !link.acks.is_empty();
            if !link.is_lost
                && let Some(reason) = link.end().map(str::to_owned)
            {
                self.report_lost(peer, reason);
            }
        }
        if self.flushes.is_empty() {
            events.append(&mut self.lost);
        }
        if is_busy || self.copies_pending > 0 {
            self.clock.schedule(now); // Some NIC has to be polled again at once.
        }
        if let Some(Reverse((at, _, _))) = self.due.peek() {
            self.clock.schedule(*at);
        }
        Ok(())
    }
}
