//! Tests of proxies in threads and in real time: concurrent puts, shutdown, deadlines, failures and aborts.

use crate::pair::{
    MARGIN, Options, RunningEndpoint, error_of, pair, post, put, unconnected, until,
};
use mkernel_fabric::emulated::{Failure, Faults, Wire};
use mkernel_fabric::testing::{Buffer, SourceTable, pattern};
use mkernel_fabric::{Endpoint, FabricError, PeerId, Proxy, ProxyOptions};
use mkernel_spec::fabric::Command;
use rustix::thread::{CpuSet, sched_getaffinity};
use std::time::{Duration, Instant};

/// The number of puts of a stream.
const PUTS: u32 = 3000;

/// Puts patterns on a channel, and checks the bytes that arrive.
fn stream(from: &RunningEndpoint, to: &RunningEndpoint, channel: u16) {
    const BYTES: usize = 96;
    for number in 0..PUTS {
        let offset = (usize::from(channel) * 2000 + number as usize % 1000) * BYTES;
        if number >= 1000 {
            let arrived = || to.arrivals.count(PeerId(0), channel) > number - 1000;
            until("an arrival", MARGIN, arrived);
            let seed = u64::from(channel) << 32 | u64::from(number - 1000);
            assert!(
                to.target.read(offset + 1, BYTES) == pattern(seed, BYTES),
                "put {number}"
            );
        }
        let seed = u64::from(channel) << 32 | u64::from(number);
        from.source.write(offset, &pattern(seed, BYTES));
        let command = put(channel, BYTES as u32, offset as u64, offset as u64 + 1);
        let index = post(from, &command).expect("posted");
        if number % 1000 == 999 {
            until("the sources", MARGIN, || from.producer.is_sent(index));
        }
    }
    until("the last", MARGIN, || {
        to.arrivals.count(PeerId(0), channel) == PUTS
    });
}

#[test]
fn threads_post_concurrently_in_both_directions_and_a_shutdown_drains() {
    let [a, b] = pair([Options::default(), Options::default()]);
    std::thread::scope(|scope| {
        for channel in 0..3 {
            let (from, to) = if channel == 1 { (&b, &a) } else { (&a, &b) };
            scope.spawn(move || stream(from, to, channel));
        }
    });
    for number in 0..50 {
        post(&a, &put(3, 8, number, number)).expect("posted");
    }
    a.proxy.shutdown(MARGIN).expect("drains");
    let limit = "what was posted before the shutdown";
    until(limit, MARGIN, || b.arrivals.count(PeerId(0), 3) == 50);
}

#[test]
fn regions_are_added_while_puts_are_in_flight() {
    let [a, b] = pair([Options::default(), Options::default()]);
    std::thread::scope(|scope| {
        scope.spawn(|| stream(&a, &b, 0));
        for number in 0..40 {
            let region = 2 + number;
            let memory = [&a, &b].map(|end| {
                let memory = Buffer::new(4096);
                let range = memory.memory();
                let registered = end.proxy.with_endpoint(|endpoint| endpoint.register(range));
                (memory, registered.expect("registers"))
            });
            let [(source, of_a), (target, of_b)] = memory;
            for (end, info) in [(&a, of_b), (&b, of_a)] {
                let add = move |endpoint: &mut Endpoint| endpoint.add_peer_regions(&[info]);
                end.proxy.with_endpoint(add).expect("adds");
            }
            source.write(8, &pattern(region.into(), 1000));
            let command = Command {
                source_region: region,
                target_region: region,
                ..put(1, 1000, 8, 16)
            };
            post(&a, &command).expect("posted");
            until("a put to a new region", MARGIN, || {
                b.arrivals.count(PeerId(0), 1) == u32::from(number) + 1
            });
            assert!(target.read(16, 1000) == pattern(region.into(), 1000));
        }
    });
}

#[test]
fn the_endpoint_of_a_failed_proxy_is_an_error() {
    let [a, _b] = pair([Options::default(), Options::default()]);
    let outcome: Result<u32, _> = a.proxy.with_endpoint(|_| {
        Err(FabricError::Config(vec![
            "an error of the request".to_owned(),
        ]))
    });
    assert!(matches!(outcome, Err(FabricError::Config(_))));
    a.proxy.with_endpoint(|_| Ok(())).expect("still runs");
    let invalid = Command {
        source_region: 9,
        ..put(0, 8, 0, 0)
    };
    post(&a, &invalid).expect("posted");
    let error = error_of(&a, MARGIN);
    assert_eq!(a.proxy.with_endpoint(|_| Ok(())), Err(error));
}

#[test]
fn a_request_that_panics_fails_the_fabric() {
    let [a, _b] = pair([Options::default(), Options::default()]);
    let outcome: Result<(), _> = a.proxy.with_endpoint(|_| panic!("a request"));
    assert_eq!(outcome, Err(error_of(&a, MARGIN)));
}

