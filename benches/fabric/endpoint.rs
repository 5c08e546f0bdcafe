//! The cost of an endpoint over a NIC that is never busy.

use super::{REGION_BYTES, put};
use mkernel_fabric::immediate::Immediate;
use mkernel_fabric::testing::peer_connect_infos;
use mkernel_fabric::{
    CommandProducer, Endpoint, EndpointBuilder, EndpointConfig, Event, FabricError, HostArrivals,
    HostRing, Limits, MemoryRange, PeerConnectInfo, PeerId, RailCounters, RegionId, Transport,
    Write,
};
use mkernel_spec::fabric::{COMMAND_PUT_TO_PEERS, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A NIC that is never busy. It completes writes at once, and returns the credits of its peers' receives.
struct IdealNic {
    sent: Vec<u64>,
    /// The puts to each peer.
    puts: Vec<u32>,
    /// The peers that return credits at the next poll.
    returning: Vec<u16>,
}

impl Transport for IdealNic {
    fn limits(&self) -> Limits {
        Limits {
            write_bytes: 1 << 20,
            writes: 128,
            receives: 256,
            rails: 1,
        }
    }
    fn rail_counters(&self) -> Arc<[RailCounters]> {
        RailCounters::of(std::iter::empty())
    }
    fn register(&mut self, _: MemoryRange) -> Result<RegionId, FabricError> {
        Ok(RegionId(0))
    }
    fn region_info(&self, _: RegionId) -> Vec<u8> {
        Vec::new()
    }
    fn add_peer_region(&mut self, _: PeerId, _: &[u8]) -> Result<u64, String> {
        Ok(REGION_BYTES as u64)
    }
    fn connect_info(&mut self, _: PeerId) -> Result<Vec<u8>, FabricError> {
        Ok(Vec::new())
    }
    fn connect(&mut self, peers: &[PeerConnectInfo], _: Instant) -> Result<(), FabricError> {
        self.puts = vec![0; peers.len()];
        Ok(())
    }
    fn post(&mut self, writes: &[Write]) -> Result<usize, FabricError> {
        for write in writes {
            self.sent.push(write.id);
            let puts = &mut self.puts[usize::from(write.peer.0)];
            *puts += 1;
            if puts.is_multiple_of(64) {
                self.returning.push(write.peer.0);
            }
        }
        Ok(writes.len())
    }
    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), FabricError> {
        events.extend(self.sent.drain(..).map(|id| Event::Sent { id }));
        for peer in self.returning.drain(..) {
            let delivered = self.puts[usize::from(peer)];
            events.push(Event::Arrived {
                peer: PeerId(peer),
                immediate: Immediate::Credit { delivered }.encode(),
            });
        }
        Ok(())
    }
}

/// Creates an endpoint with an ideal NIC.
fn ideal(peers: u16) -> (Endpoint, CommandProducer) {
    let nic = IdealNic {
        sent: Vec::new(),
        puts: Vec::new(),
        returning: Vec::new(),
    };
    let config = EndpointConfig {
        channels: 1,
        byte_window: u64::MAX,
        deadline: Duration::from_secs(100),
        first_count: 0,
    };
    let mut builder = EndpointBuilder::new(Box::new(nic), config).expect("valid");
    let infos = peer_connect_infos(usize::from(peers) + 1, 0, |_, _| {
        builder.connect_info(PeerId(0)).expect("connection info")
    });
    let ring = HostRing::allocate(12, 0).expect("valid");
    let arrivals = Box::new(HostArrivals::new(peers.into(), 1, 0));
    let producer = CommandProducer::new(ring.clone());
    let endpoint = builder.connect(&infos, ring, arrivals, Instant::now());
    (endpoint.expect("connects"), producer)
}

/// Prints the cost of an endpoint alone, as the fastest of many rounds, since other programs disturb some rounds.
pub fn report_endpoint(peers: u16) {
    let (mut endpoint, producer) = ideal(peers);
    let mut fastest = |commands: &[Command], steps: u32| {
        let round = || {
            let mut last = None;
            for command in commands {
                let index = producer.claim();
                producer.publish(index, command);
                last = Some(index);
            }
            let now = Instant::now();
            for _ in 0..steps {
                endpoint.step(now).expect("no faults");
            }
            let ns = now.elapsed().as_nanos() as f64;
            assert!(last.is_none_or(|last| producer.is_sent(last)));
            ns
        };
        std::iter::repeat_with(round)
            .take(500)
            .fold(f64::MAX, f64::min)
    };
    let to = |peer| Command { peer, ..put(0, 0) };
    let to_all = Command {
        kind: COMMAND_PUT_TO_PEERS,
        target_region: peers as u8,
        target_offset: (1 << peers) - 1,
        ..put(0, 0)
    };
    let idle_ns = fastest(&[], 100) / 100.0;
    let one_ns = fastest(&[to(peers - 1)], 1);
    let each: Vec<_> = (0..peers).map(to).collect();
    let (each_ns, all_ns) = (fastest(&each, 1), fastest(&[to_all], 1));
    let many: Vec<_> = (0..1024).map(|number| to(number % peers)).collect();
    // A step takes at most 128 puts.
    let many_ns = fastest(&many, 8);
    println!(
        "an endpoint alone, {peers} peers: a step without work {idle_ns:.0} ns, with a put to one peer {one_ns:.0} ns, to each \
         {each_ns:.0} ns, to each by one command {all_ns:.0} ns; {:.1} M commands/s",
        1024.0 / many_ns * 1e3
    );
}
