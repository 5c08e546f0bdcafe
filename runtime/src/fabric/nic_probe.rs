//! [`NicProbe`]: puts between host memory of ranks on different nodes, without a kernel, to check NICs and networks.

mod memory;

pub use memory::{ProbeMemory, WrongWords};

use super::connecting::{STEP, exchange_regions, offers_of, open, start_proxy};
use super::node_map::NodeMap;
use super::transport::Transport;
use crate::communicator::Communicator;
use crate::error::{Error, NetworkError};
use crate::shared::Shared;
use mkernel_fabric::emulated::HostCopyEngine;
use mkernel_fabric::{
    CommandProducer, EndpointStats, HostArrivals, HostRing, PeerId, Proxy, StatsReader,
};
use mkernel_spec::fabric::{COMMAND_PUT, Command, PUT_CHANNELS};
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// The logarithm of the number of puts that can wait for the proxy.
const RING_LOG2: u32 = 10;

/// The time that dropping a probe may wait for the other ranks.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// The regions, in the order of their registration.
const SOURCE: u8 = 0;
const TARGET: u8 = 1;

/// The options of a probe. All ranks must pass equal options, except those of the transport that may differ.
#[derive(Clone, Debug)]
pub struct NicProbeOptions {
    /// The number of hosts, if ranks are on several. On one host, the number of nodes into which the ranks are divided in order.
    pub nodes: u32,
    /// The size of the source and the size of the target in bytes.
    pub bytes: u64,
    /// The transport.
    pub transport: Transport,
}

/// A put of a probe, from its source to the target of a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbePut {
    /// The index of the peer in [`NicProbe::peers`].
    pub peer: u16,
    /// The channel, 0 or 1.
    pub channel: u16,
    /// The length in bytes. A put of 0 bytes is only an arrival.
    pub bytes: u32,
    /// The offset in the source in bytes.
    pub source: u64,
    /// The offset in the target in bytes.
    pub target: u64,
}

/// Host memory of a rank that is connected to the memory of its peers. See [`Communicator::nic_probe`].
pub struct NicProbe {
    proxy: Option<Proxy>,
    producer: CommandProducer,
    arrivals: HostArrivals,
    stats: StatsReader,
    peers: Vec<u32>,
    /// The index of this rank in the peers of each peer.
    own_indices: Vec<u32>,
    source: ProbeMemory,
    target: ProbeMemory,
}

impl Communicator {
    /// Connects host memory of every rank to its counterparts on the other nodes. This is a collective call.
    ///
    /// # Errors
    /// [`Error::Cluster`], [`Error::Network`] and [`Error::Fabric`].
    pub fn nic_probe(&self, options: &NicProbeOptions) -> Result<NicProbe, Error> {
        NicProbe::new(self.shared(), options)
    }
}

impl NicProbe {
    fn new(shared: &Shared, options: &NicProbeOptions) -> Result<Self, Error> {
        let timeout = shared.host_timeout();
        let transport = &options.transport;
        let checked = NodeMap::new(shared.rank, &shared.cluster.hosts, options.nodes);
        let checked = checked.and_then(|node_map| {
            let hosts = shared.cluster.hosts.count();
            match transport {
                Transport::Emulated { .. } if hosts > 1 => {
                    Err(Error::Network(NetworkError::EmulatedHosts { hosts }))
                }
                _ => Ok((node_map, Vec::new())),
            }
        });
        let mut ranks = shared.ranks();
        let checked = shared.ensure_usable().and(checked);
        let (node_map, _) = ranks.agree("the options of the probe", checked, timeout)?;
        let peers = node_map.peers();
        let opened = open(shared, &mut ranks, transport, &peers, || {
            Ok(Box::new(HostCopyEngine))
        })?;
        let (builder, offers) = ranks.agree(STEP, opened, timeout)?;
        let arrivals = HostArrivals::new(peers.len(), PUT_CHANNELS, 0);
        let connected = offers_of(shared, &offers, &peers, &node_map).and_then(|infos| {
            let ring = HostRing::allocate(RING_LOG2, 0).map_err(Error::Fabric)?;
            let deadline = Instant::now() + timeout;
            let receiver = Box::new(arrivals.clone());
            let endpoint = builder.connect(&infos, ring.clone(), receiver, deadline);
            Ok(((endpoint.map_err(Error::Fabric)?, ring), Vec::new()))
        });
        // This step is also a barrier: no rank puts before all are connected.
        let ((endpoint, ring), _) = ranks.agree(STEP, connected, timeout)?;
        let proxy = start_proxy(shared, transport, endpoint, false);
        let proxy = proxy.map(|proxy| (proxy, Vec::new()));
        let (proxy, _) = ranks.agree("start of the proxies", proxy, timeout)?;
        let mut share = || {
            let memory = ProbeMemory::new(options.bytes);
            let range = memory.range();
            let info = proxy.with_endpoint(move |endpoint| endpoint.register(range));
            let registered = info.map_err(Error::Fabric).map(|info| (memory, info));
            exchange_regions(Ok(&proxy), &mut ranks, &peers, registered, timeout)
        };
        let (source, target) = (share()?, share()?);
        Ok(Self {
            stats: proxy.stats(),
            proxy: Some(proxy),
            producer: CommandProducer::new(ring),
            arrivals,
            peers,
            own_indices: node_map.peer_indices(),
            source,
            target,
        })
    }

