//! [`Fabric`]: a rank's proxy, and the memory that it shares with kernels.

use super::arrivals::PinnedArrivals;
use super::mover::PeerCopies;
use super::nics;
use super::offers;
use super::rails::Rails;
use super::region::Region;
use super::ring::DeviceRing;
use super::signs::{Heard, Signs};
use super::transport::Transport;
use crate::bootstrap::{ProtocolFault, wires};
use crate::error::{Error, Peer};
use crate::report::Page;
use crate::shared::Shared;
use crate::simulation::Watch;
use crate::standing::Lost;
use crate::symmetric::OwnMemory;
use mkernel_fabric::emulated::{Clock, EmulatedTransport, Faults, NicModel, Wire};
use mkernel_fabric::{
    Arrivals, EndpointBuilder, EndpointConfig, MemoryKind, MemoryRange, PeerConnectInfo, PeerId,
    Proxy, ProxyOptions,
};
use mkernel_spec::abi::{FLAG_STRIDE_BYTES, MAX_RANKS};
use mkernel_spec::fabric::{CommandRing, RingState};
use std::sync::Arc;
use std::time::{Duration, Instant};

const STEP: &str = "connection of the fabric";

/// How long puts may take to leave, and peers to be done with theirs, when the fabric goes.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// What a rank's endpoint is to be.
#[derive(Clone, Debug)]
pub(crate) struct FabricSpec {
    pub rails: Rails,
    pub transport: Transport,
    /// Channels from each peer.
    pub channels: u16,
    /// Of the longest put.
    pub put_bytes: u64,
    /// Of region 0, which NICs read and write.
    pub region_bytes: u64,
    /// Whether GPUs of the same node map it, too.
    pub mapped_by_node: bool,
    /// More device memory, for kernels alone.
    pub state_bytes: u64,
}

/// A transport with its region. Dropped in this order: what uses memory before the memory.
pub(super) struct Prepared {
    pub setup: EndpointBuilder,
    pub region: Region,
}

/// A connected endpoint. Dropping it ends the proxy; kernels that use it must be done.
pub(crate) struct Fabric {
    _watch: Option<Watch>,
    proxy: Option<Proxy>,
    ring: DeviceRing,
    arrivals: PinnedArrivals,
    /// [`RingState`], the rest.
    state: OwnMemory,
    rest: u64,
    region: Region,
    /// Where simulated GPUs wait for NICs.
    signs: Option<Arc<Signs>>,
    lost: Lost,
}

