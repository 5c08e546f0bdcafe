//! Tests of the emulated transport, which passes the conformance tests with and without faults, and whose transfers take the
//! time of the model.

use mkernel_fabric::emulated::{
    Clock, CopyEngine, CopyStatus, EmulatedTransport, Faults, HostCopyEngine, NicModel,
    VirtualClock,
};
use mkernel_fabric::testing::{Buffer, pattern, peer_connect_infos, peer_id, pipes, share_region};
use mkernel_fabric::testing::{EmulatedSubject, Subject, conformance::run_all};
use mkernel_fabric::{Event, MemoryRange, RegionId, RegionOffset, Transport, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[test]
fn emulated_nics_pass_the_conformance_tests() {
    run_all(&mut EmulatedSubject::new(
        NicModel::default(),
        vec![Faults::default()],
    ));
}

#[test]
fn a_transport_keeps_the_owners_of_its_regions() {
    let owner = Arc::new(());
    let mut subject = EmulatedSubject::new(NicModel::default(), vec![Faults::default()]);
    let mut transports = subject.make(2);
    let memory = Buffer::new(64).memory().with_owner(owner.clone());
    transports[0].register(memory).expect("registers");
    assert_eq!(Arc::strong_count(&owner), 2);
    drop(transports);
    assert_eq!(Arc::strong_count(&owner), 1);
}

#[test]
fn unordered_nics_pass_the_conformance_tests() {
    let faults = Faults {
        seed: 5,
        jitter: Duration::from_micros(50),
        loss: 0.1,
        retransmission: Duration::from_micros(300),
        duplicates: 0.2,
        ..Faults::default()
    };
    let nic = NicModel {
        rails: 4,
        queue_depth: 64,
        receives: 24,
        ..NicModel::default()
    };
    run_all(&mut EmulatedSubject::new(nic.clone(), vec![faults.clone()]));
    let mut late = EmulatedSubject::new(nic, vec![faults]);
    late.copy_delay_seed = Some(11);
    run_all(&mut late);
}

#[test]
fn nics_with_slow_copies_pass_the_conformance_tests() {
    for seed in 0..4 {
        let mut subject = EmulatedSubject::new(NicModel::default(), vec![]);
        subject.copy_delay_seed = Some(seed);
        run_all(&mut subject);
    }
}

/// Creates two connected endpoints with a region of this many bytes each.
fn pair(subject: &mut EmulatedSubject, bytes: usize) -> Vec<Box<dyn Transport>> {
    let mut pair = subject.make(2);
    for of in 0..2 {
        let infos = peer_connect_infos(2, of, |peer, of| {
            pair[peer].connect_info(of).expect("connection info")
        });
        pair[of].connect(&infos, Instant::now()).expect("connects");
    }
    let regions = [(); 2].map(|()| Buffer::new(bytes).memory());
    share_region(pair.iter_mut(), regions.into_iter());
    pair
}

/// Returns the modelled nanoseconds until `writes` writes of `bytes` have completed, with at most the queue's depth in
/// flight, and the modelled nanoseconds until the first arrival.
fn time(nic: NicModel, writes: u64, bytes: u32) -> (u64, u64) {
    let mut subject = EmulatedSubject::new(nic, vec![]);
    let mut pair = pair(&mut subject, bytes.max(1) as usize);
    let start = RegionOffset {
        region: RegionId(0),
        offset: 0,
    };
    let (mut posted, mut sent, mut first_arrival) = (0, 0, None);
    let mut events = Vec::new();
    while sent < writes {
        if posted < writes {
            let write = Write {
                peer: peer_id(0, 1),
                source: start,
                target: start,
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

/// A copy engine that holds long writes back until the test releases them.
struct Held {
    is_released: Arc<AtomicBool>,
    held: Vec<(MemoryRange, u64, Vec<u8>, u64)>,
}

impl CopyEngine for Held {
    fn check(&self, memory: &MemoryRange) -> Result<(), String> {
        HostCopyEngine.check(memory)
    }
    fn stage(
        &mut self,
        from: &MemoryRange,
        at: u64,
        bytes: u32,
        to: &mut Vec<u8>,
    ) -> Result<(), String> {
        HostCopyEngine.stage(from, at, bytes, to)
    }
    fn start_copy(
        &mut self,
        to: &MemoryRange,
        offset: u64,
        bytes: u32,
        payload: &[u8],
        token: u64,
    ) -> Result<CopyStatus, String> {
        if bytes < 1000 {
            return HostCopyEngine.start_copy(to, offset, bytes, payload, token);
        }
        self.held
            .push((to.clone(), offset, payload.to_vec(), token));
        Ok(CopyStatus::Pending)
    }
    fn poll(&mut self, completed: &mut Vec<u64>) -> Result<(), String> {
        if !self.is_released.load(Ordering::Relaxed) {
            return Ok(());
        }
        for (to, offset, bytes, token) in self.held.drain(..) {
            HostCopyEngine.start_copy(&to, offset, bytes.len() as u32, &bytes, token)?;
            completed.push(token);
        }
        Ok(())
    }
}

/// Creates two transports without faults that share a virtual clock and hold long copies back.
fn transports_with_held_copies(
    is_released: &Arc<AtomicBool>,
    clock: &Arc<VirtualClock>,
) -> Vec<EmulatedTransport> {
    let ends = pipes(2).into_iter().map(|wires| {
        let held = Held {
            is_released: Arc::clone(is_released),
            held: Vec::new(),
        };
        let clock = Clock::Virtual(Arc::clone(clock));
        let (nic, faults) = (NicModel::default(), Faults::default());
        EmulatedTransport::new(nic, faults, clock, Box::new(held), wires).expect("a valid model")
    });
    ends.collect()
}

/// Polls both transports until this time of the clock, and returns the events of each.
fn poll_until(
    ends: &mut [EmulatedTransport],
    clock: &VirtualClock,
    until_ns: u64,
) -> [Vec<Event>; 2] {
    let mut events = [Vec::new(), Vec::new()];
    while clock.now_ns() < until_ns {
        for (end, events) in ends.iter_mut().zip(&mut events) {
            end.poll(events).expect("polls");
        }
        let before = clock.now_ns();
        clock.advance(1000);
        if clock.now_ns() == before {
            clock.advance(1000); // No NIC was polled since then, so this adds the full time.
        }
    }
    events
}

/// A copy that has not completed delays nothing but its own arrival and completion.
#[test]
fn a_slow_copy_delays_only_its_own_arrival() {
    let (is_released, clock) = (
        Arc::new(AtomicBool::new(false)),
        Arc::<VirtualClock>::default(),
    );
    let mut ends = transports_with_held_copies(&is_released, &clock);
    let memory = [Buffer::new(8192), Buffer::new(8192)];
    for (end, memory) in ends.iter_mut().zip(&memory) {
        end.register(memory.memory()).expect("registers");
    }
    let at = |offset| RegionOffset {
        region: RegionId(0),
        offset,
    };
    let write = |number: u32, bytes| Write {
        peer: peer_id(0, 1),
        source: at(0),
        target: at(4096),
        bytes,
        immediate: number,
        id: number.into(),
    };
    let data = pattern(3, 4000);
    memory[0].write(0, &data);
    ends[0].post(&[write(1, 4000), write(2, 0)]).expect("posts");
    let peer = peer_id(1, 0);
    let arrived = |immediate| Event::Arrived { peer, immediate };
    // All these times are far beyond the modelled times of the writes.
    let [sent, came] = poll_until(&mut ends, &clock, 100_000);
    assert_eq!(
        (sent, came),
        (vec![Event::Sent { id: 2 }], vec![arrived(2)])
    );
    assert_ne!(memory[1].read(4096, 4000), data);
    is_released.store(true, Ordering::Relaxed);
    let [sent, came] = poll_until(&mut ends, &clock, 200_000);
    assert_eq!(
        (sent, came),
        (vec![Event::Sent { id: 1 }], vec![arrived(1)])
    );
    assert_eq!(memory[1].read(4096, 4000), data);
}

#[test]
fn bandwidth_matches_the_model() {
    for (rails, gb_per_s) in [(1, 50.0), (2, 25.0), (1, 12.5)] {
        let nic = NicModel {
            rails,
            gb_per_s,
            ..NicModel::default()
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
fn latency_matches_the_model() {
    for (latency_us, bytes, expected_ns) in [(2, 0, 2_010), (7, 0, 7_010), (2, 5_000, 2_110)] {
        let nic = NicModel {
            latency: Duration::from_micros(latency_us),
            ..NicModel::default()
        };
        let (ns, arrival_ns) = time(nic, 1, bytes);
        assert_eq!(arrival_ns, expected_ns);
        assert_eq!(ns, expected_ns + 1000 * latency_us, "the completion");
    }
}
