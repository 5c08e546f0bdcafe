//! [`Fabric`]: a rank's proxy, and the memory that it shares with kernels.

use super::arrivals::PinnedArrivals;
use super::heartbeat::{Heartbeat, HeartbeatArrivals};
use super::nics;
use super::node_map::NodeMap;
use super::offers;
use super::p2p_copy::P2pCopies;
use super::region::Region;
use super::ring::DeviceRing;
use super::spec::{FabricSpec, PreparedEndpoint};
use super::transport::Transport;
use crate::bootstrap::{Collective, socket_pairs};
use crate::error::{Error, Peer, ProtocolFault};
use crate::health::Lost;
use crate::report::Page;
use crate::shared::Shared;
use crate::simulation::BusyGuard;
use crate::symmetric::OwnMemory;
use mkernel_fabric::emulated::{Clock, EmulatedTransport, Faults, NicModel, Wire};
use mkernel_fabric::{
    Arrivals, Endpoint, EndpointBuilder, EndpointConfig, MemoryKind, MemoryRange, PeerConnectInfo,
    PeerId, Proxy, ProxyOptions,
};
use mkernel_spec::abi::{FLAG_STRIDE_BYTES, MAX_RANKS};
use mkernel_spec::fabric::{CommandRing, RingState};
use std::sync::Arc;
use std::time::{Duration, Instant};

const STEP: &str = "connection of the fabric";

/// How long dropping a fabric may wait until this rank's puts have been sent and its peers have completed theirs.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// A connected endpoint. Dropping it ends the proxy. No kernel that uses the endpoint may be running then.
pub(crate) struct Fabric {
    _busy_guard: Option<BusyGuard>,
    proxy: Option<Proxy>,
    memory: KernelMemory,
    region: Region,
    /// The heartbeat of the other nodes, if GPUs are simulated and wait for NICs.
    heartbeat: Option<Arc<Heartbeat>>,
    lost: Lost,
}

impl Fabric {
    /// Allocates the memory, connects to the peers, and starts the proxy. This is a collective call.
    pub fn connect(shared: &Shared, spec: &FabricSpec, page: &Arc<Page>) -> Result<Self, Error> {
        let timeout = shared.host_timeout();
        let mut ranks = shared.ranks();
        let peers = spec.node_map.peers();
        let memory = KernelMemory::allocate(shared, spec, &peers, page);
        let memory = memory.map(|memory| (memory, Vec::new()));
        let (memory, _) = ranks.agree("allocation for the fabric", memory, timeout)?;
        let (prepared, offers) = prepare_endpoint(shared, &mut ranks, spec, &peers)?;
        let PreparedEndpoint { region, setup } = prepared;
        let region = match region {
            Region::Device(memory) if spec.mapped_by_node => Region::Symmetric {
                memory: memory.share(&shared.ctx, &mut ranks, timeout)?,
                number: shared.cluster.hosts.local_rank(shared.rank),
            },
            region => region,
        };
        let heartbeat = shared.simulated.is_some() && !matches!(region, Region::Symmetric { .. });
        let heartbeat = heartbeat.then(Heartbeat::new);
        let connected = offers_of(shared, &offers, &peers, &spec.node_map).and_then(|peers| {
            let deadline = Instant::now() + timeout;
            let arrivals = memory.arrivals_for_proxy(heartbeat.clone());
            let endpoint = setup.connect(&peers, memory.ring.ring.clone(), arrivals, deadline);
            Ok((endpoint.map_err(Error::Fabric)?, Vec::new()))
        });
        // This step is also a barrier: no rank puts before all are connected.
        let (endpoint, _) = ranks.agree(STEP, connected, timeout)?;
        let proxy = start_proxy(shared, spec, endpoint).map(|proxy| (proxy, Vec::new()));
        let (proxy, _) = ranks.agree("start of the proxies", proxy, timeout)?;
        Ok(Self {
            _busy_guard: pause_clock(shared, &memory.ring, page, heartbeat.clone()),
            proxy: Some(proxy),
            memory,
            region,
            heartbeat,
            lost: shared.health.lost.clone(),
        })
    }

    /// Returns the command ring in the form that kernels use.
    pub fn ring(&self) -> CommandRing {
        self.memory.ring.on_device(self.memory.state.address())
    }

    /// Returns the address of the arrival words, which are in host memory, by peer and channel.
    pub fn arrivals(&self) -> u64 {
        self.memory.arrivals.device_address()
    }

