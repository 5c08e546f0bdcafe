//! Measures the costs of a proxy on emulated NICs: `cargo bench --bench fabric`. Needs no GPU.

mod endpoint;

use endpoint::report_endpoint;
use mkernel_fabric::emulated::{Clock, EmulatedTransport, Faults, HostCopyEngine, NicModel, Wire};
use mkernel_fabric::testing::{
    Buffer, EmulatedSubject, Traffic, TrafficRun, peer_connect_infos, peer_id, pipes,
    share_endpoint_region,
};
use mkernel_fabric::{
    CommandProducer, Endpoint, EndpointBuilder, EndpointConfig, Event, FabricError, HostArrivals,
    HostRing, Limits, MemoryRange, PeerConnectInfo, PeerId, Proxy, ProxyOptions, RailCounters,
    RegionId, Transport, Write,
};
use mkernel_spec::fabric::{COMMAND_PUT, COMMAND_PUT_TO_PEERS, Command};
use rustix::time::{ClockId, clock_gettime};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const REGION_BYTES: usize = 64 << 20;

/// An emulated NIC that records when the last write was posted.
struct Stamped {
    nic: EmulatedTransport,
    start: Instant,
    posted_ns: Arc<AtomicU64>,
}

impl Transport for Stamped {
    fn limits(&self) -> Limits {
        self.nic.limits()
    }
    fn rail_counters(&self) -> Arc<[RailCounters]> {
        self.nic.rail_counters()
    }
    fn register(&mut self, memory: MemoryRange) -> Result<RegionId, FabricError> {
        self.nic.register(memory)
    }
    fn region_info(&self, region: RegionId) -> Vec<u8> {
        self.nic.region_info(region)
    }
    fn add_peer_region(&mut self, peer: PeerId, region_info: &[u8]) -> Result<u64, String> {
        self.nic.add_peer_region(peer, region_info)
    }
    fn connect_info(&mut self, peer: PeerId) -> Result<Vec<u8>, FabricError> {
        self.nic.connect_info(peer)
    }
    fn connect(&mut self, peers: &[PeerConnectInfo], deadline: Instant) -> Result<(), FabricError> {
        self.nic.connect(peers, deadline)
    }
    fn post(&mut self, writes: &[Write]) -> Result<usize, FabricError> {
        let ns = self.start.elapsed().as_nanos() as u64;
        self.posted_ns.store(ns, Ordering::Release);
        self.nic.post(writes)
    }
    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), FabricError> {
        self.nic.poll(events)
    }
}

struct End {
    endpoint: Endpoint,
    producer: CommandProducer,
    arrivals: HostArrivals,
    start: Instant,
    posted_ns: Arc<AtomicU64>,
}

/// Returns the two ends of a wire between processes.
fn sockets() -> Vec<Vec<Box<dyn Wire>>> {
    let (a, b) = UnixStream::pair().expect("sockets");
    vec![vec![Box::new(a)], vec![Box::new(b)]]
}

/// Creates two endpoints in real time.
fn pair(nic: &NicModel, wires: Vec<Vec<Box<dyn Wire>>>) -> [End; 2] {
    let ends = group(nic, wires);
    ends.try_into().unwrap_or_else(|_| unreachable!("two"))
}

/// Creates an endpoint for each set of wires, in real time.
fn group(nic: &NicModel, wires: Vec<Vec<Box<dyn Wire>>>) -> Vec<End> {
    let (count, region_bytes) = (wires.len(), REGION_BYTES / wires.len());
    let start = Instant::now();
    let mut builders: Vec<(EndpointBuilder, Arc<AtomicU64>)> = Vec::new();
    for wires in wires {
        let copy_engine = Box::new(HostCopyEngine);
        let nic = EmulatedTransport::new(
            nic.clone(),
            Faults::default(),
            Clock::Real,
            copy_engine,
            wires,
        );
        let (nic, posted_ns) = (nic.expect("a valid model"), Arc::<AtomicU64>::default());
        let stamp = Arc::clone(&posted_ns);
        let stamped = Box::new(Stamped {
            nic,
            start,
            posted_ns,
        });
        let config = EndpointConfig {
            channels: 1,
            byte_window: u64::MAX,
            deadline: Duration::from_secs(10),
            first_count: 0,
        };
        let builder = EndpointBuilder::new(stamped, config);
        builders.push((builder.expect("valid"), stamp));
    }
    let infos: Vec<_> = (0..count)
        .map(|of| {
            peer_connect_infos(count, of, |peer, of| {
                builders[peer].0.connect_info(of).expect("connection info")
            })
        })
        .collect();
    let ends = builders
        .into_iter()
        .zip(&infos)
        .map(|((builder, posted_ns), infos)| {
            let ring = HostRing::allocate(10, 0).expect("valid");
            let arrivals = HostArrivals::new(count - 1, 1, 0);
            let producer = CommandProducer::new(ring.clone());
            let receiver = Box::new(arrivals.clone());
            let endpoint = builder
                .connect(infos, ring, receiver, start)
                .expect("connects");
            End {
                endpoint,
                producer,
                arrivals,
                start,
                posted_ns,
            }
        });
    let mut ends: Vec<End> = ends.collect();
    let regions = (0..count).map(|_| Buffer::new(region_bytes).memory());
    let mut endpoints: Vec<&mut Endpoint> = ends.iter_mut().map(|end| &mut end.endpoint).collect();
    share_endpoint_region(&mut endpoints, regions).expect("regions");
    ends
}

