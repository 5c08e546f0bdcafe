//! Tests of the lanes over queue pairs without a device.

use super::*;
use crate::verbs::connect_info::{QueuePairInfo, RailInfo, RemoteAddress};
use crate::verbs::device::{Device, Port};
use crate::verbs::queue_pair::{Capability, QueuePair};
use crate::verbs::queue_pair_type::Purpose;
use crate::verbs::rail::{Rail, Sender};
use ibverbs_sys::ibv_sge;

/// A queue pair without a device that counts the requests posted on it.
#[derive(Default)]
struct Counting {
    posts: Vec<usize>,
}

impl QueuePairType for Counting {
    const NAME: &'static str = "counting";
    const SERVICE: u8 = 0;
    const IN_ORDER: bool = true;
    const SERVES_ALL_PEERS: bool = false;
    const MAX_QUEUE_PAIRS: u8 = 1;

    fn capability(_: &Device, _: &Port) -> Result<Capability, String> {
        Err("it has no device".into())
    }
    fn new(_: &Rail, _: u32, _: Purpose) -> Result<Self, String> {
        Err("it has no device".into())
    }
    fn pair(&self) -> &QueuePair {
        unreachable!("it has no queue pair")
    }
    fn nonce(random: u32) -> u32 {
        random
    }
    fn connect(
        &mut self,
        _: u16,
        _: &Rail,
        _: &RailInfo,
        _: QueuePairInfo,
    ) -> Result<Option<Sender>, String> {
        Ok(None)
    }
    fn post(&mut self, requests: &[WorkRequest]) -> io::Result<()> {
        self.posts.push(requests.len());
        Ok(())
    }
    fn read(&mut self, _: ibv_sge, _: RemoteAddress) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn receive(&self, _: &Rail, _: u32) -> io::Result<()> {
        Ok(())
    }
}

fn lane(rail: usize, peer: Option<u16>, writes: u32) -> Lane<Counting> {
    Lane::with(Counting::default(), rail, peer, writes)
}

fn counters(rails: usize) -> Arc<[RailCounters]> {
    RailCounters::of((0..rails).map(|rail| rail.to_string()))
}

/// Creates lanes that serve one peer each.
fn lanes(peers: u16, rails: usize, of_each: usize, writes: u32) -> Lanes<Counting> {
    let mut lanes = Lanes::new(peers, counters(rails), u32::MAX, 0);
    for peer in 0..peers {
        for index in 0..rails * of_each {
            lanes.add(lane(index % rails, Some(peer), writes));
        }
    }
    lanes
}

/// Creates one lane per rail that serves all peers.
fn shared_lanes(peers: u16, rails: usize, writes: u32, writes_per_peer: u32) -> Lanes<Counting> {
    let mut lanes = Lanes::new(peers, counters(rails), writes_per_peer, 0);
    for rail in 0..rails {
        lanes.add(lane(rail, None, writes));
    }
    lanes
}