    /// Multiplies the counts of arrived puts, for tests of counters that wrap around. No put may be under way.
    pub fn pretend_arrivals(&self, times: u32) {
        self.memory.arrivals.pretend(times);
    }

    /// Returns the address of this rank's region 0.
    pub fn region(&self) -> u64 {
        self.region.address()
    }

    /// Returns the address of region 0 of each rank of this node, if the GPUs of the node map it. The rest is 0.
    pub fn regions_of_node(&self, shared: &Shared, node_map: &NodeMap) -> [u64; MAX_RANKS] {
        let mut addresses = [0; MAX_RANKS];
        if let Region::Symmetric { memory, .. } = &self.region {
            for (address, rank) in addresses.iter_mut().zip(node_map.local_ranks()) {
                *address = memory.addresses()[shared.cluster.hosts.local_rank(*rank)];
            }
        }
        addresses
    }

    /// Returns the address of the additional device memory that the spec asked for.
    pub fn state(&self) -> u64 {
        self.memory.state.address() + STATE_OFFSET_BYTES
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

    /// Returns why the fabric has failed, if it has.
    pub fn failure(&self) -> Option<Error> {
        self.proxy.as_ref()?.error().map(Error::Fabric)
    }
}

/// What kernels share with the proxy, besides the region.
struct KernelMemory {
    ring: DeviceRing,
    arrivals: PinnedArrivals,
    /// The [`RingState`], and at [`STATE_OFFSET_BYTES`] the additional device memory that the spec asks for.
    state: OwnMemory,
}

/// The offset of the additional device memory.
const STATE_OFFSET_BYTES: u64 = (size_of::<RingState>() as u64).next_multiple_of(FLAG_STRIDE_BYTES);

impl KernelMemory {
    fn allocate(
        shared: &Shared,
        spec: &FabricSpec,
        peers: &[u32],
        page: &Arc<Page>,
    ) -> Result<Self, Error> {
        shared.ensure_usable()?;
        let ring = DeviceRing::allocate(&shared.ctx)?;
        let arrivals = PinnedArrivals::allocate(shared, peers, spec.channels, page)?;
        let state = allocate(shared, STATE_OFFSET_BYTES + spec.state_bytes)?;
        Ok(Self {
            ring,
            arrivals,
            state,
        })
    }

