//! [`TrafficRun`]: endpoints that put patterns to each other while one thread steps all of them.

use super::buffer::{Buffer, pattern};
use super::peers::{peer_connect_infos, peer_id, share_endpoint_region};
use super::subject::Subject;
use crate::arrivals::HostArrivals;
use crate::builder::EndpointBuilder;
use crate::command_ring::{CommandProducer, HostRing};
use crate::config::EndpointConfig;
use crate::endpoint::Endpoint;
use crate::error::FabricError;
use crate::transport::{PeerConnectInfo, Transport};
use mkernel_spec::fabric::{COMMAND_PUT, Command};
use std::time::{Duration, Instant};

/// The number of slots of the source region. A slot is reused when its put has completed.
const SOURCE_SLOTS: usize = 32;
/// The number of slots per peer and channel of the target region. A slot is reused when its put was checked.
const TARGET_SLOTS: u32 = 16;

/// The traffic of a run.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// The number of endpoints. Each endpoint puts to all other endpoints.
    pub endpoints: usize,
    /// The number of channels of each pair.
    pub channels: u16,
    /// The number of puts on each channel.
    pub puts: u32,
    /// The sizes of puts, which puts use in turn.
    pub sizes: Vec<u32>,
    /// The capacity of the rings as a power of two.
    pub ring_log2: u32,
    /// The most bytes to one peer in flight.
    pub byte_window: u64,
    /// The initial value of counts and indices.
    pub first: u32,
    /// The deadline of the endpoints. A run treats an endpoint as ended when it had no arrivals for three times this deadline,
    /// as a kernel would abort.
    pub deadline: Duration,
}

impl Default for Traffic {
    fn default() -> Self {
        Self {
            endpoints: 2,
            channels: 4,
            puts: 40,
            sizes: vec![64, 0, 1, 200],
            ring_log2: 4,
            byte_window: u64::MAX,
            first: 0,
            deadline: Duration::from_secs(10),
        }
    }
}

impl Traffic {
    fn slot_bytes(&self) -> usize {
        // The size is odd, so that offsets are unaligned.
        (*self.sizes.iter().max().expect("sizes") as usize + 3) | 1
    }

    fn size(&self, channel: u16, put: u32) -> u32 {
        self.sizes[(u32::from(channel) + put) as usize % self.sizes.len()]
    }

    fn seed(&self, from: usize, to: usize, channel: u16, put: u32) -> u64 {
        (from as u64) << 56 | (to as u64) << 48 | u64::from(channel) << 32 | u64::from(put)
    }

    /// Returns the offset of the put in the target region.
    fn target(&self, peer: usize, channel: u16, put: u32) -> usize {
        let stream = peer * usize::from(self.channels) + usize::from(channel);
        (stream * TARGET_SLOTS as usize + (put % TARGET_SLOTS) as usize) * self.slot_bytes()
    }

    fn config(&self) -> EndpointConfig {
        EndpointConfig {
            channels: self.channels,
            byte_window: self.byte_window,
            deadline: self.deadline,
            first_count: self.first,
        }
    }
}

/// An endpoint and its memory. Region 0 is the source of its puts, region 1 the target of its peers' puts.
pub struct TrafficNode {
    /// The endpoint. `None` once it has ended.
    pub endpoint: Option<Endpoint>,
    /// The producer of the endpoint's ring.
    pub producer: CommandProducer,
    /// The arrival words of the endpoint.
    pub arrivals: HostArrivals,
    /// Region 0.
    pub source: Buffer,
    /// Region 1.
    pub target: Buffer,
    /// The error that ended the endpoint.
    pub error: Option<FabricError>,
    /// A claimed index without a free slot so far.
    claimed: Option<u32>,
    /// The last command that used each source slot.
    users: Vec<Option<u32>>,
    /// The number of puts posted, by peer and channel.
    posted: Vec<u32>,
    /// The number of puts checked, by peer and channel.
    checked: Vec<u32>,
    moved_at: Instant,
}

/// Connected endpoints and the traffic between them.
pub struct TrafficRun<'a> {
    subject: &'a dyn Subject,
    traffic: Traffic,
    /// The endpoints.
    pub nodes: Vec<TrafficNode>,
}

impl<'a> TrafficRun<'a> {
    /// Connects the endpoints.
    ///
    /// # Errors
    ///
    /// Returns the error of an endpoint that cannot be created or connected.
    pub fn new(subject: &'a mut dyn Subject, traffic: Traffic) -> Result<Self, FabricError> {
        let transports = subject.make(traffic.endpoints);
        let nodes = connect(transports, &traffic, subject.now())?;
        Ok(Self {
            subject,
            traffic,
            nodes,
        })
    }