#[test]
fn a_silent_peer_aborts_kernels_that_wait_for_it_or_for_a_slot() {
    let deadline = Duration::from_millis(300);
    let silent = Faults {
        failure: Some(Failure::Silence { after_writes: 0 }),
        ..Faults::default()
    };
    let options = Options {
        deadline,
        ring_log2: 2,
        ..Options::default()
    };
    let silent_options = Options {
        faults: silent,
        ..Options::default()
    };
    let [a, _b] = pair([options, silent_options]);
    let start = Instant::now();
    let mut posted = 0;
    // The loop ends when no command leaves the full ring, and the abort ends the wait for a slot.
    while post(&a, &put(0, 64, 0, 0)).is_some() {
        posted += 1;
    }
    let error = error_of(&a, MARGIN);
    assert!(start.elapsed() < deadline + MARGIN);
    assert!(posted > 4 && posted < 2000, "{posted}");
    let FabricError::Timeout {
        ref peer,
        waited,
        limit,
        ..
    } = error
    else {
        panic!("{error:?}")
    };
    assert_eq!((&*peer.name, limit), ("rank 1 on node b", deadline));
    assert!(
        waited >= deadline && waited < deadline + MARGIN,
        "{waited:?}"
    );
    assert_eq!(
        a.proxy.shutdown(MARGIN),
        Err(error),
        "the first error stays"
    );
}

/// Returns two endpoints. The second endpoint sends nothing.
fn pair_with_a_silent_endpoint() -> [RunningEndpoint; 2] {
    let faults = Faults {
        failure: Some(Failure::Silence { after_writes: 0 }),
        ..Faults::default()
    };
    let silent = Options {
        faults,
        ..Options::default()
    };
    pair([Options::default(), silent])
}

#[test]
fn a_shutdown_ends_at_its_deadline() {
    let [a, _b] = pair_with_a_silent_endpoint();
    post(&a, &put(0, 64, 0, 0)).expect("posted");
    let limit = Duration::from_millis(100);
    let pending = 1;
    assert_eq!(
        a.proxy.shutdown(limit),
        Err(FabricError::NotDrained { pending, limit })
    );
    assert!(a.arrivals.is_aborted());
}

#[test]
fn a_nic_failure_is_reported_on_both_sides() {
    let fails = Faults {
        failure: Some(Failure::Nic { after_writes: 5 }),
        ..Faults::default()
    };
    let [a, b] = pair([
        Options {
            faults: fails,
            ..Options::default()
        },
        Options::default(),
    ]);
    while post(&a, &put(0, 64, 0, 0)).is_some() {}
    assert!(matches!(error_of(&a, MARGIN), FabricError::Nic { .. }));
    assert!(matches!(error_of(&b, MARGIN), FabricError::Lost { .. }));
}

#[test]
fn a_copy_failure_is_reported_on_both_sides() {
    let sources = SourceTable::default();
    let late = |successes| Options {
        late: Some((sources.clone(), successes)),
        ..Options::default()
    };
    let [a, b] = pair([late(u64::MAX), late(20)]);
    while post(&a, &put(0, 64, 0, 0)).is_some() {}
    let error = error_of(&b, MARGIN);
    assert!(error.to_string().contains("a copy failed"), "{error}");
    assert!(matches!(error_of(&a, MARGIN), FabricError::Lost { .. }));
    assert!(b.arrivals.count(PeerId(0), 0) <= 20);
}

#[test]
fn a_closed_endpoint_causes_errors_only_for_later_puts_to_it() {
    let [a, b] = pair([Options::default(), Options::default()]);
    for number in 0..30 {
        post(&a, &put(0, 8, number, number)).expect("posted");
    }
    a.proxy.shutdown(MARGIN).expect("drains");
    assert_eq!(b.arrivals.count(PeerId(0), 0), 30);
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(b.proxy.error(), None);
    post(&b, &put(0, 8, 0, 0)).expect("posted");
    let FabricError::PeerClosed { peer } = error_of(&b, MARGIN) else {
        panic!("{:?}", b.proxy.error())
    };
    assert_eq!(&*peer.name, "rank 1 on node b");
}

#[test]
fn both_endpoints_may_shut_down_at_once() {
    for _ in 0..100 {
        let [a, b] = pair([Options::default(), Options::default()]);
        post(&a, &put(0, 8, 0, 0)).expect("posted");
        post(&b, &put(1, 8, 0, 0)).expect("posted");
        until("both puts", MARGIN, || {
            a.arrivals.count(PeerId(0), 1) + b.arrivals.count(PeerId(0), 0) == 2
        });
        let ends = [a.proxy, b.proxy];
        std::thread::scope(|scope| {
            let threads = ends.map(|proxy| scope.spawn(|| proxy.shutdown(MARGIN)));
            for thread in threads {
                assert_eq!(thread.join().expect("no panic"), Ok(()));
            }
        });
    }
}

