//! Tests of the receives that all peers of a NIC share.

use super::verbs::{self, meet};
use super::{network, open, options};
use mkernel_fabric::PeerId;
use mkernel_fabric::verbs::Options;
use std::time::{Duration, Instant};

/// Returns the number of times that a device has answered a sender that no receive is posted.
fn not_ready_answers(device: u8) -> u64 {
    let path = format!("/sys/class/infiniband/rxe{device}/ports/1/hw_counters/send_rnr_err");
    let count = std::fs::read_to_string(path).unwrap();
    count.trim().parse().unwrap()
}

/// Three peers use up their shares of the receives of one NIC while its owner does not poll. One more write has to wait.
#[test]
fn no_write_within_the_shares_waits_for_a_receive() {
    const SHARE: u32 = 16;
    let _network = network();
    let with_share = |device| {
        open(Options {
            receive_queue: 3 * SHARE,
            ..options(3, &[device])
        })
    };
    let mut nodes = meet([0, 1, 2, 3].map(with_share).into());
    assert_eq!(nodes[0].transport.limits().receives, SHARE);
    let before = not_ready_answers(0);
    let limit = Duration::from_secs(20);
    for round in 1..=5 {
        for node in &mut nodes[1..] {
            let number = |index| (round - 1) * SHARE + index;
            let writes: Vec<_> = (0..SHARE)
                .map(|index| verbs::write(PeerId(0), 0, 0, 64, number(index)))
                .collect();
            assert_eq!(node.transport.post(&writes), Ok(writes.len()));
        }
        let all = (round * SHARE) as usize;
        verbs::until(&mut nodes[1..], limit, "completion", |nodes| {
            nodes.iter().all(|node| node.sent.len() == all)
        });
        assert_eq!(not_ready_answers(0), before, "round {round}");
        verbs::until(&mut nodes[..1], limit, "arrival", |nodes| {
            nodes[0].arrived.len() == 3 * all
        });
    }
    let all = 5 * SHARE as usize;
    for count in 0..=3 * SHARE {
        let node = &mut nodes[1 + count as usize % 3];
        let write = verbs::write(PeerId(0), 0, 0, 64, 5 * SHARE + count);
        assert_eq!(node.transport.post(&[write]), Ok(1));
    }
    let seen = Instant::now() + limit;
    while not_ready_answers(0) == before {
        assert!(Instant::now() < seen, "the write beyond the shares arrived");
    }
    verbs::until(&mut nodes, limit, "arrival", |nodes| {
        nodes[0].arrived.len() == 3 * (all + SHARE as usize) + 1
    });
    assert!(verbs::losses(&nodes).is_empty());
}

/// The queue pairs of a lost peer take no receives from the other peers' queue pairs.
#[test]
fn a_lost_peer_leaves_the_receives_of_others() {
    let _network = network();
    let with_share = |device| {
        open(Options {
            receive_queue: 32,
            ..options(2, &[device])
        })
    };
    let mut nodes = meet([0, 1, 2].map(with_share).into());
    // Node 2 leaves while its writes arrive.
    let writes: Vec<_> = (0..16)
        .map(|number| verbs::write(PeerId(0), 0, 0, 64, number))
        .collect();
    assert_eq!(nodes[2].transport.post(&writes), Ok(writes.len()));
    drop(nodes.pop());
    let write = verbs::write(PeerId(1), 0, 0, 64, 99);
    assert_eq!(nodes[0].transport.post(&[write]), Ok(1));
    let limit = Duration::from_secs(20);
    verbs::until(&mut nodes, limit, "loss", |nodes| !nodes[0].lost.is_empty());
    let before = not_ready_answers(0);
    verbs::streams_arrive(&mut nodes, 300, 64, Duration::from_secs(60));
    assert_eq!(not_ready_answers(0), before);
}
