//! The transport `efa` with the real libefa over devices in software (`efa/nic.h`, loaded by LD_PRELOAD). `.ci/rdma`
//! runs the tests.
//!
//! The devices nic0 to nic3 have all capabilities. nic4 and nic5 need a receive for each arrival. nic6 cannot write
//! to the memory of peers.

mod verbs;

use mkernel_fabric::testing::conformance::run_all;
use mkernel_fabric::verbs::{Options, efa, rc};
use mkernel_fabric::{FabricError, PeerId, RegionId, Transport};
use std::time::Duration;
use verbs::{Made, Node, meet};

fn options(peers: u16, devices: &[u8]) -> Options {
    Options {
        devices: devices
            .iter()
            .map(|device| format!("nic{device}"))
            .collect(),
        ..Options::new(peers)
    }
}

fn open(options: Options) -> Box<dyn Transport> {
    Box::new(efa(options).unwrap())
}

/// Creates endpoints with one device each.
fn endpoints(devices: &[u8]) -> Vec<Box<dyn Transport>> {
    devices
        .iter()
        .map(|device| open(options(devices.len() as u16 - 1, &[*device])))
        .collect()
}

#[test]
fn conformance() {
    run_all(&mut Made(|count| endpoints(&[0, 1, 2, 3][..count])));
}

/// Arrivals wait for reads of the own memory, on devices with and without receives for arrivals.
#[test]
fn conformance_with_flushes() {
    let open = |device: &u8, peers| {
        open(Options {
            flush: true,
            relaxed_ordering: true,
            ..options(peers, &[*device])
        })
    };
    for devices in [[0, 1, 2], [4, 5, 0]] {
        run_all(&mut Made(|count| {
            let devices = devices[..count].iter();
            devices
                .map(|device| open(device, count as u16 - 1))
                .collect()
        }));
    }
    verbs::flushes::arrivals_are_flushed(vec![open(&0, 1), open(&4, 1)]);
}

#[test]
#[ignore = "needs NICs"]
fn conformance_of_nics() {
    verbs::conformance_of_nics(open);
}

/// Two of the three endpoints need a receive for each arrival.
#[test]
fn conformance_with_receives() {
    run_all(&mut Made(|count| endpoints(&[4, 5, 0][..count])));
}

#[test]
fn three_endpoints_in_no_order() {
    for devices in [[0, 1, 2], [4, 5, 0]] {
        let inversions = verbs::streams_arrive(
            &mut meet(endpoints(&devices)),
            2000,
            5000,
            Duration::from_secs(60),
        );
        assert!(
            inversions > 100,
            "{inversions} inversions: the devices kept the order"
        );
    }
}

/// Receives are consumed and replaced many times. No receive may be missing in the end.
#[test]
fn receives_never_run_dry() {
    let few = |device| {
        open(Options {
            receives: 4,
            ..options(2, &[device])
        })
    };
    verbs::streams_arrive(
        &mut meet(vec![few(4), few(5), few(5)]),
        2000,
        64,
        Duration::from_secs(60),
    );
}

#[test]
fn rails_and_queue_pairs() {
    let wide = |devices: &[u8]| {
        open(Options {
            queue_pairs: 2,
            ..options(1, devices)
        })
    };
    let mut nodes = meet(vec![wide(&[0, 1]), wide(&[2, 3])]);
    let limits = nodes[0].transport.limits();
    assert_eq!(
        (limits.rails, limits.writes, limits.receives),
        (2, 512, 256)
    );
    verbs::streams_arrive(&mut nodes, 2000, 3000, Duration::from_secs(60));
}

/// A device has fewer queue pairs than its endpoints have peers together.
#[test]
fn queue_pairs_do_not_grow_with_peers() {
    let devices: Vec<u8> = (0..24).map(|endpoint| endpoint % 4).collect();
    let mut nodes = meet(endpoints(&devices));
    verbs::streams_arrive(&mut nodes, 30, 64, Duration::from_secs(100));
    assert!(nodes.iter().all(|node| node.dropped.is_empty()));
}