fn put(bytes: u32, offset: u64) -> Command {
    Command {
        kind: COMMAND_PUT,
        bytes,
        source_offset: offset,
        target_offset: offset,
        ..Command::default()
    }
}

/// Formats the median and two high percentiles.
fn spread(times_ns: &mut [u64]) -> String {
    times_ns.sort_unstable();
    let at = |part: f64| times_ns[((times_ns.len() - 1) as f64 * part) as usize] as f64 / 1e3;
    format!(
        "median {:.1} µs, 90 % {:.1} µs, 99 % {:.1} µs",
        at(0.5),
        at(0.9),
        at(0.99)
    )
}

fn report_pick_up(pause: Duration, rounds: usize, captured: bool) {
    let [a, b] = pair(&NicModel::default(), sockets());
    let proxies = [a.endpoint, b.endpoint]
        .map(|endpoint| Proxy::start(endpoint, &ProxyOptions::default()).expect("starts"));
    if captured {
        proxies.iter().for_each(Proxy::capture);
    }
    let mut times_ns: Vec<u64> = (0..rounds)
        .map(|_| {
            std::thread::sleep(pause);
            let index = a.producer.claim();
            let before = a.start.elapsed().as_nanos() as u64;
            a.producer.publish(index, &put(0, 0));
            while a.posted_ns.load(Ordering::Acquire) < before {
                std::hint::spin_loop();
            }
            a.posted_ns.load(Ordering::Acquire) - before
        })
        .collect();
    println!(
        "pick-up{}, {pause:?} after the last: {}",
        if captured {
            " for a captured operator"
        } else {
            ""
        },
        spread(&mut times_ns)
    );
}

/// Times a put without data in each direction. Each takes 2 µs in the model.
fn report_round_trip(rounds: u32) {
    let [a, b] = pair(&NicModel::default(), sockets());
    let _proxies = [a.endpoint, b.endpoint]
        .map(|endpoint| Proxy::start(endpoint, &ProxyOptions::default()).expect("starts"));
    let wait = |arrivals: &HostArrivals, count| {
        while arrivals.count(PeerId(0), 0) < count {
            std::hint::spin_loop();
        }
    };
    let mut times_ns: Vec<u64> = (1..=rounds)
        .map(|round| {
            let start = Instant::now();
            a.producer.publish(a.producer.claim(), &put(0, 0));
            wait(&b.arrivals, round);
            b.producer.publish(b.producer.claim(), &put(0, 0));
            wait(&a.arrivals, round);
            start.elapsed().as_nanos() as u64
        })
        .collect();
    println!("there and back: {}", spread(&mut times_ns));
}

/// Times the steps of a sender. One thread steps both endpoints in turn.
fn report_commands(total: u32) {
    let [mut a, mut b] = pair(&NicModel::default(), pipes(2));
    let (mut posted, mut in_sender, mut in_receiver) = (0, Duration::ZERO, Duration::ZERO);
    let start = Instant::now();
    while b.arrivals.count(PeerId(0), 0) < total {
        let mut claimed = 0;
        while posted < total && claimed < 64 {
            let index = posted; // the only producer
            if !a.producer.has_slot(index) {
                break;
            }
            a.producer.publish(a.producer.claim(), &put(0, 0));
            posted += 1;
            claimed += 1;
        }
        for (end, spent) in [(&mut a, &mut in_sender), (&mut b, &mut in_receiver)] {
            let now = Instant::now();
            end.endpoint.step(now).expect("no faults");
            *spent += now.elapsed();
        }
    }
    let rate = |spent: Duration| f64::from(total) / spent.as_secs_f64() / 1e6;
    println!(
        "commands without data: {:.2} M/s of a sender's proxy, {:.2} M/s of a receiver's; {:.2} M/s with producer, both in one thread",
        rate(in_sender),
        rate(in_receiver),
        rate(start.elapsed())
    );
}

/// Times a step without work. A command waits for half a step on average.
fn report_step(steps: u32) {
    let [mut a, _b] = pair(&NicModel::default(), sockets());
    let start = Instant::now();
    for _ in 0..steps {
        a.endpoint.step(Instant::now()).expect("no faults");
    }
    let ns = start.elapsed().as_nanos() as f64 / f64::from(steps);
    println!("a step of an idle proxy with one peer: {ns:.0} ns");
}

