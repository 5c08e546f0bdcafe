//! The emulated transport conforms, as it is and with faults, and takes the time that it says.

use mkernel_fabric::emulated::{Faults, Nic};
use mkernel_fabric::testing::{Buffer, peer_id, peer_offers};
use mkernel_fabric::testing::{EmulatedSubject, Subject, conformance::run_all};
use mkernel_fabric::{Event, Place, RegionId, Transport, Write};
use std::time::{Duration, Instant};

#[test]
fn emulated_nics_conform() {
    run_all(&mut EmulatedSubject::new(
        Nic::default(),
        vec![Faults::default()],
    ));
}

#[test]
fn unordered_ones_do_too() {
    let faults = Faults {
        seed: 5,
        jitter: Duration::from_micros(50),
        loss: 0.1,
        retransmission: Duration::from_micros(300),
        duplicates: 0.2,
        ..Faults::default()
    };
    let nic = Nic {
        rails: 4,
        queue_depth: 64,
        receives: 24,
        ..Nic::default()
    };
    run_all(&mut EmulatedSubject::new(nic, vec![faults]));
}

/// Connected, with a region of so many bytes each.
fn pair(subject: &mut EmulatedSubject, bytes: usize) -> Vec<Box<dyn Transport>> {
    let mut pair = subject.make(2);
    for transport in &mut pair {
        transport
            .register(Buffer::new(bytes).memory())
            .expect("registers");
    }
    for of in 0..2 {
        let offers = peer_offers(2, of, |peer, of| pair[peer].offer(of).expect("an offer"));
        pair[of].connect(&offers, Instant::now()).expect("connects");
    }
    pair
}

/// Modelled nanoseconds until `writes` writes of `bytes` have been sent, with at most the queue's depth on their way; and
/// those until the first arrived.
fn time(nic: Nic, writes: u64, bytes: u32) -> (u64, u64) {
    let mut subject = EmulatedSubject::new(nic, vec![]);
    let mut pair = pair(&mut subject, bytes.max(1) as usize);
    let place = Place {
        region: RegionId(0),
        offset: 0,
    };
    let (mut posted, mut sent, mut first_arrival) = (0, 0, None);
    let mut events = Vec::new();
    while sent < writes {
        if posted < writes {
            let write = Write {
                peer: peer_id(0, 1),
                source: place,
                target: place,
                bytes,
                immediate: 0,
                id: posted,
            };
            posted += pair[0].post(&[write]).expect("posts") as u64;
        }
        for transport in &mut pair {
            transport.poll(&mut events).expect("polls");
        }
        for event in events.drain(..) {
            sent += u64::from(matches!(event, Event::Sent { .. }));
            if matches!(event, Event::Arrived { .. }) {
                first_arrival.get_or_insert(subject.now_ns());
            }
        }
        if sent < writes && (posted == writes || posted - sent >= 256) {
            subject.idle();
        }
    }
    (subject.now_ns(), first_arrival.expect("arrived"))
}

#[test]
fn bandwidth_is_as_set() {
    for (rails, gb_per_s) in [(1, 50.0), (2, 25.0), (1, 12.5)] {
        let nic = Nic {
            rails,
            gb_per_s,
            ..Nic::default()
        };
        let (writes, bytes) = (2000, 256 << 10);
        let (ns, _) = time(nic, writes, bytes);
        let delivered = (writes * u64::from(bytes)) as f64 / ns as f64;
        let set = gb_per_s * f64::from(rails);
        println!("{rails} x {gb_per_s} GB/s: {delivered:.2} GB/s of modelled time");
        assert!(
            (0.94 * set..=set).contains(&delivered),
            "{delivered} of {set} GB/s"
        );
    }
}

#[test]
fn latency_is_as_set() {
    for (latency_us, bytes, expected_ns) in [(2, 0, 2_010), (7, 0, 7_010), (2, 5_000, 2_110)] {
        let nic = Nic {
            latency: Duration::from_micros(latency_us),
            ..Nic::default()
        };
        let (ns, arrival_ns) = time(nic, 1, bytes);
        assert_eq!(arrival_ns, expected_ns);
        assert_eq!(ns, expected_ns + 1000 * latency_us, "the completion");
    }
}
