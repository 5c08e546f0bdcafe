//! The transport `rc` on Soft-RoCE, in the machine that `.ci/soft-roce` creates. `.ci/rdma` runs the tests.
//!
//! The tests run as root, with devices rxe0 to rxe3 on interfaces eth0 to eth3.

#[path = "rc/other_machine.rs"]
mod other_machine;
#[path = "rc/shared_receives.rs"]
mod shared_receives;
mod verbs;

use mkernel_fabric::testing::conformance::{CHECKS, run_all};
use mkernel_fabric::testing::pattern;
use mkernel_fabric::verbs::{Options, rc};
use mkernel_fabric::{DmaBuf, FabricError, MemoryKind, MemoryRange, PeerId, Transport};
use other_machine::{connect_to_other_machine, exchange, other_machine};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use verbs::{Made, Node, meet};

/// Serialises the tests, because some tests change the network and other tests need an unchanged network.
static NETWORK: Mutex<()> = Mutex::new(());

fn network() -> MutexGuard<'static, ()> {
    NETWORK
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs a program that changes the network. The arguments are separated by white space.
fn run(line: &str) {
    let mut words = line.split_whitespace();
    let status = Command::new(words.next().unwrap())
        .args(words)
        .status()
        .unwrap();
    assert!(status.success(), "{line}: {status}");
}