/// Times the steps of an endpoint with many peers, without work and with puts to all peers. The steps of the other
/// endpoints, in between, are not timed.
fn report_peers(peers: u16, rounds: u32) {
    let mut ends = group(&NicModel::default(), pipes(usize::from(peers) + 1));
    let steps = 10_000;
    let start = Instant::now();
    for _ in 0..steps {
        ends[0].endpoint.step(Instant::now()).expect("no faults");
    }
    let idle_ns = start.elapsed().as_nanos() as f64 / f64::from(steps);
    println!("a step of a proxy that has nothing to do, with {peers} peers: {idle_ns:.0} ns");
    let to_each = (0..peers).map(|peer| Command { peer, ..put(0, 0) });
    let to_all = Command {
        kind: COMMAND_PUT_TO_PEERS,
        target_region: peers as u8,
        target_offset: (1 << peers) - 1,
        ..put(0, 0)
    };
    for (what, commands) in [
        ("a command for each", to_each.collect::<Vec<_>>()),
        ("one command for all", vec![to_all]),
    ] {
        let mut spent = Duration::ZERO;
        for _ in 0..rounds {
            for command in &commands {
                let producer = &ends[0].producer;
                producer.publish(producer.claim(), command);
            }
            for (number, end) in ends.iter_mut().enumerate() {
                let now = Instant::now();
                for _ in 0..4 {
                    end.endpoint.step(now).expect("no faults");
                }
                spent += if number == 0 {
                    now.elapsed()
                } else {
                    Duration::ZERO
                };
            }
        }
        let ns = spent.as_nanos() as f64 / f64::from(rounds) / f64::from(peers);
        println!("empty puts to {peers} peers, {what}: {ns:.0} ns per put of a sender's proxy");
    }
}

fn report_threads(total: u32, bytes: u32) {
    let [a, b] = pair(&NicModel::default(), pipes(2));
    let _proxies = [a.endpoint, b.endpoint]
        .map(|endpoint| Proxy::start(endpoint, &ProxyOptions::default()).expect("starts"));
    let start = Instant::now();
    let slots = REGION_BYTES as u64 / u64::from(bytes.max(64));
    for number in 0..total {
        let index = a.producer.claim();
        while !a.producer.has_slot(index) {
            std::thread::yield_now();
        }
        let offset = u64::from(number) % slots * u64::from(bytes);
        a.producer.publish(index, &put(bytes, offset));
    }
    while b.arrivals.count(PeerId(0), 0) < total {
        std::thread::yield_now();
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "puts of {bytes} bytes, a thread per proxy and one that posts: {:.2} M/s, {:.2} GB/s of real time (copies by the CPU)",
        f64::from(total) / seconds / 1e6,
        f64::from(total) * f64::from(bytes) / seconds / 1e9
    );
}

/// Times puts from commands to arrivals, through rings, the state machines of proxies, and credits.
fn report_modelled(puts: u32) {
    let bytes = 256 << 10;
    let mut subject = EmulatedSubject::new(NicModel::default(), vec![Faults::default()]);
    let traffic = Traffic {
        channels: 2,
        puts,
        sizes: vec![bytes],
        ..Traffic::default()
    };
    let mut run = TrafficRun::new(&mut subject, traffic).expect("connects");
    run.run();
    drop(run);
    let each_way = f64::from(2 * puts) * f64::from(bytes);
    println!(
        "puts of 256 KiB: {:.2} GB/s each way in modelled time, of 50 set ({:?} to {:?})",
        each_way / subject.now_ns() as f64,
        peer_id(0, 1),
        peer_id(1, 0)
    );
}

fn report_idle(captured: bool) {
    let cpu = || clock_gettime(ClockId::ProcessCPUTime);
    let ns = |time: rustix::time::Timespec| time.tv_sec as f64 * 1e9 + time.tv_nsec as f64;
    let [a, b] = pair(&NicModel::default(), sockets());
    let proxies = [a.endpoint, b.endpoint]
        .map(|endpoint| Proxy::start(endpoint, &ProxyOptions::default()).expect("starts"));
    if captured {
        proxies.iter().for_each(Proxy::capture);
    }
    std::thread::sleep(Duration::from_millis(100));
    let (before, start) = (ns(cpu()), Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    let share = (ns(cpu()) - before) / start.elapsed().as_nanos() as f64 / 2.0;
    let of = if captured {
        ", of a captured operator,"
    } else {
        ""
    };
    println!("an idle proxy{of} takes {:.1} % of a core", share * 100.0);
}

fn main() {
    report_pick_up(Duration::from_micros(10), 20_000, false);
    for captured in [false, true] {
        report_pick_up(Duration::from_millis(5), 200, captured);
        report_pick_up(Duration::from_millis(30), 100, captured);
        report_pick_up(Duration::from_millis(60), 30, captured);
    }
    report_round_trip(5000);
    report_step(1_000_000);
    for peers in [1, 8, 63] {
        report_endpoint(peers);
    }
    report_peers(8, 2000);
    report_peers(63, 300);
    report_commands(2_000_000);
    report_threads(1_000_000, 0);
    report_threads(4000, 256 << 10);
    report_modelled(500);
    report_idle(false);
    report_idle(true);
}
