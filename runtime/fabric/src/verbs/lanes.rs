//! [`Lanes`]: all lanes of a transport, the choice of the lane for each write, and the lists of lanes with work to
//! post.
//!
//! A lane of RC serves one peer, and a lane of SRD serves all peers. A call may have only one or two puts for each peer. To use
//! all NICs in this case too, a write takes the NIC with the fewest bytes in flight to all peers together. Among equally loaded
//! NICs, the write takes the NIC that follows the NIC of the peer's last write. The first NIC differs from peer to peer. Lists
//! hold the lanes with work to post, so no step scans all lanes.

use super::lane::{Lane, PostedWrite};
use super::queue_pair_type::{QueuePairType, WorkRequest};
use super::rail::LaneId;
use crate::stats::RailCounters;
use std::io;
use std::sync::Arc;

/// The cost of a write for a NIC in addition to its bytes, in bytes: packet headers and work request.
const WRITE_COST_BYTES: u64 = 256;

/// A lane, and the error with which its queue pair refused a request.
pub(super) type Refused = (LaneId, io::Error);

/// The lanes of all rails.
pub(super) struct Lanes<K> {
    lanes: Vec<Lane<K>>,
    peers: Vec<PeerLanes>,
    rails: Vec<RailLoad>,
    /// The counters of the NICs.
    counters: Arc<[RailCounters]>,
    /// The most writes that may be in flight to one peer.
    writes_per_peer: u32,
    /// The lanes with a batch to post. Each lane is listed once.
    batched: Vec<LaneId>,
    /// The receives that were consumed and not replaced, by receive queue.
    consumed: Vec<u32>,
    /// For each receive queue with consumed receives, one of its lanes.
    with_consumed: Vec<LaneId>,
}

/// The lanes over which a peer is reached.
struct PeerLanes {
    lanes: Vec<LaneId>,
    /// The index of the lane that gets the next write if no other NIC has fewer bytes in flight.
    next: usize,
    /// The number of writes that were accepted and have not completed.
    in_flight: u32,
}

/// The load of one NIC by writes to all peers.
#[derive(Default)]
struct RailLoad {
    bytes: u64,
    is_down: bool,
}

impl RailLoad {
    /// Records that a write ends.
    fn end(&mut self, write: &PostedWrite) {
        self.bytes -= cost(write.bytes);
    }
}

impl<K: QueuePairType> Lanes<K> {
    /// Creates an empty table for the given numbers of peers and NICs. Endpoints with different values of `salt` start with
    /// different NICs, so that they do not all use one NIC of a peer first.
    pub(super) fn new(
        peers: u16,
        counters: Arc<[RailCounters]>,
        writes_per_peer: u32,
        salt: usize,
    ) -> Self {
        let rails = counters.len();
        let peer = |number| PeerLanes {
            lanes: Vec::new(),
            next: salt % rails.max(1) + usize::from(number),
            in_flight: 0,
        };
        Self {
            lanes: Vec::new(),
            peers: (0..peers).map(peer).collect(),
            rails: (0..rails).map(|_| RailLoad::default()).collect(),
            counters,
            writes_per_peer,
            batched: Vec::new(),
            consumed: Vec::new(),
            with_consumed: Vec::new(),
        }
    }

    pub(super) fn counters(&self) -> Arc<[RailCounters]> {
        Arc::clone(&self.counters)
    }

    /// Counts a flush of a NIC.
    pub(super) fn count_flush(&self, rail: usize) {
        self.counters[rail].flushes.add(1);
    }

    /// Returns the ids of the lanes to a peer.
    pub(super) fn ids_of(&self, peer: usize) -> &[LaneId] {
        &self.peers[peer].lanes
    }

    /// Returns the lanes to a peer.
    pub(super) fn of(&self, peer: usize) -> impl Iterator<Item = &Lane<K>> {
        let ids = self.peers[peer].lanes.iter();
        ids.map(|id| self.lane(*id))
    }

    /// Returns a lane.
    pub(super) fn lane(&self, id: LaneId) -> &Lane<K> {
        &self.lanes[id.0 as usize]
    }

    /// Returns a lane, to connect it.
    pub(super) fn lane_mut(&mut self, id: LaneId) -> &mut Lane<K> {
        &mut self.lanes[id.0 as usize]
    }

    /// Adds a lane to its peer, or to all peers.
    pub(super) fn add(&mut self, lane: Lane<K>) -> LaneId {
        let id = LaneId(self.lanes.len() as u32);
        match lane.peer {
            Some(peer) => self.peers[usize::from(peer)].lanes.push(id),
            None => (self.peers.iter_mut()).for_each(|peer| peer.lanes.push(id)),
        }
        self.lanes.push(lane);
        let queue = self.receive_queue(id);
        self.consumed.resize(self.consumed.len().max(queue + 1), 0);
        id
    }