/// The closing endpoint has received everything, but completions are still in flight to its peer.
#[test]
fn a_shutdown_waits_for_the_completions_of_the_peer() {
    let late = Faults {
        jitter: Duration::from_millis(200),
        ..Faults::default()
    };
    let slow = Options {
        faults: late,
        ..Options::default()
    };
    let [a, b] = pair([slow, Options::default()]);
    for number in 0..30 {
        post(&a, &put(0, 8, number, number)).expect("posted");
    }
    until("all puts", MARGIN, || b.arrivals.count(PeerId(0), 0) == 30);
    assert_eq!(b.proxy.shutdown(MARGIN), Ok(()));
    assert_eq!(a.proxy.error(), None);
    assert_eq!(a.proxy.shutdown(MARGIN), Ok(()));
    assert!(!a.arrivals.is_aborted() && !b.arrivals.is_aborted());
}

#[test]
fn a_shutdown_waits_no_longer_than_its_limit() {
    let [a, _b] = pair_with_a_silent_endpoint();
    let (start, limit) = (Instant::now(), Duration::from_millis(200));
    assert!(a.proxy.shutdown(limit).is_ok());
    assert!(start.elapsed() >= limit && start.elapsed() < limit + MARGIN);
}

/// A peer forwards the number of the lost rank, which need not be a peer of this rank.
#[test]
fn an_abort_reports_the_lost_rank() {
    let [a, b] = pair([Options::default(), Options::default()]);
    post(&a, &put(0, 8, 0, 0)).expect("posted");
    a.proxy.abort(7);
    let FabricError::PeerAborted { peer, lost_rank: 7 } = error_of(&b, MARGIN) else {
        panic!("{:?}", b.proxy.error())
    };
    assert_eq!(&*peer.name, "rank 1 on node b");
}

/// A wire that panics when it is used.
struct Defect;

impl Wire for Defect {
    fn send(&mut self, _: &[u8]) -> Result<usize, String> {
        panic!("a defect")
    }
    fn receive(&mut self, _: &mut Vec<u8>) -> Result<(), String> {
        panic!("a defect")
    }
}

#[test]
fn a_panic_of_a_proxy_aborts_kernels() {
    let mut endpoint = unconnected(Box::new(Defect), Options::default());
    let info = endpoint.connect_info();
    let end = endpoint.connect(info).expect("connects").start();
    let error = error_of(&end, MARGIN);
    assert!(error.to_string().contains("panicked"), "{error}");
}

#[test]
fn dropping_a_proxy_with_puts_in_flight_aborts_kernels() {
    let slow = Faults {
        jitter: Duration::from_secs(3600),
        ..Faults::default()
    };
    let [a, _b] = pair([
        Options {
            faults: slow,
            ..Options::default()
        },
        Options::default(),
    ]);
    post(&a, &put(0, 64, 0, 0)).expect("posted");
    // When a slot of the full ring is free again, the proxy has taken the first command.
    for _ in 0..64 {
        post(&a, &put(0, 64, 0, 0)).expect("posted");
    }
    let arrivals = a.arrivals.clone();
    drop(a.proxy);
    assert!(arrivals.is_aborted());
}

#[test]
fn a_command_after_a_long_idle_time_is_picked_up() {
    let [a, b] = pair([Options::default(), Options::default()]);
    for round in 1..=4 {
        std::thread::sleep(Duration::from_millis(60));
        match round {
            2 => a.proxy.wake(),
            3 => a.proxy.capture(),
            _ => (),
        }
        post(&a, &put(0, 8, 0, 0)).expect("posted");
        until("the put", MARGIN, || {
            b.arrivals.count(PeerId(0), 0) == round
        });
    }
    let stats = a.proxy.stats().read();
    assert_eq!((stats.commands, stats.puts), (4, 4));
    assert!(stats.sleeps > 0, "it had nothing to do for 240 ms");
}

#[test]
fn cores_are_used_or_refused() {
    let allowed = sched_getaffinity(None).expect("own cores");
    let core = (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core));
    let cores = vec![core.expect("a core")];
    let [a, _b] = crate::pair::connected_pair([Options::default(), Options::default()]);
    let on = |cores| ProxyOptions {
        cores,
        ..ProxyOptions::default()
    };
    Proxy::start(a.endpoint, &on(cores)).expect("starts");
    for core in [1023, 1 << 20] {
        let [a, _b] = crate::pair::connected_pair([Options::default(), Options::default()]);
        let error = Proxy::start(a.endpoint, &on(vec![core]))
            .err()
            .expect("no such core");
        assert!(error.to_string().contains(&core.to_string()), "{error}");
    }
}
