//! [`Lanes`]: the lanes to all peers, the choice of the lane for each write, and the lists of lanes with work to
//! post.
//!
//! A call may have only one or two puts for each peer. To use all NICs nevertheless, a write takes the NIC with the
//! fewest bytes in flight to all peers together. Among equally loaded NICs it takes the one after the NIC of the
//! peer's last write. The first NIC differs from peer to peer. Work to post is found by lists, never by a scan of all
//! lanes.

use super::lane::Lane;
use super::queue_pair_type::{QueuePairType, WorkRequest};
use super::rail::LaneId;
use std::io;

/// The cost of a write for a NIC in addition to its bytes, in bytes: packet headers and work request.
const WRITE_COST_BYTES: u64 = 256;

/// A lane, and the error with which its queue pair refused a request.
pub(super) type Refused = (LaneId, io::Error);

/// The lanes to each peer. Lane i uses rail i modulo the number of rails.
pub(super) struct Lanes<K> {
    peers: Vec<PeerLanes<K>>,
    rails: Vec<RailLoad>,
    /// Lanes with a batch to post, each once.
    batched: Vec<LaneId>,
    /// Lanes with consumed receives, each once.
    with_consumed: Vec<LaneId>,
}

struct PeerLanes<K> {
    lanes: Vec<Lane<K>>,
    /// The lane that gets the next write if no other NIC has fewer bytes in flight.
    next: usize,
}

/// The load of one NIC by writes to all peers.
#[derive(Default)]
struct RailLoad {
    bytes: u64,
    is_down: bool,
}

impl<K: QueuePairType> Lanes<K> {
    /// Creates an empty table for this many peers and NICs. Endpoints with different values of `salt` start with
    /// different NICs, so that not all of them use the same NIC of a peer first.
    pub(super) fn new(peers: u16, rails: usize, salt: usize) -> Self {
        let peer = |number| PeerLanes {
            lanes: Vec::new(),
            next: salt % rails.max(1) + usize::from(number),
        };
        Self {
            peers: (0..peers).map(peer).collect(),
            rails: (0..rails).map(|_| RailLoad::default()).collect(),
            batched: Vec::new(),
            with_consumed: Vec::new(),
        }
    }

    /// Returns the lanes to a peer.
    pub(super) fn of(&self, peer: usize) -> &[Lane<K>] {
        &self.peers[peer].lanes
    }

    /// Returns the lanes to a peer, to connect them.
    pub(super) fn of_mut(&mut self, peer: usize) -> &mut [Lane<K>] {
        &mut self.peers[peer].lanes
    }

    /// Adds a lane on the next rail.
    pub(super) fn push(&mut self, peer: usize, lane: Lane<K>) {
        self.peers[peer].lanes.push(lane);
    }

    /// Records whether the port of a NIC is down. New writes avoid such a NIC while another one has room.
    pub(super) fn set_down(&mut self, rail: usize, is_down: bool) {
        self.rails[rail].is_down = is_down;
    }

    /// Returns the lane for the next write to a peer, if one has room.
    fn choose(&self, peer: &PeerLanes<K>) -> Option<usize> {
        let count = peer.lanes.len();
        (0..count)
            .map(|turn| (peer.next + turn) % count)
            .filter(|lane| peer.lanes[*lane].has_room())
            .min_by_key(|lane| {
                let rail = &self.rails[lane % self.rails.len()];
                (rail.is_down, rail.bytes)
            })
    }

    /// Adds a write to the batch of a lane. Returns false if no lane has room.
    ///
    /// `work` builds the work request for a given rail. If it returns `None`, so does this function.
    pub(super) fn accept(
        &mut self,
        peer: u16,
        work: impl FnOnce(usize) -> Option<WorkRequest>,
    ) -> Option<bool> {
        let at = usize::from(peer);
        let Some(number) = self.choose(&self.peers[at]) else {
            return Some(false);
        };
        let rail = number % self.rails.len();
        let work = work(rail)?;
        self.rails[rail].bytes += cost(work.bytes);
        let PeerLanes { lanes, next } = &mut self.peers[at];
        *next = (number + 1) % lanes.len();
        if lanes[number].accept(work) {
            self.batched.push((peer, number as u16));
        }
        Some(true)
    }

    /// Posts all batches. Returns the lanes whose queue pair refused its batch.
    pub(super) fn flush(&mut self) -> Vec<Refused> {
        let mut refused = Vec::new();
        for at in self.batched.drain(..) {
            let lane = &mut self.peers[usize::from(at.0)].lanes[usize::from(at.1)];
            refused.extend(lane.flush().err().map(|error| (at, error)));
        }
        refused
    }