/// Injects faults into the packets that leave an interface, until this value is dropped.
struct Netem(&'static [u8]);

impl Netem {
    fn new(devices: &'static [u8], faults: &str) -> Self {
        devices.iter().for_each(|device| {
            run(&format!(
                "tc qdisc replace dev eth{device} root netem limit 100000 {faults}"
            ))
        });
        Self(devices)
    }
}

impl Drop for Netem {
    fn drop(&mut self) {
        self.0
            .iter()
            .for_each(|device| run(&format!("tc qdisc del dev eth{device} root")));
    }
}

/// Returns the options of a transport over the given devices for the given number of peers.
fn options(peers: u16, devices: &[u8]) -> Options {
    let devices = devices
        .iter()
        .map(|device| format!("rxe{device}"))
        .collect();
    Options {
        devices,
        peer_timeout: Duration::from_secs(2),
        ..Options::new(peers)
    }
}

fn open(options: Options) -> Box<dyn Transport> {
    Box::new(rc(options).unwrap())
}

/// Creates endpoints with one device each.
fn endpoints(devices: &[u8]) -> Vec<Box<dyn Transport>> {
    let peers = devices.len() as u16 - 1;
    devices
        .iter()
        .map(|device| open(options(peers, &[*device])))
        .collect()
}

#[test]
fn conformance() {
    let _network = network();
    run_all(&mut Made(|count| endpoints(&[0, 1, 2, 3][..count])));
}

/// Arrivals wait for reads of the own memory over queue pairs that are connected to themselves.
#[test]
fn conformance_with_flushes() {
    let _network = network();
    let open = |device: &u8, peers| {
        open(Options {
            flush: true,
            ..options(peers, &[*device])
        })
    };
    let mut subject = Made(|count: usize| -> Vec<_> {
        let devices = [0, 1, 2, 3];
        let devices = devices[..count].iter();
        devices
            .map(|device| open(device, count as u16 - 1))
            .collect()
    });
    // All checks take long on Soft-RoCE, and EFA passes all.
    for name in [
        "a lost peer is reported, and no other peer is",
        "large puts",
    ] {
        let (_, check) = CHECKS.iter().find(|(known, _)| *known == name).unwrap();
        check(&mut subject);
    }
    verbs::flushes::arrivals_are_flushed(vec![open(&0, 1), open(&1, 1)]);
}

#[test]
#[ignore = "needs NICs"]
fn conformance_of_nics() {
    verbs::conformance_of_nics(open);
}

/// Two NICs on each side with two queue pairs each have different delays, so that arrivals come out of order.
#[test]
fn rails_and_queue_pairs() {
    let _network = network();
    let wide = |devices: &[u8]| {
        open(Options {
            queue_pairs: 2,
            writes: 16,
            receives: 64,
            ..options(1, devices)
        })
    };
    let mut nodes = meet(vec![wide(&[0, 1]), wide(&[2, 3])]);
    let limits = nodes[0].transport.limits();
    assert_eq!((limits.rails, limits.writes, limits.receives), (2, 64, 64));
    let _delay = Netem::new(&[1], "delay 3ms 2ms");
    let inversions = verbs::streams_arrive(&mut nodes, 400, 3000, Duration::from_secs(60));
    assert!(
        inversions > 0,
        "the network kept the order: the test shows nothing"
    );
}

#[test]
fn packets_are_lost_delayed_and_reordered() {
    let _network = network();
    // Soft-RoCE repeats everything from the missing packet on, which takes longer.
    let patient = |device| {
        open(Options {
            peer_timeout: Duration::from_secs(4),
            writes: 16,
            ..options(1, &[device])
        })
    };
    let mut nodes = meet(vec![patient(0), patient(1)]);
    let _faults = Netem::new(&[0, 1], "delay 1ms 1ms reorder 20% loss 1%");
    verbs::streams_arrive(&mut nodes, 60, 5000, Duration::from_secs(90));
}

#[test]
fn wrong_keys() {
    let _network = network();
    verbs::a_wrong_key_loses_its_peer_only(endpoints(&[0, 1, 2]), &["rxe0", "remote access error"]);
}

#[test]
fn damaged_connect_info() {
    let _network = network();
    verbs::damaged_connect_info_is_refused(endpoints(&[0, 1]));
}

#[test]
fn damaged_region_info() {
    let _network = network();
    verbs::damaged_region_info_is_refused(endpoints(&[0, 1]));
}

#[test]
fn a_disconnected_cable() {
    let _network = network();
    let mut nodes = meet(endpoints(&[0, 1]));
    let _dead = Netem::new(&[1], "loss 100%");
    assert_eq!(
        nodes[0]
            .transport
            .post(&[verbs::write(PeerId(0), 0, 0, 100, 1)]),
        Ok(1)
    );
    verbs::until(&mut nodes, Duration::from_secs(10), "loss", |nodes| {
        !nodes[0].lost.is_empty()
    });
    let (_, reason) = &nodes[0].lost[0];
    assert!(
        reason.contains("rxe0") && reason.contains("retry"),
        "{reason}"
    );
}

/// Takes an interface down until this value is dropped.
struct Down(u8);

impl Down {
    fn new(device: u8) -> Self {
        run(&format!("ip link set eth{device} down"));
        Self(device)
    }
}

impl Drop for Down {
    fn drop(&mut self) {
        run(&format!("ip link set eth{} up", self.0));
    }
}

/// Returns the first error of polling a node's transport.
fn error_of(node: &mut Node) -> FabricError {
    let end = Instant::now() + Duration::from_secs(20);
    let mut poll = || {
        assert!(Instant::now() < end, "no error");
        node.transport.poll(&mut Vec::new()).err()
    };
    std::iter::repeat_with(&mut poll)
        .find_map(|error| error)
        .unwrap()
}

/// No write is in flight, so only the port's event reports the failure. The failure is an error of this NIC and not the loss of
/// a peer.
#[test]
fn a_port_that_is_down() {
    let _network = network();
    let mut nodes = meet(endpoints(&[0, 1]));
    let _down = Down::new(0);
    let error = error_of(&mut nodes[0]).to_string();
    assert!(error.contains("rxe0: port 1 has been down for"), "{error}");
    nodes[1].poll();
    assert!(nodes[1].lost.is_empty());
}

/// If one of two ports goes down, writes that are posted later use the other port. The missing port becomes an error after its
/// time limit.
#[test]
fn one_of_two_ports_is_down() {
    const WRITES: u32 = 12;
    let _network = network();
    let two = |devices: &[u8]| {
        open(Options {
            port_down_limit: Duration::from_secs(15),
            ..options(1, devices)
        })
    };
    let mut nodes = meet(vec![two(&[0, 1]), two(&[2, 3])]);
    let _down = Down::new(1);
    let seen = Instant::now() + Duration::from_millis(500);
    while Instant::now() < seen {
        nodes[0].poll();
    }
    let writes: Vec<_> = (0..WRITES)
        .map(|number| verbs::write(PeerId(0), 0, 0, 100, number))
        .collect();
    assert_eq!(nodes[0].transport.post(&writes), Ok(writes.len()));
    verbs::until(&mut nodes, Duration::from_secs(10), "arrivals", |nodes| {
        nodes[0].sent.len() == writes.len() && nodes[1].arrived.len() == writes.len()
    });
    let error = error_of(&mut nodes[0]).to_string();
    assert!(error.contains("rxe1: port 1 has been down"), "{error}");
}

#[test]
fn errors_of_opening_state_the_cause() {
    let error = |options| match rc(options) {
        Err(FabricError::Nic { reason }) => reason,
        other => panic!("{:?}", other.err()),
    };
    let reason = error(Options {
        devices: vec!["mlx5_9".into()],
        ..Options::new(1)
    });
    assert!(
        reason.contains("mlx5_9") && reason.contains("rxe0, rxe1"),
        "{reason}"
    );
    let reason = error(Options {
        port: Some(2),
        ..options(1, &[0])
    });
    assert!(reason.contains("ports are 1 to 1"), "{reason}");
    let reason = error(Options {
        gid_index: Some(99),
        ..options(1, &[0])
    });
    assert!(
        reason.contains("no GID with index 99") && reason.contains("0 = fe80::"),
        "{reason}"
    );
    let reason = error(Options {
        writes: 1 << 15,
        receives: 1 << 15,
        ..options(4, &[0])
    });
    assert!(reason.contains("rxe0"), "{reason}");
}

/// Soft-RoCE does not support dma-bufs, and the message names an alternative.
#[test]
fn a_driver_without_dma_buf_support_is_reported() {
    let file = std::fs::File::open("/dev/null").unwrap();
    let dma_buf = Some(DmaBuf {
        fd: Arc::new(file.into()),
        offset_bytes: 0,
    });
    // SAFETY: the driver refuses the memory, so nothing accesses it.
    let memory = unsafe { MemoryRange::new(0x1000, 4096, MemoryKind::Gpu { device: 0, dma_buf }) };
    match open(options(1, &[0])).register(memory) {
        Err(FabricError::Register {
            address: 0x1000,
            bytes: 4096,
            reason,
        }) => {
            assert!(
                reason.contains("rxe0") && reason.contains("dma-buf"),
                "{reason}"
            );
        }
        other => panic!("{other:?}"),
    }
}

/// The program runs in both machines, each with an endpoint of two rails.
#[test]
#[ignore = "needs two machines: .ci/rdma"]
fn two_machines() {
    const WRITES: u32 = 20;
    const BYTES: usize = 5000;
    let machine: usize = std::env::var("MACHINE").unwrap().parse().unwrap();
    let mut stream = other_machine(machine);
    let mut nodes = vec![Node::new(open(Options {
        peer_timeout: Duration::from_secs(4),
        ..options(1, &[0, 1])
    }))];
    connect_to_other_machine(&mut nodes[0], machine, &mut stream);
    for round in 0..4 {
        let seed =
            |machine: usize, index: u32| (machine as u64) << 16 | u64::from(round * WRITES + index);
        let place = |index: u32| index as usize * BYTES;
        let writes: Vec<_> = (0..WRITES)
            .map(|index| {
                nodes[0]
                    .memory
                    .write(place(index), &pattern(seed(machine, index), BYTES));
                let target = verbs::REGION_BYTES / 2 + place(index);
                verbs::write(PeerId(0), place(index), target, BYTES, index)
            })
            .collect();
        exchange(&mut stream, &[]);
        assert_eq!(nodes[0].transport.post(&writes), Ok(writes.len()));
        let all = WRITES as usize * (round as usize + 1);
        verbs::until(&mut nodes, Duration::from_secs(60), "arrivals", |nodes| {
            nodes[0].arrived.len() == all && nodes[0].sent.len() == all
        });
        for index in 0..WRITES {
            let got = nodes[0]
                .memory
                .read(verbs::REGION_BYTES / 2 + place(index), BYTES);
            assert!(
                got == pattern(seed(1 - machine, index), BYTES),
                "write {index} of round {round}"
            );
        }
    }
    exchange(&mut stream, &[]);
    if machine == 0 {
        exchange(&mut stream, &[]);
        assert_eq!(
            nodes[0]
                .transport
                .post(&[verbs::write(PeerId(0), 0, 0, 100, 1)]),
            Ok(1)
        );
        verbs::until(&mut nodes, Duration::from_secs(20), "loss", |nodes| {
            !nodes[0].lost.is_empty()
        });
    } else {
        drop(nodes);
        exchange(&mut stream, &[]);
    }
}
