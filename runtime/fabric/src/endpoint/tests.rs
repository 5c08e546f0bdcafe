//! Tests of an endpoint over a transport that records all writes.

use super::*;
use crate::arrivals::HostArrivals;
use crate::builder::EndpointBuilder;
use crate::command_ring::CommandProducer;
use crate::config::EndpointConfig;
use crate::immediate::Immediate;
use crate::peer_id::{PeerId, PeerIdentity};
use crate::stats::RailCounters;
use crate::transport::{Event, MemoryKind, MemoryRange, PeerConnectInfo, RegionId, Write};
use mkernel_spec::fabric::{COMMAND_PUT, COMMAND_PUT_TO_PEERS};
use std::sync::Mutex;

mod stats;
mod window;

const PEERS: u16 = 63;

/// The writes that a [`Recorder`] accepted, and the events that it will report.
#[derive(Default)]
struct Record {
    is_full: bool,
    posted: Vec<Write>,
    events: Vec<Event>,
}

/// A transport without a network, which records writes.
struct Recorder(Arc<Mutex<Record>>);

impl Transport for Recorder {
    fn limits(&self) -> Limits {
        Limits {
            write_bytes: 1 << 20,
            writes: 16,
            receives: 64,
            rails: 1,
        }
    }
    fn rail_counters(&self) -> Arc<[RailCounters]> {
        Arc::new([])
    }
    fn register(&mut self, _: MemoryRange) -> Result<RegionId, FabricError> {
        Ok(RegionId(0))
    }
    fn region_info(&self, _: RegionId) -> Vec<u8> {
        Vec::new()
    }
    /// The info is the size.
    fn add_peer_region(&mut self, _: PeerId, info: &[u8]) -> Result<u64, String> {
        let bytes = info.try_into().map(u64::from_le_bytes);
        bytes.map_err(|_| "no size".to_owned())
    }
    fn connect_info(&mut self, _: PeerId) -> Result<Vec<u8>, FabricError> {
        Ok(Vec::new())
    }
    fn connect(&mut self, _: &[PeerConnectInfo], _: Instant) -> Result<(), FabricError> {
        Ok(())
    }
    fn post(&mut self, writes: &[Write]) -> Result<usize, FabricError> {
        let mut record = self.0.lock().expect("one thread");
        if record.is_full {
            return Ok(0);
        }
        record.posted.extend(writes);
        Ok(writes.len())
    }
    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), FabricError> {
        events.append(&mut self.0.lock().expect("one thread").events);
        Ok(())
    }
}

struct Bench {
    endpoint: Endpoint,
    producer: CommandProducer,
    record: Arc<Mutex<Record>>,
}

impl Bench {
    fn new() -> Self {
        Self::with_region(0)
    }

    /// Peers and endpoint have one region of `bytes` bytes, or no region.
    fn with_region(bytes: u64) -> Self {
        let record = Arc::<Mutex<Record>>::default();
        let config = EndpointConfig {
            channels: 1,
            byte_window: u64::MAX,
            deadline: Duration::from_secs(1000),
            first_count: 0,
        };
        let transport = Box::new(Recorder(record.clone()));
        let mut builder = EndpointBuilder::new(transport, config).expect("valid");
        let info = builder.connect_info(PeerId(0)).expect("connection info");
        let peer = |id| PeerConnectInfo {
            peer: PeerIdentity {
                id: PeerId(id),
                name: "a peer".into(),
            },
            connect_info: info.clone(),
        };
        let peers: Vec<_> = (0..PEERS).map(peer).collect();
        let ring = HostRing::allocate(4, 0).expect("a ring");
        let arrivals = Box::new(HostArrivals::new(PEERS.into(), 1, 0));
        let endpoint = builder.connect(&peers, ring.clone(), arrivals, Instant::now());
        let mut endpoint = endpoint.expect("connects");
        if bytes > 0 {
            // SAFETY: a recorder does not access the region.
            let region = unsafe { MemoryRange::new(4096, bytes, MemoryKind::Host) };
            endpoint.register(region).expect("accepted");
            let infos = vec![bytes.to_le_bytes().to_vec(); PEERS.into()];
            endpoint.add_peer_regions(&infos).expect("valid");
        }
        Self {
            endpoint,
            producer: CommandProducer::new(ring),
            record,
        }
    }

    fn record(&self) -> std::sync::MutexGuard<'_, Record> {
        self.record.lock().expect("one thread")
    }

    fn put(&self, peer: u16) {
        let command = Command {
            peer,
            kind: COMMAND_PUT,
            ..Command::default()
        };
        self.post(&command);
    }

    /// Posts a command and returns its index.
    fn post(&self, command: &Command) -> u32 {
        let index = self.producer.claim();
        self.producer.publish(index, command);
        index
    }

    /// Steps the endpoint. Returns the number of peers that the next step visits.
    fn step(&mut self) -> usize {
        self.endpoint.step(Instant::now()).expect("no error");
        self.endpoint.ready.len()
    }
}