    /// Calls `sent` with the ids of all writes that a successful completion acknowledges.
    pub(super) fn complete(&mut self, at: LaneId, tag: u64, mut sent: impl FnMut(u64)) {
        let rails = self.rails.len();
        let rail = &mut self.rails[usize::from(at.1) % rails];
        let lane = &mut self.peers[usize::from(at.0)].lanes[usize::from(at.1)];
        lane.complete(tag, |id, bytes| {
            rail.bytes -= cost(bytes);
            sent(id);
        });
    }

    /// Records that an arrival has consumed a receive.
    pub(super) fn consume_receive(&mut self, at: LaneId) {
        let lane = &mut self.peers[usize::from(at.0)].lanes[usize::from(at.1)];
        if lane.consumed_receives == 0 {
            self.with_consumed.push(at);
        }
        lane.consumed_receives += 1;
    }

    /// Replaces the receives that arrivals have consumed. `receive` posts them on a queue pair of a rail. Returns the
    /// lanes whose queue pair refused them.
    pub(super) fn replace_receives(
        &mut self,
        mut receive: impl FnMut(&K, usize, u32) -> io::Result<()>,
    ) -> Vec<Refused> {
        let mut refused = Vec::new();
        for at in self.with_consumed.drain(..) {
            let lane = &mut self.peers[usize::from(at.0)].lanes[usize::from(at.1)];
            let used = std::mem::take(&mut lane.consumed_receives);
            let outcome = receive(&lane.pair, usize::from(at.1) % self.rails.len(), used);
            refused.extend(outcome.err().map(|error| (at, error)));
        }
        refused
    }

    /// Drops the writes to a lost peer, because none of them will complete.
    pub(super) fn drop_writes(&mut self, peer: u16) {
        let rails = self.rails.len();
        for (number, lane) in self.peers[usize::from(peer)].lanes.iter_mut().enumerate() {
            let rail = &mut self.rails[number % rails];
            lane.drop_writes(|bytes| rail.bytes -= cost(bytes));
        }
    }
}