    /// Runs until all puts have arrived and completed or every endpoint has ended. Panics on wrong data and on a
    /// hang.
    pub fn run(&mut self) {
        let until = Instant::now() + self.subject.time_limit();
        while !self.is_over() {
            assert!(Instant::now() < until, "the run hangs: {}", self.describe());
            let mut has_moved = false;
            for at in 0..self.nodes.len() {
                has_moved |= self.post(at) | self.step(at) | self.check(at);
            }
            if !has_moved {
                self.subject.idle();
            }
        }
    }

    /// Closes an endpoint and drops it when the close handshake is complete.
    pub fn close(&mut self, at: usize) {
        let until = Instant::now() + self.subject.time_limit();
        let endpoint = self.nodes[at].endpoint.as_mut();
        endpoint.expect("an endpoint that has not ended").close();
        while (self.nodes[at].endpoint.as_ref()).is_none_or(|endpoint| !endpoint.is_closed()) {
            let error = &self.nodes[at].error;
            assert!(error.is_none() && Instant::now() < until, "{error:?}");
            let steps = (0..self.nodes.len()).map(|node| self.step(node));
            if !steps.fold(false, |any, has_moved| any | has_moved) {
                self.subject.idle();
            }
        }
        self.nodes[at].endpoint = None;
    }

    /// Posts a put without bytes in addition to the traffic.
    pub fn put(&mut self, from: usize, to: usize) {
        let command = Command {
            peer: peer_id(from, to).0,
            kind: COMMAND_PUT,
            ..Command::default()
        };
        let producer = &self.nodes[from].producer;
        producer.publish(producer.claim(), &command);
    }

    /// Lets time pass.
    pub fn idle(&self) {
        self.subject.idle();
    }

    /// Returns whether all work is done.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let all = self.traffic.puts;
        self.nodes.iter().all(|node| {
            let is_done = || {
                node.posted
                    .iter()
                    .chain(&node.checked)
                    .all(|puts| *puts == all)
            };
            let is_idle = |endpoint: &Endpoint| endpoint.is_idle();
            node.endpoint.is_none() || is_done() && node.endpoint.as_ref().is_some_and(is_idle)
        })
    }

    fn describe(&self) -> String {
        let describe =
            |node: &TrafficNode| format!("posted {:?}, checked {:?}; ", node.posted, node.checked);
        self.nodes.iter().map(describe).collect()
    }

    /// Posts the puts that a kernel would post now. Returns whether any put was posted.
    pub fn post(&mut self, at: usize) -> bool {
        let mut has_moved = false;
        for to in (0..self.traffic.endpoints).filter(|to| *to != at) {
            for channel in 0..self.traffic.channels {
                has_moved |= self.post_one(at, to, channel).is_some();
            }
        }
        has_moved
    }

    fn post_one(&mut self, from: usize, to: usize, channel: u16) -> Option<()> {
        let traffic = &self.traffic;
        let stream =
            |peer| usize::from(peer) * usize::from(traffic.channels) + usize::from(channel);
        let (peer, back) = (peer_id(from, to).0, peer_id(to, from).0);
        let checked = self.nodes[to].checked[stream(back)];
        let node = &mut self.nodes[from];
        node.endpoint.as_ref()?;
        let put = node.posted[stream(peer)];
        if put == traffic.puts || put - checked >= TARGET_SLOTS {
            return None;
        }
        let is_free = |used: &Option<u32>| used.is_none_or(|index| node.producer.is_sent(index));
        let slot = node.users.iter().position(is_free)?;
        let index = *node.claimed.get_or_insert_with(|| node.producer.claim());
        if !node.producer.has_slot(index) {
            return None;
        }
        let (bytes, source) = (traffic.size(channel, put), slot * traffic.slot_bytes());
        let seed = traffic.seed(from, to, channel, put);
        node.source.write(source, &pattern(seed, bytes as usize));
        let command = Command {
            peer,
            channel,
            source_region: 0,
            target_region: 1,
            kind: COMMAND_PUT,
            bytes,
            source_offset: source as u64,
            target_offset: traffic.target(back.into(), channel, put) as u64 + 1,
            ..Command::default()
        };
        node.producer.publish(index, &command);
        node.users[slot] = Some(index);
        node.claimed = None;
        node.posted[stream(peer)] += 1;
        Some(())
    }

    /// Steps an endpoint as its proxy would. An error ends the endpoint.
    pub fn step(&mut self, at: usize) -> bool {
        let (now, time_limit) = (self.subject.now(), 3 * self.traffic.deadline);
        let node = &mut self.nodes[at];
        let Some(endpoint) = &mut node.endpoint else {
            return false;
        };
        match endpoint.step(now) {
            Ok(has_moved) => {
                let has_arrived = node.checked.iter().all(|puts| *puts == self.traffic.puts);
                if has_moved || has_arrived {
                    node.moved_at = now;
                } else if now.saturating_duration_since(node.moved_at) > time_limit {
                    node.endpoint = None; // The kernel of a real endpoint would abort now.
                }
                has_moved
            }
            Err(error) => {
                endpoint.abort_kernels(&error);
                node.error = Some(error);
                node.endpoint = None;
                true
            }
        }
    }

    /// Checks the arrivals that a kernel would read now. Returns whether there was a new arrival.
    pub fn check(&mut self, at: usize) -> bool {
        let traffic = self.traffic.clone();
        let node = &mut self.nodes[at];
        let mut has_moved = false;
        for from in (0..traffic.endpoints).filter(|from| *from != at) {
            let peer = peer_id(at, from);
            for channel in 0..traffic.channels {
                let stream =
                    usize::from(peer.0) * usize::from(traffic.channels) + usize::from(channel);
                let count = node
                    .arrivals
                    .count(peer, channel)
                    .wrapping_sub(traffic.first);
                assert!(
                    count <= traffic.puts,
                    "{count} arrivals of {} puts",
                    traffic.puts
                );
                for put in node.checked[stream]..count {
                    let bytes = traffic.size(channel, put) as usize;
                    let place = traffic.target(peer.0.into(), channel, put) + 1;
                    let expected = pattern(traffic.seed(from, at, channel, put), bytes);
                    let found = node.target.read(place, bytes);
                    assert!(
                        found == expected,
                        "put {put} of channel {channel}, {from} to {at}: wrong bytes"
                    );
                    has_moved = true;
                }
                node.checked[stream] = count;
            }
        }
        has_moved
    }
}

