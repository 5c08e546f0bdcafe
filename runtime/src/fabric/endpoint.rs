//! [`Fabric`]: a rank's endpoint with its proxy and its regions.

use super::connecting::{STEP, exchange_regions, offers_of, open, start_proxy};
use super::heartbeat::Heartbeat;
use super::kernel_memory::KernelMemory;
use super::nics;
use super::node_map::NodeMap;
use super::p2p_copy::{P2pCopies, SharedRegions};
use super::region::{MemoryPath, Region};
use super::transport::Transport;
use crate::bootstrap::Collective;
use crate::error::{Error, with_causes};
use crate::health::Lost;
use crate::shared::Shared;
use crate::simulation::BusyGuard;
use crate::stats::FabricStats;
use crate::symmetric::{OwnMemory, Symmetric};
use mkernel_fabric::{FabricError, MemoryRange, Proxy, StatsReader};
use mkernel_spec::fabric::KernelEndpoint;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The time that dropping a fabric of GPUs may wait until this rank's puts have been sent and its peers have completed their puts.
/// The peers of simulated GPUs may be far behind, since all ranks share the cores of the host.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// A connected endpoint. All kernels of several nodes put over the endpoint, one kernel after the other. Dropping the fabric
/// ends the proxy. No kernel that uses the endpoint may be running at that time.
pub(crate) struct Fabric {
    _busy_guard: Option<BusyGuard>,
    proxy: Option<Proxy>,
    endpoint_stats: StatsReader,
    memory: KernelMemory,
    node_map: NodeMap,
    transport: Transport,
    /// The paths to memory that can be tried, best path first.
    paths: Vec<MemoryPath>,
    /// The reasons why better paths are not possible.
    refused: Option<&'static str>,
    /// The regions that copy engines access, if NICs are emulated.
    shared_regions: SharedRegions,
    /// The heartbeat of the other nodes, if GPUs are simulated and wait for NICs.
    heartbeat: Option<Arc<Heartbeat>>,
    lost: Lost,
    /// Whether a call has failed: puts of aborted kernels may be missing, and a peer may wait for them in vain.
    has_failed: Arc<AtomicBool>,
    /// The time that dropping the fabric may wait for the end of puts if no call has failed.
    drain_limit: Duration,
}

impl Fabric {
    /// Connects to the peers and starts the proxy. The endpoint has no regions yet. This is a collective call.
    pub fn connect(
        shared: &Shared,
        ranks: &mut Collective,
        node_map: &NodeMap,
        transport: &Transport,
    ) -> Result<Self, Error> {
        let timeout = shared.host_timeout();
        let peers = node_map.peers();
        let prepared = shared.ensure_usable().and_then(|()| {
            let memory = KernelMemory::allocate(shared, &peers)?;
            let (paths, refused) = MemoryPath::all(shared, transport)?;
            Ok(((memory, paths, refused), Vec::new()))
        });
        let (prepared, _) = ranks.agree("allocation for the fabric", prepared, timeout)?;
        let (memory, paths, refused) = prepared;
        let shared_regions = SharedRegions::default();
        let opened = open(shared, ranks, transport, &peers, || {
            let regions = shared_regions.clone();
            let copies = P2pCopies::new(&shared.ctx, shared.rank, regions, shared.gpu_timeout());
            Ok(Box::new(copies?))
        })?;
        let (builder, offers) = ranks.agree(STEP, opened, timeout)?;
        let heartbeat = shared.simulated.is_some() && !paths.contains(&MemoryPath::Copies);
        let heartbeat = heartbeat.then(Heartbeat::new);
        let connected = offers_of(shared, &offers, &peers, node_map).and_then(|peers| {
            let deadline = Instant::now() + timeout;
            let arrivals = memory.arrivals_for_proxy(heartbeat.clone());
            let endpoint = builder.connect(&peers, memory.ring(), arrivals, deadline);
            Ok((endpoint.map_err(Error::Fabric)?, Vec::new()))
        });
        // This step is also a barrier: no rank puts before all are connected.
        let (endpoint, _) = ranks.agree(STEP, connected, timeout)?;
        let sleeps_at_once = shared.simulated.is_some();
        let proxy = start_proxy(shared, transport, endpoint, sleeps_at_once)
            .map(|proxy| (proxy, Vec::new()));
        let (proxy, _) = ranks.agree("start of the proxies", proxy, timeout)?;
        Ok(Self {
            _busy_guard: memory.pause_clock(shared, heartbeat.clone()),
            endpoint_stats: proxy.stats(),
            proxy: Some(proxy),
            memory,
            node_map: node_map.clone(),
            transport: transport.clone(),
            paths,
            refused,
            shared_regions,
            heartbeat,
            lost: shared.health.lost.clone(),
            has_failed: shared.health.has_failed.clone(),
            drain_limit: match shared.simulated.is_some() {
                true => timeout,
                false => DRAIN_LIMIT,
            },
        })
    }

    /// Returns whether the endpoint connects these nodes by this transport.
    pub fn connects(&self, node_map: &NodeMap, transport: &Transport) -> bool {
        self.node_map == *node_map && self.transport.identity() == transport.identity()
    }

    /// Returns the endpoint in the form that kernels use, for a workspace at the given place in a region.
    pub fn for_kernels(&self, region: u32, workspace_offset: u64) -> KernelEndpoint {
        KernelEndpoint {
            region,
            workspace_offset,
            ..self.memory.for_kernels()
        }
    }

    /// Multiplies the counts of calls and of puts, for tests of counters that wrap around. No call may be under way.
    #[cfg(feature = "testing")]
    pub fn pretend(&self, times: u32) -> Result<(), Error> {
        self.memory.pretend(times)
    }

