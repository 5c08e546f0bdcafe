//! The actions of emulated NICs that are due at a point in time: arrivals, completions and flushes.

use super::EmulatedTransport;
use crate::emulated::pending::{Action, SentWrite};
use crate::error::FabricError;
use crate::peer_id::PeerId;
use crate::transport::Event;
use std::cmp::Reverse;

/// The time of a flush. A NIC reads the memory of a GPU in about this time.
const FLUSH_NS: u64 = 1_000;

impl EmulatedTransport {
    pub(super) fn schedule(&mut self, at_ns: u64, due: Action) {
        self.scheduled += 1;
        self.due.push(Reverse((at_ns, self.scheduled, due)));
    }

    /// Performs the actions that are due by now.
    pub(super) fn run_due(&mut self, now: u64, events: &mut Vec<Event>) -> Result<(), FabricError> {
        while let Some(Reverse((at, _, due))) = self.due.peek().copied()
            && at <= now
        {
            self.due.pop();
            match due {
                Action::Arrive { token } => self.arrive(token, now, events),
                Action::Complete { ticket } => self.complete(ticket, now, events),
                Action::SentAgain { id } => events.push(Event::Sent { id }),
                Action::ArrivedAgain { peer, immediate } => {
                    self.report(Event::Arrived { peer, immediate }, events);
                }
                Action::Flushed => {
                    let flushed = self.copy_engine.flush();
                    flushed.map_err(|reason| FabricError::Nic { reason })?;
                    self.timing.counters()[0].flushes.add(1);
                    self.flushes.end(events);
                }
            }
        }
        if self.flushes.begin() {
            self.schedule(now.saturating_add(FLUSH_NS), Action::Flushed);
        }
        Ok(())
    }

    /// Reports an arrival, or holds it until a flush.
    fn report(&mut self, arrival: Event, events: &mut Vec<Event>) {
        match self.nic.flushes_arrivals {
            true => self.flushes.hold(arrival),
            false => events.push(arrival),
        }
    }

    fn arrive(&mut self, token: u64, now: u64, events: &mut Vec<Event>) {
        let Some(write) = self.received_writes.remove(token) else {
            return;
        };
        let (peer, immediate) = (write.peer, write.immediate);
        let link = &mut self.links[usize::from(peer.0)];
        link.receives_in_use -= 1;
        if link.is_lost {
            return;
        }
        link.acks.push(write.ticket);
        self.report(Event::Arrived { peer, immediate }, events);
        if self.timing.random.chance(self.faults.duplicates) {
            let later = now.saturating_add(self.timing.latency_ns());
            self.schedule(later, Action::ArrivedAgain { peer, immediate });
        }
    }

    fn complete(&mut self, ticket: u64, now: u64, events: &mut Vec<Event>) {
        let Some(SentWrite { peer, id, .. }) = self.sent_writes.remove(ticket) else {
            return;
        };
        self.links[usize::from(peer.0)].in_flight -= 1;
        events.push(Event::Sent { id });
        if self.timing.random.chance(self.faults.duplicates) {
            let later = now.saturating_add(self.timing.latency_ns());
            self.schedule(later, Action::SentAgain { id });
        }
    }

    pub(super) fn report_lost(&mut self, peer: usize, reason: String) {
        self.links[peer].is_lost = true;
        let peer = PeerId(peer as u16);
        self.lost.push(Event::Lost { peer, reason });
    }
}