/// Connects endpoints over the given transports. The peers of each are all other endpoints, in order.
fn connect(
    transports: Vec<Box<dyn Transport>>,
    traffic: &Traffic,
    now: Instant,
) -> Result<Vec<TrafficNode>, FabricError> {
    let count = traffic.endpoints;
    let streams = (count - 1) * usize::from(traffic.channels);
    let memory = |slots| Buffer::new(slots * traffic.slot_bytes() + 1);
    let mut builders = Vec::new();
    for transport in transports {
        let (source, target) = (
            memory(SOURCE_SLOTS),
            memory(streams * TARGET_SLOTS as usize),
        );
        let builder = EndpointBuilder::new(transport, traffic.config())?;
        builders.push((builder, source, target));
    }
    let mut tables: Vec<Vec<PeerConnectInfo>> = Vec::new();
    for of in 0..count {
        let info = |peer: usize, of| builders[peer].0.connect_info(of).expect("connection info");
        tables.push(peer_connect_infos(count, of, info));
    }
    let connect = |((builder, source, target), peers): (
        (EndpointBuilder, Buffer, Buffer),
        &Vec<PeerConnectInfo>,
    )| {
        let ring = HostRing::allocate(traffic.ring_log2, traffic.first)?;
        let arrivals = HostArrivals::new(count - 1, traffic.channels, traffic.first);
        let receiver = Box::new(arrivals.clone());
        let producer = CommandProducer::new(ring.clone());
        let deadline = Instant::now() + Duration::from_secs(10);
        Ok(TrafficNode {
            endpoint: Some(builder.connect(peers, ring, receiver, deadline)?),
            producer,
            arrivals,
            source,
            target,
            error: None,
            claimed: None,
            users: vec![None; SOURCE_SLOTS],
            posted: vec![0; streams],
            checked: vec![0; streams],
            moved_at: now,
        })
    };
    // A transport may need the other side while it connects.
    std::thread::scope(|scope| {
        let threads: Vec<_> = builders
            .into_iter()
            .zip(&tables)
            .map(|both| scope.spawn(move || connect(both)))
            .collect();
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        joined.collect::<Result<_, _>>()
    })
    .and_then(share_regions)
}

/// Registers the memory of all nodes as their regions 0 and 1.
fn share_regions(mut nodes: Vec<TrafficNode>) -> Result<Vec<TrafficNode>, FabricError> {
    let sources: Vec<_> = nodes.iter().map(|node| node.source.memory()).collect();
    let targets: Vec<_> = nodes.iter().map(|node| node.target.memory()).collect();
    let endpoints = nodes.iter_mut().filter_map(|node| node.endpoint.as_mut());
    let mut endpoints: Vec<&mut Endpoint> = endpoints.collect();
    share_endpoint_region(&mut endpoints, sources.into_iter())?;
    share_endpoint_region(&mut endpoints, targets.into_iter())?;
    Ok(nodes)
}