#[test]
fn a_step_visits_only_peers_with_a_queue_or_an_event() {
    let mut bench = Bench::new();
    assert_eq!(bench.step(), 0);
    bench.record().is_full = true;
    for peer in [5, 60, 5] {
        bench.put(peer);
    }
    // The queues of two peers wait for the transport.
    assert_eq!((bench.step(), bench.step()), (2, 2));
    bench.record().is_full = false;
    bench.step();
    let (sent, posted): (Vec<_>, Vec<_>) = {
        let mut record = bench.record();
        let posted = std::mem::take(&mut record.posted);
        let sent = posted.iter().map(|write| Event::Sent { id: write.id });
        (
            sent.collect(),
            posted.iter().map(|write| write.peer.0).collect(),
        )
    };
    assert_eq!(posted.len(), 3);
    assert!(posted.iter().all(|peer| [5, 60].contains(peer)));
    assert_eq!(bench.step(), 0);
    bench.record().events = sent;
    assert_eq!(bench.step(), 2, "completions may make room for a write");
    assert_eq!(bench.step(), 0);
}

/// A put of `bytes` bytes to `peers` consecutive peers, starting with peer `first`.
fn put_to_peers(first: u16, peers: u8, mask: u64, bytes: u32) -> Command {
    Command {
        kind: COMMAND_PUT_TO_PEERS,
        peer: first,
        target_region: peers,
        target_offset: mask,
        source_offset: 64,
        bytes,
        ..Command::default()
    }
}

#[test]
fn a_put_to_several_peers_is_a_put_to_each_of_them() {
    let mut bench = Bench::with_region(4096);
    let index = bench.post(&put_to_peers(61, 4, 0b1011, 32));
    bench.step();
    let posted = std::mem::take(&mut bench.record().posted);
    let mut puts: Vec<_> = posted.iter().map(|put| (put.peer.0, put.bytes)).collect();
    puts.sort_unstable();
    assert_eq!(puts, [(0, 0), (1, 32), (61, 32), (62, 32)]);
    assert!(posted.iter().all(|put| put.source == put.target));
    assert!(posted.iter().all(|put| put.source.offset == 64));

    // The command counts as sent when the last of its puts has completed.
    let completed = |put: &Write| Event::Sent { id: put.id };
    bench.record().events = posted[..3].iter().map(completed).collect();
    bench.step();
    assert!(!bench.producer.is_sent(index));
    bench.record().events = posted[3..].iter().map(completed).collect();
    bench.step();
    assert!(bench.producer.is_sent(index));
    assert!(bench.endpoint.is_idle());
}

#[test]
fn a_put_to_peers_that_do_not_exist_is_refused() {
    for (command, field) in [
        (put_to_peers(63, 1, 1, 0), "peer"),
        (put_to_peers(0, 0, 0, 0), "target_region"),
        (put_to_peers(0, 64, 1, 0), "target_region"),
        (put_to_peers(5, 3, 0b1000, 0), "target_offset"),
        (put_to_peers(5, 3, 0b111, 4096), "source_offset"),
    ] {
        let mut bench = Bench::with_region(4096);
        bench.post(&command);
        let found = bench.endpoint.step(Instant::now());
        assert!(
            matches!(found, Err(FabricError::Command { field: f, .. }) if f == field),
            "{command:?}: {found:?}"
        );
    }
}

#[test]
fn a_region_of_a_peer_that_is_invalid_is_an_error_about_that_peer() {
    let mut bench = Bench::new();
    let mut infos = vec![8u64.to_le_bytes().to_vec(); PEERS.into()];
    infos[5].pop();
    let error = bench
        .endpoint
        .add_peer_regions(&infos)
        .expect_err("no size");
    assert_eq!(error.peer(), Some(PeerId(5)), "{error}");
    let error = bench
        .endpoint
        .add_peer_regions(&infos[..3])
        .expect_err("too few");
    assert!(error.to_string().contains("3 peers, but 63"), "{error}");
}

#[test]
fn puts_that_exceed_the_limit_of_the_nics_are_refused() {
    let limits = Recorder(Arc::default()).limits();
    limits.check_put_bytes(1 << 20).expect("as long as a write");
    let error = limits.check_put_bytes(3 << 20).expect_err("too long");
    let text = error.to_string();
    assert!(
        text.contains("3145728") && text.contains("1048576"),
        "{text}"
    );
}