    /// Returns the ranks to which this rank puts.
    #[must_use]
    pub fn peers(&self) -> &[u32] {
        &self.peers
    }

    /// Returns the index of this rank in the [`peers`](Self::peers) of a peer, for offsets in the target of the peer.
    #[must_use]
    pub fn own_index(&self, peer: u16) -> u32 {
        self.own_indices[usize::from(peer)]
    }

    /// Returns the memory from which this rank puts.
    #[must_use]
    pub fn source(&self) -> &ProbeMemory {
        &self.source
    }

    /// Returns the memory to which peers put.
    #[must_use]
    pub fn target(&self) -> &ProbeMemory {
        &self.target
    }

    /// Hands a put to the proxy, waits while the ring is full, and returns the number of the put. Like a kernel, this does not
    /// wake the proxy.
    ///
    /// # Errors
    /// [`Error::Fabric`] if the network has failed. A wrong put is an error of a later call.
    pub fn put(&self, put: &ProbePut) -> Result<u32, Error> {
        let index = self.producer.claim();
        while !self.producer.has_slot(index) {
            self.check()?;
            std::thread::yield_now();
        }
        let command = Command {
            peer: put.peer,
            channel: put.channel,
            source_region: SOURCE,
            target_region: TARGET,
            kind: COMMAND_PUT,
            bytes: put.bytes,
            source_offset: put.source,
            target_offset: put.target,
            ..Command::default()
        };
        self.producer.publish(index, &command);
        Ok(index)
    }

    /// Returns whether this put and all earlier puts have completed.
    #[must_use]
    pub fn is_sent(&self, put: u32) -> bool {
        self.producer.is_sent(put)
    }

    /// Returns the number of puts that have arrived from a peer, modulo 2^32.
    #[must_use]
    pub fn arrived(&self, peer: u16, channel: u16) -> u32 {
        self.arrivals.count(PeerId(peer), channel)
    }

    /// Returns the error that ended the network.
    ///
    /// # Errors
    /// [`Error::Fabric`].
    pub fn check(&self) -> Result<(), Error> {
        match self.proxy.as_ref().and_then(Proxy::error) {
            Some(error) => Err(Error::Fabric(error)),
            None => Ok(()),
        }
    }

    /// Returns the CPU time that the proxy's thread has used.
    ///
    /// # Errors
    /// [`Error::Fabric`] if the network has failed.
    pub fn cpu_time(&self) -> Result<Duration, Error> {
        let proxy = self.proxy.as_ref().ok_or(Error::Aborted { cause: None })?;
        let time = proxy.with_endpoint(|_| Ok(clock_gettime(ClockId::ThreadCPUTime)));
        let time = time.map_err(Error::Fabric)?;
        Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }

    /// Returns the statistics so far.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        self.stats.read()
    }
}

impl Drop for NicProbe {
    fn drop(&mut self) {
        if let Some(proxy) = self.proxy.take()
            && let Err(error) = proxy.shutdown(DRAIN_LIMIT)
        {
            tracing::debug!(%error, "the proxy of a probe ended");
        }
    }
}