    fn arrivals_for_proxy(&self, heartbeat: Option<Arc<Heartbeat>>) -> Box<dyn Arrivals> {
        let arrivals = self.arrivals.clone();
        match heartbeat {
            Some(heartbeat) => Box::new(HeartbeatArrivals {
                arrivals,
                heartbeat,
            }),
            None => Box::new(arrivals),
        }
    }
}

fn allocate(shared: &Shared, bytes: u64) -> Result<OwnMemory, Error> {
    OwnMemory::allocate(&shared.ctx, &shared.stream, bytes, shared.gpu_timeout())
}

impl Drop for Fabric {
    fn drop(&mut self) {
        let Some(proxy) = self.proxy.take() else {
            return;
        };
        if let Some(&lost) = self.lost.get() {
            proxy.abort(lost);
        } else if std::thread::panicking() {
            drop(proxy); // The peers must detect that this was not an orderly shutdown.
        } else if let Err(error) = proxy.shutdown(DRAIN_LIMIT) {
            tracing::debug!(%error, "the proxy ended");
        }
    }
}

/// Sets up the transport and the region. Returns them with the offers of all ranks. This is a collective call.
fn prepare_endpoint(
    shared: &Shared,
    ranks: &mut Collective,
    spec: &FabricSpec,
    peers: &[u32],
) -> Result<(PreparedEndpoint, Vec<Vec<u8>>), Error> {
    let timeout = shared.host_timeout();
    let config = EndpointConfig {
        channels: spec.channels,
        // This deadline is real time, also if GPUs are simulated.
        deadline: shared.timeout(),
        put_bytes: spec.put_bytes,
        first_count: 0,
    };
    let prepared = match &spec.transport {
        Transport::Emulated { nic, faults } => {
            let region = allocate(shared, spec.region_bytes).map(|region| (region, Vec::new()));
            let (region, _) = ranks.agree("allocation of a region", region, timeout)?;
            let region_bytes = region.bytes() as u64;
            let region = Region::Symmetric {
                memory: region.share(&shared.ctx, ranks, timeout)?,
                number: shared.rank as usize,
            };
            let wires = socket_pairs::connect(ranks, peers, timeout)?;
            emulated(shared, (nic, faults), (region, region_bytes), wires, config)
        }
        Transport::Rc(_) | Transport::Efa(_) => nics::set_up(shared, spec, &config),
    };
    let offers = prepared.and_then(|mut prepared| {
        let setup = &mut prepared.setup;
        let offers = (0..peers.len() as u16).map(|peer| setup.connect_info(PeerId(peer)));
        let offers: Vec<Vec<u8>> = offers.collect::<Result<_, _>>().map_err(Error::Fabric)?;
        Ok((prepared, offers::encode(&offers)))
    });
    ranks.agree(STEP, offers, timeout)
}

fn start_proxy(shared: &Shared, spec: &FabricSpec, endpoint: Endpoint) -> Result<Proxy, Error> {
    let options = ProxyOptions {
        cores: nics::cores(shared, &spec.transport)?,
        sleeps_at_once: shared.simulated.is_some(),
    };
    Proxy::start(endpoint, &options).map_err(Error::Fabric)
}

/// Pauses the clock of simulated GPUs while the fabric may still change their memory: puts are under way, or other nodes
/// have been active lately.
fn pause_clock(
    shared: &Shared,
    ring: &DeviceRing,
    page: &Arc<Page>,
    heartbeat: Option<Arc<Heartbeat>>,
) -> Option<BusyGuard> {
    shared.simulated.as_ref().map(|simulated| {
        let (ring, page, limit) = (ring.ring.clone(), page.clone(), shared.timeout());
        let may_receive = move || {
            heartbeat
                .as_ref()
                .is_some_and(|heartbeat| heartbeat.is_within(limit))
        };
        // A proxy that has failed has set the abort word of the page.
        simulated
            .pause_clock_while(move || !page.is_aborted() && (!ring.is_drained() || may_receive()))
    })
}

/// Prepares an emulated NIC, which copies between the regions of all ranks.
fn emulated(
    shared: &Shared,
    (nic, faults): (&NicModel, &Faults),
    (region, region_bytes): (Region, u64),
    wires: Vec<std::os::unix::net::UnixStream>,
    config: EndpointConfig,
) -> Result<PreparedEndpoint, Error> {
    let Region::Symmetric { memory, .. } = &region else {
        return Err(Error::Aborted { cause: None });
    };
    let copies = P2pCopies::new(
        &shared.ctx,
        (shared.rank, shared.world),
        memory.clone(),
        shared.gpu_timeout(),
    )?;
    let wires = wires
        .into_iter()
        .map(|wire| Box::new(wire) as Box<dyn Wire>);
    let transport = EmulatedTransport::new(
        nic.clone(),
        faults.clone(),
        Clock::Real,
        Box::new(copies),
        wires.collect(),
    );
    let kind = MemoryKind::Gpu {
        device: shared.ctx.ordinal() as u32,
        dma_buf: None,
    };
    // SAFETY: the memory stays mapped as long as its owner, which `described` keeps alive. Only GPUs access it.
    let described = unsafe { MemoryRange::new(region.address(), region_bytes, kind) };
    let described = described.with_owner(Arc::new(memory.clone()));
    let setup = transport
        .and_then(|transport| EndpointBuilder::new(Box::new(transport), vec![described], config))
        .map_err(Error::Fabric)?;
    Ok(PreparedEndpoint { setup, region })
}

/// Returns the data that each peer sent to this rank for connecting.
fn offers_of(
    shared: &Shared,
    offers: &[Vec<u8>],
    peers: &[u32],
    node_map: &NodeMap,
) -> Result<Vec<PeerConnectInfo>, Error> {
    let of = |(id, (peer, number)): (u16, (&u32, u32))| {
        let offer = offers::decode(&offers[*peer as usize], peers.len(), number as usize);
        Ok(PeerConnectInfo {
            peer: mkernel_fabric::PeerIdentity {
                id: PeerId(id),
                name: shared.cluster.name_of(*peer).into(),
            },
            connect_info: offer.map(<[u8]>::to_vec).ok_or(Error::Protocol {
                peer: Peer::Rank(*peer),
                step: STEP,
                source: ProtocolFault::Malformed,
            })?,
        })
    };
    let numbers = node_map.peer_indices();
    (0..).zip(peers.iter().zip(numbers)).map(of).collect()
}