#[test]
fn invalid_options_are_refused_at_setup() {
    let config = EndpointConfig {
        channels: 0,
        byte_window: u64::MAX,
        deadline: Duration::ZERO,
        first_count: 0,
    };
    let builder = EndpointBuilder::new(Box::new(Recorder(Arc::default())), config);
    let Err(FabricError::Config(issues)) = builder.map(drop) else {
        panic!("accepted")
    };
    let [channels, deadline] = &issues[..] else {
        panic!("{issues:?}")
    };
    assert!(channels.contains("the number of channels is 0"));
    assert!(deadline.contains("the deadline is 0"));
}

#[test]
fn credits_are_returned_to_the_peer_that_put() {
    let mut bench = Bench::new();
    let put = |sequence| Event::Arrived {
        peer: PeerId(9),
        immediate: Immediate::Put {
            channel: 0,
            sequence,
        }
        .encode(),
    };
    bench.record().events = (0..40).map(put).collect();
    assert_eq!(bench.step(), 1);
    bench.step();
    let record = bench.record();
    let credit = record.posted.first().expect("a message");
    assert_eq!((record.posted.len(), credit.peer), (1, PeerId(9)));
    let meaning = Immediate::decode(credit.immediate).expect("valid");
    assert_eq!(meaning, Immediate::Credit { delivered: 40 });
}

#[test]
fn every_peer_receives_the_close_of_an_endpoint() {
    for lost_rank in [None, Some(3)] {
        let mut bench = Bench::new();
        match lost_rank {
            None => bench.endpoint.close(),
            Some(rank) => bench.endpoint.close_after_loss(rank),
        }
        while bench.step() > 0 {}
        let notified: Vec<_> = bench.record().posted.iter().map(|w| w.peer.0).collect();
        assert_eq!(notified, (0..PEERS).collect::<Vec<_>>());
    }
}

#[test]
fn an_endpoint_stays_until_its_peers_have_its_close() {
    let mut bench = Bench::new();
    let close = Immediate::Close { lost_rank: None }.encode();
    bench.endpoint.close();
    let closes = (0..PEERS).map(|peer| Event::Arrived {
        peer: PeerId(peer),
        immediate: close,
    });
    bench.record().events = closes.collect();
    while bench.step() > 0 {}
    assert!(!bench.endpoint.is_needed() && !bench.endpoint.is_closed());
    let posted: Vec<_> = bench.record().posted.iter().map(|w| w.id).collect();
    let (last, others) = posted.split_last().expect("a close for each peer");
    bench.record().events = others.iter().map(|id| Event::Sent { id: *id }).collect();
    bench.step();
    assert!(!bench.endpoint.is_closed());
    bench.record().events = vec![Event::Sent { id: *last }];
    bench.step();
    assert!(bench.endpoint.is_closed());
}

/// Returns the field that makes a put between regions of this number invalid, or `None` if the put is valid.
fn invalid_field(bench: &mut Bench, region: u8) -> Option<&'static str> {
    bench.post(&Command {
        source_region: region,
        target_region: region,
        kind: COMMAND_PUT,
        bytes: 64,
        ..Command::default()
    });
    match bench.endpoint.step(Instant::now()) {
        Ok(_) => None,
        Err(FabricError::Command { field, .. }) => Some(field),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_put_names_regions_that_both_ends_have_added() {
    // SAFETY: a recorder does not access the region.
    let memory = || unsafe { MemoryRange::new(4096, 64, MemoryKind::Host) };
    let info = |bytes: u64| vec![bytes.to_le_bytes().to_vec(); PEERS.into()];
    let mut bench = Bench::with_region(4096);
    assert_eq!(invalid_field(&mut bench, 0), None);
    bench.endpoint.register(memory()).expect("accepted");
    bench.endpoint.add_peer_regions(&info(64)).expect("valid");
    assert_eq!(invalid_field(&mut bench, 1), None);
    assert_eq!(bench.record().posted.len(), 2);
    assert_eq!(invalid_field(&mut bench, 2), Some("source_region"));

    let mut bench = Bench::with_region(4096);
    bench.endpoint.register(memory()).expect("accepted");
    assert_eq!(invalid_field(&mut bench, 1), Some("target_region"));
    let mut bench = Bench::with_region(4096);
    bench.endpoint.register(memory()).expect("accepted");
    bench.endpoint.add_peer_regions(&info(63)).expect("valid");
    assert_eq!(invalid_field(&mut bench, 1), Some("target_offset"));
}

#[test]
fn a_later_deadline_applies_to_puts_in_flight() {
    let mut bench = Bench::new();
    bench.put(5);
    bench.step();
    let later = Instant::now() + Duration::from_secs(10);
    assert!(bench.endpoint.step(later).is_ok());
    bench.endpoint.set_deadline(Duration::from_secs(9));
    let Err(FabricError::Timeout { limit, .. }) = bench.endpoint.step(later) else {
        panic!("no timeout")
    };
    assert_eq!(limit, Duration::from_secs(9));
}