fn put(lanes: &mut Lanes<Counting>, peer: u16, bytes: u32) -> bool {
    let work = |_| {
        Some(WorkRequest {
            peer,
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
    for id in 0..lanes.lanes.len() as u32 {
        lanes.complete(LaneId(id), u64::MAX >> 1, |_| ());
    }
    assert!(loads(lanes).iter().all(|bytes| *bytes == 0));
    assert!(lanes.peers.iter().all(|peer| peer.in_flight == 0));
}

#[test]
fn one_put_per_peer_and_call_uses_all_nics() {
    for (peers, rails) in [(63, 4), (7, 2), (8, 4), (3, 4)] {
        for mut lanes in [
            lanes(peers, rails, 1, 16),
            shared_lanes(peers, rails, 64, 16),
        ] {
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

/// When each put completes before the next put is posted, all loads are equal.
#[test]
fn peers_start_on_different_idle_nics() {
    for mut lanes in [lanes(4, 4, 1, 16), shared_lanes(4, 4, 16, 16)] {
        let mut used = vec![0; 4];
        for peer in 0..4 {
            put(&mut lanes, peer, 8);
            let at = loads(&lanes).iter().position(|bytes| *bytes > 0);
            used[at.expect("one")] += 1;
            complete(&mut lanes);
        }
        assert_eq!(used, [1; 4]);
    }
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
    let counters = lanes.counters();
    let counts: Vec<_> = (counters.iter())
        .map(|rail| (rail.writes.get(), rail.bytes.get()))
        .collect();
    assert_eq!(counts, [(3, 24); 2]);
}

#[test]
fn a_peer_cannot_fill_a_queue_that_serves_all_peers() {
    let mut lanes = shared_lanes(3, 1, 10, 4);
    for _ in 0..4 {
        assert!(put(&mut lanes, 0, 8));
    }
    assert!(!put(&mut lanes, 0, 8), "peer 0 has used its share");
    for peer in [1, 1, 2, 2, 1, 2] {
        assert!(put(&mut lanes, peer, 8));
    }
    assert!(!put(&mut lanes, 1, 8), "the queue is full");
    complete(&mut lanes);
    assert!(put(&mut lanes, 0, 8));
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
    let posts = |lanes: &Lanes<Counting>| -> Vec<usize> {
        let all = lanes.lanes.iter();
        all.flat_map(|lane| lane.pair.posts.clone()).collect()
    };
    assert_eq!(posts(&lanes), [1; 4]);
    lanes.flush();
    assert_eq!(posts(&lanes).len(), 4);
}

/// Writes to different peers on a queue pair for all peers are posted together.
#[test]
fn a_lane_for_all_peers_posts_one_batch() {
    let mut lanes = shared_lanes(63, 1, 64, 16);
    (0..63).for_each(|peer| assert!(put(&mut lanes, peer, 100)));
    lanes.flush();
    assert_eq!(lanes.lanes[0].pair.posts, [63]);
}

/// The lanes of a rail share its receive queue. A lane that serves all peers has its own.
#[test]
fn consumed_receives_are_replaced_once_per_receive_queue() {
    let replaced = |lanes: &mut Lanes<Counting>| {
        let mut posted = Vec::new();
        let outcome = lanes.replace_receives(|lane, count| {
            posted.push((lane.rail, count));
            Ok(())
        });
        assert!(outcome.is_ok());
        posted.sort_unstable();
        posted
    };
    let mut lanes = lanes(63, 4, 1, 16);
    for id in [4 * 7 + 1, 4 * 7 + 1, 4 * 60 + 3, 4 * 9 + 1] {
        lanes.consume_receive(LaneId(id));
    }
    assert_eq!(replaced(&mut lanes), [(1, 3), (3, 1)]);
    assert_eq!(replaced(&mut lanes), [], "none was used since");
    let mut lanes = shared_lanes(63, 2, 64, 16);
    for id in [0, 1, 1] {
        lanes.consume_receive(LaneId(id));
    }
    assert_eq!(replaced(&mut lanes), [(0, 1), (1, 2)]);
}

#[test]
fn the_writes_to_a_lost_peer_do_not_load_nics() {
    let mut lanes = lanes(2, 2, 1, 16);
    for _ in 0..6 {
        put(&mut lanes, 0, 5000);
    }
    lanes.drop_writes(0);
    assert_eq!(loads(&lanes), [0, 0]);
    assert_eq!(lanes.peers[0].in_flight, 0);
}

/// A queue pair for all peers still holds these writes. They load the NIC until it reports their ends.
#[test]
fn the_writes_to_a_lost_peer_keep_their_room_in_a_queue_for_all_peers() {
    let mut lanes = shared_lanes(2, 1, 16, 16);
    put(&mut lanes, 0, 5000);
    put(&mut lanes, 1, 5000);
    lanes.drop_writes(0);
    assert_eq!(loads(&lanes), [2 * cost(5000)]);
    complete(&mut lanes);
}