/// Two endpoints know the address of a third endpoint, which does not know the two endpoints. One of the two is behind an
/// unknown NIC, the other behind the NIC of a peer. Half of the receivers need a receive for each arrival.
#[test]
fn writes_of_unknown_senders_are_dropped_and_reported() {
    for [receiver, peer, stranger] in [[0, 1, 2], [4, 5, 3]] {
        let mut nodes: Vec<Node> = (endpoints(&[receiver, peer]).into_iter())
            .map(Node::new)
            .collect();
        let tables = verbs::tables(&mut nodes);
        verbs::connect(&mut nodes, &tables).unwrap();
        verbs::share(&mut nodes);
        let region_info = nodes[0].transport.region_info(RegionId(0));
        for (count, device) in [(1, stranger), (2, peer)] {
            let mut unknown = Node::new(open(options(1, &[device])));
            unknown.transport.connect_info(PeerId(0)).unwrap();
            // The tables are the connection info that the receiver has created for its peer.
            verbs::connect(std::slice::from_mut(&mut unknown), &tables[1..]).unwrap();
            let transport = &mut unknown.transport;
            transport.register(unknown.memory.memory()).unwrap();
            transport.add_peer_region(PeerId(0), &region_info).unwrap();
            let write = verbs::write(PeerId(0), 0, verbs::REGION_BYTES - 8, 8, 7);
            assert_eq!(transport.post(&[write]), Ok(1));
            verbs::until(&mut nodes, Duration::from_secs(10), "report", |nodes| {
                nodes[0].dropped.len() == count
            });
            let reason = &nodes[0].dropped[count - 1];
            let nic = format!("nic{receiver}");
            assert!(
                reason.contains(&nic) && reason.contains("not that of a peer"),
                "{reason}"
            );
        }
        assert!(nodes[0].arrived.is_empty() && nodes[0].lost.is_empty());
        verbs::streams_arrive(&mut nodes, 600, 64, Duration::from_secs(60));
    }
}

/// A peer that claims the queue pair of another peer is refused.
#[test]
fn two_peers_cannot_have_the_same_queue_pair() {
    let mut nodes: Vec<Node> = (endpoints(&[0, 1, 2]).into_iter()).map(Node::new).collect();
    let mut tables = verbs::tables(&mut nodes);
    tables[0][1].connect_info = tables[0][0].connect_info.clone();
    let Err(FabricError::Connect { peer, reason }) = verbs::connect(&mut nodes, &tables) else {
        panic!("connected")
    };
    assert!(
        &*peer.name == "endpoint 2" && reason.contains("also that of peer 0"),
        "{peer}: {reason}"
    );
}

#[test]
fn wrong_keys() {
    verbs::a_wrong_key_loses_its_peer_only(endpoints(&[0, 1, 2]), &["nic0", "remote access error"]);
}

#[test]
fn damaged_connect_info() {
    verbs::damaged_connect_info_is_refused(endpoints(&[0, 1]));
}

#[test]
fn damaged_region_info() {
    verbs::damaged_region_info_is_refused(endpoints(&[0, 1]));
}

#[test]
fn errors_of_opening_state_the_cause() {
    let reason = |result: Result<Box<dyn Transport>, FabricError>| match result {
        Err(FabricError::Nic { reason }) => reason,
        other => panic!("{:?}", other.err()),
    };
    let text = reason(efa(options(1, &[6])).map(|transport| Box::new(transport) as _));
    assert!(
        text.contains("nic6: it cannot write to memory of peers"),
        "{text}"
    );
    let text = reason(
        efa(Options {
            writes: 4000,
            ..options(1, &[0])
        })
        .map(|transport| Box::new(transport) as _),
    );
    assert!(
        text.contains("writes is 4000") && text.contains("at most 2048"),
        "{text}"
    );
    let text = reason(rc(Options::new(1)).map(|transport| Box::new(transport) as _));
    assert!(
        text.contains("no RDMA device is suitable for rc; nic0: it has no"),
        "{text}"
    );
}
