//! [`Lanes`]: the queue pairs to all peers, which of them a write takes, and which have something to be posted.
//!
//! A call may have no more than one or two puts for each peer. So that these use all NICs, a write takes the NIC with the
//! fewest bytes on their way, to whichever peer; and where that is equal, the NIC after the one of the peer's last write,
//! at first a different one for each peer. What is posted is found by lists, never by a look at every lane.

use super::lane::Lane;
use super::queue_pair_type::{QueuePairType, WorkRequest};
use super::rail::LaneId;
use std::io;

/// What a write costs a NIC beside its bytes, in bytes: packet headers and work request.
const WRITE_COST_BYTES: u64 = 256;

/// What is wrong with a lane.
pub(super) type Refused = (LaneId, io::Error);

/// The lanes to each peer. Lane i is on rail i modulo the number of rails.
pub(super) struct Lanes<K> {
    peers: Vec<PeerLanes<K>>,
    rails: Vec<RailLoad>,
    /// Lanes with a batch, and with receives to post again: each once.
    batched: Vec<LaneId>,
    used: Vec<LaneId>,
}

struct PeerLanes<K> {
    lanes: Vec<Lane<K>>,
    /// The lane that gets the next write, where no other NIC has fewer bytes.
    next: usize,
}

/// What writes to all peers have on one NIC.
#[derive(Default)]
struct RailLoad {
    bytes: u64,
    is_down: bool,
}

impl<K: QueuePairType> Lanes<K> {
    /// None yet, for so many peers over so many NICs. Endpoints with different `salt`s begin with different NICs, so that
    /// not all of them reach one peer by the same of its NICs.
    pub(super) fn new(peers: u16, rails: usize, salt: usize) -> Self {
        let peer = |number| PeerLanes {
            lanes: Vec::new(),
            next: salt % rails.max(1) + usize::from(number),
        };
        Self {
            peers: (0..peers).map(peer).collect(),
            rails: (0..rails).map(|_| RailLoad::default()).collect(),
            batched: Vec::new(),
            used: Vec::new(),
        }
    }

    /// A peer's.
    pub(super) fn of(&self, peer: usize) -> &[Lane<K>] {
        &self.peers[peer].lanes
    }

    /// A peer's, to be connected.
    pub(super) fn of_mut(&mut self, peer: usize) -> &mut [Lane<K>] {
        &mut self.peers[peer].lanes
    }

    /// One more, on the next rail.
    pub(super) fn push(&mut self, peer: usize, lane: Lane<K>) {
        self.peers[peer].lanes.push(lane);
    }

    /// New writes avoid a NIC whose port is down, as long as another one takes them.
    pub(super) fn set_down(&mut self, rail: usize, is_down: bool) {
        self.rails[rail].is_down = is_down;
    }

    /// The lane for the next write to a peer, if one has room.
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

    /// Puts a write into a lane's batch; false if no lane has room. `work` is the write on a given rail; none, which this
    /// returns, if it cannot be.
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

    /// Posts all batches; those that a queue pair did not take.
    pub(super) fn flush(&mut self) -> Vec<Refused> {
        let mut refused = Vec::new();
        for at in self.batched.drain(..) {
            let lane = &mut self.peers[usize::from(at.0)].lanes[usize::from(at.1)];
            refused.extend(lane.flush().err().map(|error| (at, error)));
        }
        refused
    }

    /// Calls `sent` with the ids of all writes that a successful completion stands for.
    pub(super) fn complete(&mut self, at: LaneId, tag: u64, mut sent: impl FnMut(u64)) {
        let rails = self.rails.len();
        let rail = &mut self.rails[usize::from(at.1) % rails];
        let lane = &mut self.peers[usize::from(at.0)].lanes[usize::from(at.1)];
        lane.complete(tag, |id, bytes| {
            rail.bytes -= cost(bytes);
            sent(id);
        });
    }

    /// An arrival has used a receive.
    pub(super) fn use_receive(&mut self, at: LaneId) {
        let lane = &mut self.peers[usize::from(at.0)].lanes[usize::from(at.1)];
        if lane.used_receives == 0 {
            self.used.push(at);
        }
        lane.used_receives += 1;
    }

    /// Posts receives again where arrivals have used some: `receive` does so, on a queue pair of a rail; those that did not
    /// take them.
    pub(super) fn repost(
        &mut self,
        mut receive: impl FnMut(&K, usize, u32) -> io::Result<()>,
    ) -> Vec<Refused> {
        let mut refused = Vec::new();
        for at in self.used.drain(..) {
            let lane = &mut self.peers[usize::from(at.0)].lanes[usize::from(at.1)];
            let used = std::mem::take(&mut lane.used_receives);
            let outcome = receive(&lane.pair, usize::from(at.1) % self.rails.len(), used);
            refused.extend(outcome.err().map(|error| (at, error)));
        }
        refused
    }

    /// The peer is lost: nothing that is on its way to it completes any more.
    pub(super) fn forget(&mut self, peer: u16) {
        let rails = self.rails.len();
        for (number, lane) in self.peers[usize::from(peer)].lanes.iter_mut().enumerate() {
            let rail = &mut self.rails[number % rails];
            lane.forget(|bytes| rail.bytes -= cost(bytes));
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

    /// A queue pair without a device, which counts how often something is posted on it.
    #[derive(Default)]
    struct Counting {
        posts: Vec<usize>,
    }

    impl QueuePairType for Counting {
        const NAME: &'static str = "counting";
        const SERVICE: u8 = 0;
        const IN_ORDER: bool = true;

        fn capability(_: &Device, _: &Port) -> Result<Capability, String> {
            Err("it is none".into())
        }
        fn new(_: &Rail, _: QueueDepth, _: u32) -> Result<Self, String> {
            Err("it is none".into())
        }
        fn pair(&self) -> &QueuePair {
            unreachable!("it has none")
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
        lanes.accept(peer, work).expect("it can be")
    }

    /// Bytes on their way, by rail.
    fn loads(lanes: &Lanes<Counting>) -> Vec<u64> {
        lanes.rails.iter().map(|rail| rail.bytes).collect()
    }

    /// Completes all that was accepted.
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
    fn one_put_for_each_peer_and_call_uses_all_nics() {
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

    /// A packet of sizes, then the data: these must not all be on the same NIC, call after call.
    #[test]
    fn large_puts_do_not_follow_small_ones_to_one_nic() {
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

    /// Where each put is over before the next one comes, loads say nothing.
    #[test]
    fn peers_take_turns_at_nics_that_are_idle() {
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
    fn a_nic_that_is_down_gets_a_write_only_where_no_other_has_room() {
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
    fn a_flush_posts_on_the_lanes_with_a_batch_and_no_others() {
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
    fn receives_are_posted_again_where_some_were_used_and_nowhere_else() {
        let mut lanes = lanes(63, 4, 1, 16);
        for at in [(7, 1), (7, 1), (60, 3)] {
            lanes.use_receive(at);
        }
        let mut posted = Vec::new();
        let refused = lanes.repost(|_, rail, count| {
            posted.push((rail, count));
            Ok(())
        });
        assert!(refused.is_empty());
        assert_eq!(posted, [(1, 2), (3, 1)]);
        lanes.repost(|_, _, _| unreachable!("none was used since"));
    }

    #[test]
    fn a_lost_peer_leaves_its_nics_to_others() {
        let mut lanes = lanes(2, 2, 1, 16);
        for _ in 0..6 {
            put(&mut lanes, 0, 5000);
        }
        lanes.forget(0);
        assert_eq!(loads(&lanes), [0, 0]);
    }
}
