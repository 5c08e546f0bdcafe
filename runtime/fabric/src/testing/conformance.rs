//! The conformance tests: the guarantees of every transport, alone and under endpoints.

use super::buffer::{Buffer, pattern};
use super::peers::peer_id;
use super::raw::{REGION_BYTES, connect_infos_of, connected, share, unconnected};
use super::subject::Subject;
use super::traffic::{Traffic, TrafficRun};
use crate::error::FabricError;
use crate::peer_id::PeerId;
use crate::transport::{RegionId, RegionOffset, Write};
use std::time::{Duration, Instant};

/// A check and its name.
pub type Check = (&'static str, fn(&mut dyn Subject));

/// All checks.
pub const CHECKS: &[Check] = &[
    (
        "connection info is bounded, and damaged info is refused",
        connect_info,
    ),
    (
        "regions are added at any time, and damaged info is refused",
        regions,
    ),
    (
        "the bytes of a write are visible when it arrives",
        sizes_and_offsets,
    ),
    (
        "a full queue accepts fewer writes and loses none",
        full_queue,
    ),
    ("a lost peer is reported, and no other peer is", lost_peer),
    ("large puts", large_puts),
    ("many channels", many_channels),
    ("three endpoints", three_endpoints),
    ("counts wrap", wrapping_counts),
    ("a ring of two slots", small_ring),
    ("credits are used up and returned", credits),
    ("a close ends no other endpoint", close),
];

/// Runs all checks.
pub fn run_all(subject: &mut dyn Subject) {
    for (name, check) in CHECKS {
        let start = Instant::now();
        check(subject);
        println!("{name}: {:?}", start.elapsed());
    }
}

/// Calls `step` until it returns true. Time passes between the calls.
fn until(subject: &dyn Subject, what: &str, mut step: impl FnMut() -> bool) {
    let deadline = Instant::now() + subject.time_limit();
    while !step() {
        assert!(Instant::now() < deadline, "timed out waiting for {what}");
        subject.idle();
    }
}

fn write(peer: PeerId, source: usize, target: usize, bytes: usize, number: u32) -> Write {
    let place = |offset| RegionOffset {
        region: RegionId(0),
        offset: offset as u64,
    };
    Write {
        peer,
        source: place(source),
        target: place(target),
        bytes: bytes as u32,
        immediate: number,
        id: number.into(),
    }
}

fn connect_info(subject: &mut dyn Subject) {
    let mut raws = unconnected(subject, 2);
    let limits = raws[0].transport.limits();
    assert!(
        limits.writes >= 2 && limits.receives >= 16 && limits.rails >= 1,
        "{limits:?}"
    );
    let sound = connect_infos_of(&mut raws, 0);
    for length in [0, 1, sound[0].connect_info.len() - 1] {
        let mut raws = unconnected(subject, 2);
        let mut damaged = connect_infos_of(&mut raws, 0);
        damaged[0].connect_info.truncate(length);
        let deadline = Instant::now() + Duration::from_secs(1);
        let error = raws[0]
            .transport
            .connect(&damaged, deadline)
            .expect_err("damaged");
        assert!(error.to_string().contains("endpoint 1"), "{error}");
    }
}

fn regions(subject: &mut dyn Subject) {
    let mut raws = connected(subject, 2);
    let sound = raws[1].transport.region_info(RegionId(0));
    for length in [0, 1, sound.len() - 1] {
        let refused = raws[0]
            .transport
            .add_peer_region(peer_id(0, 1), &sound[..length]);
        assert!(!refused.expect_err("damaged").is_empty());
    }
    // A new region is the target of the first write and the source of the second.
    for number in 1..4 {
        let added: Vec<Buffer> = raws.iter().map(|_| Buffer::new(8192)).collect();
        let region = share(&mut raws, &added);
        assert_eq!(region, RegionId(number));
        let bytes = pattern(number.into(), 5000);
        raws[0].memory.write(100, &bytes);
        let mut to = write(peer_id(0, 1), 100, 3, 5000, u32::from(number));
        to.target.region = region;
        let mut back = write(peer_id(1, 0), 3, 70_000, 5000, u32::from(number));
        back.source.region = region;
        assert_eq!(raws[0].transport.post(&[to]), Ok(1));
        let count = usize::from(number);
        until(subject, "a write to a new region", || {
            raws.iter_mut().for_each(|raw| raw.poll(|_, _, _| ()));
            raws[1].arrived.len() == count
        });
        assert!(added[1].read(3, 5000) == bytes);
        assert_eq!(raws[1].transport.post(&[back]), Ok(1));
        until(subject, "a write from a new region", || {
            raws.iter_mut().for_each(|raw| raw.poll(|_, _, _| ()));
            raws[0].arrived.len() == count
        });
        assert!(raws[0].memory.read(70_000, 5000) == bytes);
    }
}

/// Both directions at once, from and to unaligned offsets, between bytes that must not change.
fn sizes_and_offsets(subject: &mut dyn Subject) {
    const TAG: u32 = 0xf000_0000;
    const SIZES: [usize; 7] = [0, 1, 7, 64, 4096, 1 << 20, 4095];
    let mut raws = connected(subject, 2);
    let longest = raws[0].transport.limits().write_bytes as usize;
    let half = REGION_BYTES / 2;
    let mut place = 1;
    for (number, bytes) in SIZES.map(|size| size.min(longest)).into_iter().enumerate() {
        let data = |from: usize| pattern((number * 2 + from) as u64, bytes);
        let other = PeerId(0);
        for (from, raw) in raws.iter_mut().enumerate() {
            raw.memory.write(place, &data(from));
            let write = write(
                other,
                place,
                half + place + 2,
                bytes,
                number as u32 | 0xf000_0000,
            );
            assert_eq!(raw.transport.post(&[write]).expect("posts"), 1);
        }
        until(subject, "writes of all sizes", || {
            for (at, raw) in raws.iter_mut().enumerate() {
                raw.poll(|memory, _, immediate| {
                    let again = immediate < number as u32 | TAG;
                    let place = half + place + 2;
                    assert!(again || immediate == number as u32 | TAG, "{immediate:#x}");
                    assert!(
                        again || memory.read(place, bytes) == data(1 - at),
                        "{bytes} bytes"
                    );
                    assert_eq!(
                        memory.read(place + bytes, 1),
                        [0],
                        "the byte after the write"
                    );
                });
            }
            raws.iter()
                .all(|raw| raw.arrived.len() == number + 1 && raw.sent.len() == number + 1)
        });
        place += bytes + 3;
    }
}

fn full_queue(subject: &mut dyn Subject) {
    let mut raws = connected(subject, 2);
    let limits = raws[0].transport.limits();
    let total = 4 * limits.writes.min(1000);
    let (mut posted, mut was_full) = (0, limits.receives <= limits.writes);
    raws[0].memory.write(0, &pattern(9, 4096));
    until(subject, "writes beyond the queue", || {
        let room = limits.receives - (posted - raws[1].arrived.len() as u32);
        let writes: Vec<Write> = (posted..total.min(posted + room))
            .map(|number| write(PeerId(0), 0, 8192, 4096, number))
            .collect();
        let accepted = raws[0].transport.post(&writes).expect("posts");
        was_full |= accepted < writes.len();
        posted += accepted as u32;
        raws[0].poll(|_, _, _| ());
        raws[1].poll(|_, _, _| ());
        raws[0].sent.len() == total as usize && raws[1].arrived.len() == total as usize
    });
    assert!(was_full, "a queue of {} accepted all writes", limits.writes);
    assert!(raws.iter().all(|raw| raw.lost.is_empty()));
}

fn lost_peer(subject: &mut dyn Subject) {
    let mut raws = connected(subject, 3);
    drop(raws.pop());
    for (at, raw) in raws.iter_mut().enumerate() {
        let dead = write(peer_id(at, 2), 0, 64, 8, 0);
        let alive = write(peer_id(at, 1 - at), 0, 64, 8, 1);
        assert_eq!(raw.transport.post(&[dead, alive]).expect("posts"), 2);
    }
    until(subject, "the loss", || {
        for raw in &mut raws {
            raw.poll(|_, _, _| ());
        }
        raws.iter()
            .all(|raw| raw.lost.len() == 1 && raw.arrived.len() == 1)
    });
    for (at, raw) in raws.iter().enumerate() {
        assert!(raw.lost.contains(&peer_id(at, 2)), "{:?}", raw.lost);
    }
}

/// All puts arrive with the right bytes, and no endpoint reports an error.
fn succeeds(subject: &mut dyn Subject, traffic: Traffic) {
    let mut run = TrafficRun::new(subject, traffic).expect("connects");
    run.run();
    for node in &run.nodes {
        assert!(
            node.error.is_none() && node.endpoint.is_some(),
            "{:?}",
            node.error
        );
    }
    check_stats(&run);
}

/// The counters of all endpoints agree with each other when all puts have arrived.
fn check_stats(run: &TrafficRun) {
    let endpoints = run.nodes.iter().filter_map(|node| node.endpoint.as_ref());
    let stats: Vec<_> = endpoints.map(|endpoint| endpoint.stats()).collect();
    let puts: u64 = stats.iter().map(|stats| stats.puts).sum();
    let arrivals: u64 = stats.iter().map(|stats| stats.arrivals).sum();
    assert!(puts > 0 && puts == arrivals, "{stats:?}");
    for stats in &stats {
        let writes: u64 = stats.rails.iter().map(|rail| rail.writes).sum();
        let bytes: u64 = stats.rails.iter().map(|rail| rail.bytes).sum();
        assert!(
            stats.commands == stats.puts && writes >= stats.puts && bytes == stats.put_bytes,
            "{stats:?}"
        );
        assert_eq!(stats.dropped_writes, 0);
    }
}

fn large_puts(subject: &mut dyn Subject) {
    let sizes = vec![1 << 18, 7, 4096];
    let (channels, puts) = (2, 12);
    succeeds(
        subject,
        Traffic {
            sizes,
            channels,
            puts,
            ..Traffic::default()
        },
    );
}

fn many_channels(subject: &mut dyn Subject) {
    let (channels, puts, ring_log2) = (64, 6, 8);
    succeeds(
        subject,
        Traffic {
            channels,
            puts,
            ring_log2,
            ..Traffic::default()
        },
    );
}

fn three_endpoints(subject: &mut dyn Subject) {
    succeeds(
        subject,
        Traffic {
            endpoints: 3,
            puts: 100,
            ..Traffic::default()
        },
    );
}

fn wrapping_counts(subject: &mut dyn Subject) {
    for first in [(1 << 20) - 7, (1 << 31) - 7, u32::MAX - 6] {
        succeeds(
            subject,
            Traffic {
                first,
                puts: 30,
                ..Traffic::default()
            },
        );
    }
}

fn small_ring(subject: &mut dyn Subject) {
    succeeds(
        subject,
        Traffic {
            ring_log2: 1,
            ..Traffic::default()
        },
    );
}

/// One endpoint is not stepped for a while. The other endpoint must not post more puts than the receives that are kept for it.
fn credits(subject: &mut dyn Subject) {
    let channels = 40;
    let traffic = Traffic {
        channels,
        sizes: vec![16],
        ring_log2: 12,
        ..Traffic::default()
    };
    let mut run = TrafficRun::new(subject, traffic).expect("connects");
    // This number of steps exceeds the number that all puts would need.
    for _ in 0..1000 {
        run.post(0);
        run.step(0);
        run.idle();
    }
    run.run();
    for node in &run.nodes {
        assert!(
            node.error.is_none() && node.endpoint.is_some(),
            "{:?}",
            node.error
        );
    }
}

/// An endpoint that has closed causes an error only for endpoints that put to it later.
fn close(subject: &mut dyn Subject) {
    let traffic = Traffic {
        endpoints: 3,
        ..Traffic::default()
    };
    let mut run = TrafficRun::new(subject, traffic).expect("connects");
    run.run();
    run.close(2);
    for _ in 0..200 {
        run.step(0);
        run.step(1);
        run.idle();
    }
    for node in &run.nodes {
        assert!(node.error.is_none(), "{:?}", node.error);
    }
    run.put(0, 2);
    run.step(0);
    let Some(FabricError::PeerClosed { peer }) = &run.nodes[0].error else {
        panic!("{:?}", run.nodes[0].error)
    };
    assert_eq!(&*peer.name, "endpoint 2");
    assert!(run.nodes[0].arrivals.is_aborted(), "kernels are aborted");
}