fn cost(bytes: u32) -> u64 {
    u64::from(bytes) + WRITE_COST_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::connect_info::{QueuePairInfo, RailInfo};
    use crate::verbs::device::{Device, Port};
    use crate::verbs::queue_pair::{Capability, QueueDepth, QueuePair};
    use crate::verbs::rail::Rail;

    /// A queue pair without a device that counts the requests posted on it.
    #[derive(Default)]
    struct Counting {
        posts: Vec<usize>,
    }

    impl QueuePairType for Counting {
        const NAME: &'static str = "counting";
        const SERVICE: u8 = 0;
        const IN_ORDER: bool = true;

        fn capability(_: &Device, _: &Port) -> Result<Capability, String> {
            Err("it has no device".into())
        }
        fn new(_: &Rail, _: QueueDepth, _: u32) -> Result<Self, String> {
            Err("it has no device".into())
        }
        fn pair(&self) -> &QueuePair {
            unreachable!("it has no queue pair")
        }
        fn nonce(random: u32) -> u32 {
            random
        }
        fn connect(&mut self, _: &Rail, _: &RailInfo, _: QueuePairInfo) -> Result<(), String> {
            Ok(())
        }
        fn post(&mut self, requests: &[WorkRequest]) -> io::Result<()> {
            self.posts.push(requests.len());
            Ok(())
        }
        fn receive(&self, _: &Rail, _: u32) -> io::Result<()> {
            Ok(())
        }
    }

    fn lanes(peers: u16, rails: usize, of_each: usize, writes: u32) -> Lanes<Counting> {
        let mut lanes = Lanes::new(peers, rails, 0);
        for peer in 0..usize::from(peers) {
            for _ in 0..rails * of_each {
                lanes.push(peer, Lane::with(Counting::default(), 0, writes));
            }
        }
        lanes
    }

    fn put(lanes: &mut Lanes<Counting>, peer: u16, bytes: u32) -> bool {
        let work = |_| {
            Some(WorkRequest {
                bytes,
                ..WorkRequest::default()
            })
        };
        lanes.accept(peer, work).expect("the write is in a region")
    }

    /// Returns the bytes in flight by rail.
    fn loads(lanes: &Lanes<Counting>) -> Vec<u64> {
        lanes.rails.iter().map(|rail| rail.bytes).collect()
    }

    /// Completes all accepted writes.
    fn complete(lanes: &mut Lanes<Counting>) {
        lanes.flush();
        for peer in 0..lanes.peers.len() as u16 {
            for lane in 0..lanes.of(peer.into()).len() as u16 {
                lanes.complete((peer, lane), u64::MAX >> 1, |_| ());
            }
        }
        assert!(loads(lanes).iter().all(|bytes| *bytes == 0));
    }

    #[test]
    fn one_put_per_peer_and_call_uses_all_nics() {
        for (peers, rails) in [(63, 4), (7, 2), (8, 4), (3, 4)] {
            let mut lanes = lanes(peers, rails, 1, 16);
            for _ in 0..5 {
                for peer in 0..peers {
                    assert!(put(&mut lanes, peer, 1 << 20));
                }
                let loads = loads(&lanes);
                let (least, most) = (loads.iter().min(), loads.iter().max());
                let spread = most.expect("rails") - least.expect("rails");
                assert!(spread <= cost(1 << 20), "{loads:?}");
                complete(&mut lanes);
            }
        }
    }

    /// A small message with sizes precedes the data. The data of successive calls must not all use the same NIC.
    #[test]
    fn large_puts_do_not_all_use_one_nic() {
        for rails in [2, 4] {
            let mut lanes = lanes(15, rails, 1, 16);
            for _ in 0..5 {
                for peer in 0..15 {
                    assert!(put(&mut lanes, peer, 64) && put(&mut lanes, peer, 200_000));
                }
                let loads = loads(&lanes);
                let all: u64 = loads.iter().sum();
                let most = *loads.iter().max().expect("rails");
                assert!(most <= all / rails as u64 + 2 * cost(200_000), "{loads:?}");
                complete(&mut lanes);
            }
        }
    }

    /// When each put completes before the next one is posted, the loads are all equal.
    #[test]
    fn peers_start_on_different_idle_nics() {
        let mut lanes = lanes(4, 4, 1, 16);
        let mut used = vec![0; 4];
        for peer in 0..4 {
            put(&mut lanes, peer, 8);
            let at = loads(&lanes).iter().position(|bytes| *bytes > 0);
            used[at.expect("one")] += 1;
            complete(&mut lanes);
        }
        assert_eq!(used, [1; 4]);
    }

    #[test]
    fn a_nic_that_is_down_gets_writes_only_if_no_other_has_room() {
        let mut lanes = lanes(1, 2, 1, 2);
        lanes.set_down(1, true);
        assert!(put(&mut lanes, 0, 8) && put(&mut lanes, 0, 8));
        assert_eq!(loads(&lanes), [2 * cost(8), 0]);
        assert!(put(&mut lanes, 0, 8) && put(&mut lanes, 0, 8) && !put(&mut lanes, 0, 8));
        complete(&mut lanes);
        lanes.set_down(1, false);
        put(&mut lanes, 0, 8);
        put(&mut lanes, 0, 8);
        assert_eq!(loads(&lanes), [cost(8); 2]);
    }

    #[test]
    fn a_flush_posts_only_on_lanes_with_a_batch() {
        let mut lanes = lanes(63, 4, 2, 16);
        for peer in [5, 40, 5] {
            put(&mut lanes, peer, 100);
        }
        assert_eq!(lanes.batched.len(), 3);
        put(&mut lanes, 5, 100);
        assert!(lanes.flush().is_empty() && lanes.batched.is_empty());
        let posts: usize = (0..63)
            .flat_map(|peer| lanes.of(peer))
            .map(|lane| lane.pair.posts.iter().sum::<usize>())
            .sum();
        assert_eq!(posts, 4);
        lanes.flush();
        let calls = |lanes: &Lanes<Counting>| -> usize {
            let all = (0..63).flat_map(|peer| lanes.of(peer));
            all.map(|lane| lane.pair.posts.len()).sum()
        };
        assert_eq!(calls(&lanes), 4);
    }

    #[test]
    fn only_consumed_receives_are_replaced() {
        let mut lanes = lanes(63, 4, 1, 16);
        for at in [(7, 1), (7, 1), (60, 3)] {
            lanes.consume_receive(at);
        }
        let mut posted = Vec::new();
        let refused = lanes.replace_receives(|_, rail, count| {
            posted.push((rail, count));
            Ok(())
        });
        assert!(refused.is_empty());
        assert_eq!(posted, [(1, 2), (3, 1)]);
        lanes.replace_receives(|_, _, _| unreachable!("none was used since"));
    }

    #[test]
    fn the_writes_to_a_lost_peer_do_not_load_nics() {
        let mut lanes = lanes(2, 2, 1, 16);
        for _ in 0..6 {
            put(&mut lanes, 0, 5000);
        }
        lanes.drop_writes(0);
        assert_eq!(loads(&lanes), [0, 0]);
    }
}