impl Fabric {
    /// Allocates, connects, starts the proxy. Collective.
    pub fn connect(shared: &Shared, spec: &FabricSpec, page: &Arc<Page>) -> Result<Self, Error> {
        let timeout = shared.host_timeout();
        let mut ranks = shared.ranks();
        let rails = &spec.rails;
        let peers = rails.peers();
        let rest = (size_of::<RingState>() as u64).next_multiple_of(FLAG_STRIDE_BYTES);
        let allocate =
            |bytes| OwnMemory::allocate(&shared.ctx, &shared.stream, bytes, shared.gpu_timeout());
        let allocated = (|| {
            shared.ensure_usable()?;
            let ring = DeviceRing::allocate(&shared.ctx)?;
            let arrivals = PinnedArrivals::allocate(shared, &peers, spec.channels, page)?;
            let state = allocate(rest + spec.state_bytes)?;
            Ok(((ring, arrivals, state), Vec::new()))
        })();
        let ((ring, arrivals, state), _) =
            ranks.agree("allocation for the fabric", allocated, timeout)?;
        let config = EndpointConfig {
            channels: spec.channels,
            // Where GPUs are simulated too, it is of real time.
            deadline: shared.timeout(),
            put_bytes: spec.put_bytes,
            first_count: 0,
        };
        let prepared = match &spec.transport {
            Transport::Emulated { nic, faults } => {
                let region = allocate(spec.region_bytes).map(|region| (region, Vec::new()));
                let (region, _) = ranks.agree("allocation of a region", region, timeout)?;
                let region_bytes = region.bytes() as u64;
                let region = Region::Symmetric {
                    memory: region.share(&shared.ctx, &mut ranks, timeout)?,
                    number: shared.rank as usize,
                };
                let wires = wires::connect(&mut ranks, &peers, timeout)?;
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
        let (Prepared { region, setup }, offers) = ranks.agree(STEP, offers, timeout)?;
        let region = match region {
            Region::Device(memory) if spec.mapped_by_node => Region::Symmetric {
                memory: memory.share(&shared.ctx, &mut ranks, timeout)?,
                number: shared.hosts.nodes.local_rank(shared.rank),
            },
            region => region,
        };
        let signs = shared.simulated.is_some() && !matches!(region, Region::Symmetric { .. });
        let signs = signs.then(Signs::new);
        let connected = offers_of(shared, &offers, &peers, rails).and_then(|peers| {
            let deadline = Instant::now() + timeout;
            let arrivals = arrivals.clone();
            let told: Box<dyn Arrivals> = match signs.clone() {
                Some(signs) => Box::new(Heard { arrivals, signs }),
                None => Box::new(arrivals),
            };
            let endpoint = setup.connect(&peers, ring.ring.clone(), told, deadline);
            Ok((endpoint.map_err(Error::Fabric)?, Vec::new()))
        });
        // Also the barrier before which nobody puts.
        let (endpoint, _) = ranks.agree(STEP, connected, timeout)?;
        let proxy = nics::cores(shared, &spec.transport).and_then(|cores| {
            let options = ProxyOptions {
                cores,
                sleeps_at_once: shared.simulated.is_some(),
            };
            let proxy = Proxy::start(endpoint, &options).map_err(Error::Fabric)?;
            Ok((proxy, Vec::new()))
        });
        let (proxy, _) = ranks.agree("start of the proxies", proxy, timeout)?;
        let watch = shared.simulated.as_ref().map(|host| {
            let (ring, page, signs) = (ring.ring.clone(), page.clone(), signs.clone());
            let limit = shared.timeout();
            let may_hear = move || signs.as_ref().is_some_and(|signs| signs.are_within(limit));
            // A proxy that has failed has said so to the page.
            host.watch(move || !page.is_aborted() && (!ring.is_drained() || may_hear()))
        });
        Ok(Self {
            _watch: watch,
            proxy: Some(proxy),
            ring,
            arrivals,
            state,
            rest,
            region,
            signs,
            lost: shared.standing.lost.clone(),
        })
    }

    /// As kernels get it.
    pub fn ring(&self) -> CommandRing {
        self.ring.on_device(self.state.address())
    }

    /// Where the arrival words are, on the host: by peer and channel.
    pub fn arrivals(&self) -> u64 {
        self.arrivals.device_address()
    }

    /// Multiplies the counts of puts that have arrived, for tests of wrapping. No put may be on its way.
    pub fn pretend_arrivals(&self, times: u32) {
        self.arrivals.pretend(times);
    }

    /// Where this rank's region 0 is.
    pub fn region(&self) -> u64 {
        self.region.address()
    }

    /// Where region 0 of each rank of this node is, if this node's GPUs map it; 0 beyond the last.
    pub fn regions_of_node(&self, shared: &Shared, rails: &Rails) -> [u64; MAX_RANKS] {
        let mut addresses = [0; MAX_RANKS];
        if let Region::Symmetric { memory, .. } = &self.region {
            for (address, rank) in addresses.iter_mut().zip(rails.neighbours()) {
                *address = memory.addresses()[shared.hosts.nodes.local_rank(*rank)];
            }
        }
        addresses
    }

    /// Where the device memory is that the spec asked for besides.
    pub fn state(&self) -> u64 {
        self.state.address() + self.rest
    }

    /// To be called when a kernel is launched.
    pub fn wake(&self) {
        if let Some(signs) = &self.signs {
            signs.note();
        }
        if let Some(proxy) = &self.proxy {
            proxy.wake();
        }
    }

    /// To be called when a launch is captured: replays of the graph call no [`wake`](Self::wake).
    pub fn capture(&self) {
        if let Some(proxy) = &self.proxy {
            proxy.capture();
        }
    }

    /// Why the fabric has failed, if it has.
    pub fn failure(&self) -> Option<Error> {
        self.proxy.as_ref()?.error().map(Error::Fabric)
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        let Some(proxy) = self.proxy.take() else {
            return;
        };
        if let Some(&lost) = self.lost.get() {
            proxy.abort(lost);
        } else if std::thread::panicking() {
            drop(proxy); // peers are to see that this was no end as it should be
        } else if let Err(error) = proxy.shutdown(DRAIN_LIMIT) {
            tracing::debug!(%error, "the proxy ended");
        }
    }
}

/// NICs in software, which copy between the regions of all ranks.
fn emulated(
    shared: &Shared,
    (nic, faults): (&NicModel, &Faults),
    (region, region_bytes): (Region, u64),
    wires: Vec<std::os::unix::net::UnixStream>,
    config: EndpointConfig,
) -> Result<Prepared, Error> {
    let Region::Symmetric { memory, .. } = &region else {
        return Err(Error::Aborted { cause: None });
    };
    let mover = PeerCopies::new(
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
        Box::new(mover),
        wires.collect(),
    );
    let kind = MemoryKind::Gpu {
        device: shared.ctx.ordinal() as u32,
        dma_buf: None,
    };
    // SAFETY: mapped as long as its owner, which it keeps; only GPUs reach it.
    let described = unsafe { MemoryRange::new(region.address(), region_bytes, kind) };
    let described = described.with_owner(Arc::new(memory.clone()));
    let setup = transport
        .and_then(|transport| EndpointBuilder::new(Box::new(transport), vec![described], config))
        .map_err(Error::Fabric)?;
    Ok(Prepared { setup, region })
}

/// What each peer offers to this rank.
fn offers_of(
    shared: &Shared,
    offers: &[Vec<u8>],
    peers: &[u32],
    rails: &Rails,
) -> Result<Vec<PeerConnectInfo>, Error> {
    let of = |(id, (peer, number)): (u16, (&u32, u32))| {
        let offer = offers::decode(&offers[*peer as usize], peers.len(), number as usize);
        Ok(PeerConnectInfo {
            peer: mkernel_fabric::PeerIdentity {
                id: PeerId(id),
                name: shared.hosts.name_of(*peer).into(),
            },
            connect_info: offer.map(<[u8]>::to_vec).ok_or(Error::Protocol {
                peer: Peer::Rank(*peer),
                step: STEP,
                source: ProtocolFault::Malformed,
            })?,
        })
    };
    let numbers = rails.numbers_at_peers();
    (0..).zip(peers.iter().zip(numbers)).map(of).collect()
}