    /// Returns the number of the receive queue for arrivals on a lane: the queue of the rail, or the lane's own queue.
    fn receive_queue(&self, id: LaneId) -> usize {
        match self.lane(id).peer {
            Some(_) => self.lane(id).rail,
            None => id.0 as usize,
        }
    }

    /// Records whether the port of a NIC is down. New writes avoid such a NIC while another NIC has room.
    pub(super) fn set_down(&mut self, rail: usize, is_down: bool) {
        self.rails[rail].is_down = is_down;
    }

    /// Returns the index of the lane for the next write to a peer, if one has room.
    fn choose(&self, peer: &PeerLanes) -> Option<usize> {
        if peer.in_flight >= self.writes_per_peer {
            return None;
        }
        let count = peer.lanes.len();
        (0..count)
            .map(|turn| (peer.next + turn) % count)
            .filter(|index| self.lane(peer.lanes[*index]).has_room())
            .min_by_key(|index| {
                let rail = &self.rails[self.lane(peer.lanes[*index]).rail];
                (rail.is_down, rail.bytes)
            })
    }

    /// Adds a write to the batch of a lane. Returns false if no lane has room.
    ///
    /// `work` builds the work request for a given rail. If `work` returns `None`, this function also returns `None`.
    pub(super) fn accept(
        &mut self,
        peer: u16,
        work: impl FnOnce(usize) -> Option<WorkRequest>,
    ) -> Option<bool> {
        let at = usize::from(peer);
        let Some(index) = self.choose(&self.peers[at]) else {
            return Some(false);
        };
        let peer = &mut self.peers[at];
        let id = peer.lanes[index];
        let lane = &mut self.lanes[id.0 as usize];
        let work = work(lane.rail)?;
        peer.next = (index + 1) % peer.lanes.len();
        peer.in_flight += 1;
        self.rails[lane.rail].bytes += cost(work.bytes);
        self.counters[lane.rail].count(work.bytes);
        if lane.accept(work) {
            self.batched.push(id);
        }
        Some(true)
    }

    /// Posts all batches. Returns the lanes whose queue pair refused its batch.
    pub(super) fn flush(&mut self) -> Vec<Refused> {
        let mut refused = Vec::new();
        for id in self.batched.drain(..) {
            let lane = &mut self.lanes[id.0 as usize];
            refused.extend(lane.flush().err().map(|error| (id, error)));
        }
        refused
    }

    /// Calls `done` with all writes that a completion ends.
    pub(super) fn complete(&mut self, id: LaneId, tag: u64, mut done: impl FnMut(PostedWrite)) {
        let lane = &mut self.lanes[id.0 as usize];
        let (rail, peers) = (&mut self.rails[lane.rail], &mut self.peers);
        lane.complete(tag, |write| {
            rail.end(&write);
            peers[usize::from(write.peer)].in_flight -= 1;
            done(write);
        });
    }

    /// Records that a completion on a lane has consumed a receive.
    pub(super) fn consume_receive(&mut self, id: LaneId) {
        let queue = self.receive_queue(id);
        if self.consumed[queue] == 0 {
            self.with_consumed.push(id);
        }
        self.consumed[queue] += 1;
    }

    /// Replaces all consumed receives. `receive` posts a number of receives to the receive queue of a lane. Returns the first
    /// error.
    pub(super) fn replace_receives(
        &mut self,
        mut receive: impl FnMut(&Lane<K>, u32) -> io::Result<()>,
    ) -> Result<(), Refused> {
        while let Some(id) = self.with_consumed.pop() {
            let queue = self.receive_queue(id);
            let count = std::mem::take(&mut self.consumed[queue]);
            receive(self.lane(id), count).map_err(|error| (id, error))?;
        }
        Ok(())
    }

    /// Drops the writes on lanes that only serve this peer, because no such write will complete.
    ///
    /// A queue pair for all peers ends each request with a completion, even if the peer is lost, and the request takes room in
    /// the queue until then.
    pub(super) fn drop_writes(&mut self, peer: u16) {
        let PeerLanes {
            lanes, in_flight, ..
        } = &mut self.peers[usize::from(peer)];
        for id in lanes {
            let lane = &mut self.lanes[id.0 as usize];
            if lane.peer.is_some() {
                let rail = &mut self.rails[lane.rail];
                lane.drop_writes(|write| {
                    rail.end(&write);
                    *in_flight -= 1;
                });
            }
        }
    }
}

fn cost(bytes: u32) -> u64 {
    u64::from(bytes) + WRITE_COST_BYTES
}

#[cfg(test)]
mod tests;