    /// Returns an error if the longest write of the NICs is shorter than `bytes`.
    pub fn check_put_bytes(&self, bytes: u64) -> Result<(), Error> {
        self.proxy()?
            .limits()
            .check_put_bytes(bytes)
            .map_err(Error::Fabric)
    }

    /// Registers memory that all ranks of this host have mapped, as the next region. This is a collective call.
    pub fn share(
        &self,
        shared: &Shared,
        ranks: &mut Collective,
        memory: &Symmetric,
    ) -> Result<(), Error> {
        self.shared_regions.add(memory.clone());
        let ctx = &shared.ctx;
        self.add_region(shared, ranks, true, |path| {
            Ok(((), path.range(ctx, memory.own())?))
        })
    }

    /// Allocates memory that this rank's kernels and NICs access, and registers it as the next region. This is a
    /// collective call.
    pub fn allocate_region(
        &self,
        shared: &Shared,
        ranks: &mut Collective,
        bytes: u64,
    ) -> Result<Region, Error> {
        if !self.paths.contains(&MemoryPath::Copies) {
            return self.add_region(shared, ranks, false, |path| path.allocate(shared, bytes));
        }
        let memory = OwnMemory::allocate(&shared.ctx, &shared.stream, bytes, shared.gpu_timeout());
        let memory = memory.map(|memory| (memory, Vec::new()));
        let timeout = shared.host_timeout();
        let (memory, _) = ranks.agree("allocation of a region", memory, timeout)?;
        let memory = memory.share(&shared.ctx, ranks, timeout)?;
        self.share(shared, ranks, &memory)?;
        Ok(Region::Symmetric(memory))
    }

    /// Registers a region of this rank, and adds the peers' regions. `range` returns the memory for a path together with its
    /// owner.
    fn add_region<T>(
        &self,
        shared: &Shared,
        ranks: &mut Collective,
        is_mapped_by_node: bool,
        range: impl Fn(MemoryPath) -> Result<(T, MemoryRange), Error>,
    ) -> Result<T, Error> {
        let registered = self.register(shared, is_mapped_by_node, range);
        let (peers, timeout) = (self.node_map.peers(), shared.host_timeout());
        exchange_regions(self.proxy(), ranks, &peers, registered, timeout)
    }

    /// Registers a region by the first path that GPU and NICs support.
    fn register<T>(
        &self,
        shared: &Shared,
        is_mapped_by_node: bool,
        range: impl Fn(MemoryPath) -> Result<(T, MemoryRange), Error>,
    ) -> Result<(T, Vec<u8>), Error> {
        let mut refused: Vec<String> = self.refused.into_iter().map(str::to_owned).collect();
        for &path in &self.paths {
            // Memory that other GPUs of the node map must be GPU memory.
            if path == MemoryPath::Pinned && is_mapped_by_node {
                continue;
            }
            let registered = range(path).and_then(|(owner, range)| {
                let info = self
                    .proxy()?
                    .with_endpoint(move |endpoint| endpoint.register(range));
                Ok((owner, info.map_err(Error::Fabric)?))
            });
            match registered {
                Ok(registered) => {
                    nics::log_path(shared, path, &refused, &self.transport);
                    return Ok(registered);
                }
                // Either the driver refused to export a dma-buf, or the NIC refused to register the memory.
                Err(error @ (Error::Fabric(FabricError::Register { .. }) | Error::Cuda { .. }))
                    if path.has_alternative() =>
                {
                    refused.push(format!("{path}: {}", with_causes(&error)));
                }
                Err(error) => return Err(error),
            }
        }
        Err(nics::no_path(&refused))
    }

    fn proxy(&self) -> Result<&Proxy, Error> {
        self.proxy.as_ref().ok_or(Error::Aborted { cause: None })
    }

    /// Wakes the proxy. This must be called when a kernel is launched.
    pub fn wake(&self) {
        if let Some(heartbeat) = &self.heartbeat {
            heartbeat.record();
        }
        if let Some(proxy) = &self.proxy {
            proxy.wake();
        }
    }

    /// Prepares the proxy for replays of a graph, which do not call [`wake`](Self::wake). This must be called when a
    /// launch is captured.
    pub fn capture(&self) {
        if let Some(proxy) = &self.proxy {
            proxy.capture();
        }
    }

    /// Sets the deadline of puts.
    pub fn set_deadline(&self, deadline: Duration) {
        if let Some(proxy) = &self.proxy {
            proxy.set_deadline(deadline);
        }
    }

    /// Returns the counters of the fabric's work so far.
    pub fn stats(&self) -> FabricStats {
        FabricStats {
            transport: self.transport.name(),
            peers: self.node_map.peers().len(),
            endpoint: self.endpoint_stats.read(),
        }
    }

    /// Returns the failure of the fabric, if it has failed.
    pub fn failure(&self) -> Option<Error> {
        self.proxy.as_ref()?.error().map(Error::Fabric)
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        let Some(proxy) = self.proxy.take() else {
            return;
        };
        let limit = match self.has_failed.load(Ordering::Relaxed) {
            true => DRAIN_LIMIT,
            false => self.drain_limit,
        };
        if let Some(&lost) = self.lost.get() {
            proxy.abort(lost);
        } else if std::thread::panicking() {
            drop(proxy); // The peers must detect that this was not an orderly shutdown.
        } else if let Err(error) = proxy.shutdown(limit) {
            tracing::debug!(%error, "the proxy ended");
        }
        self.stats().log();
    }
}
