//! [`Fabric`]: a rank's proxy, and the memory that it shares with kernels.

use super::arrivals::PinnedArrivals;
use super::mover::PeerCopies;
use super::offers;
use super::rails::Rails;
use super::ring::DeviceRing;
use crate::bootstrap::{ProtocolFault, wires};
use crate::error::{Error, Peer};
use crate::report::Page;
use crate::shared::Shared;
use crate::simulation::Watch;
use crate::symmetric::{OwnMemory, Symmetric};
use mkernel_fabric::emulated::{Clock, Emulated, Faults, Nic, Wire};
use mkernel_fabric::{Config, Memory, MemoryKind, PeerId, PeerOffer, Proxy, ProxyOptions, Setup};
use mkernel_spec::abi::FLAG_STRIDE_BYTES;
use mkernel_spec::fabric::{CommandRing, RingState};
use std::sync::Arc;
use std::time::{Duration, Instant};

const STEP: &str = "connection of the fabric";

/// How long puts may take to leave when the fabric goes.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// What a rank's endpoint is to be.
#[derive(Clone, Debug)]
pub(crate) struct FabricSpec {
    pub rails: Rails,
    pub nic: Nic,
    pub faults: Faults,
    /// Channels from each peer.
    pub channels: u16,
    /// Of region 0, which NICs read and write.
    pub region_bytes: u64,
    /// More device memory, for kernels alone.
    pub state_bytes: u64,
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
    region: Symmetric,
    rank: u32,
}

impl Fabric {
    /// Allocates, connects, starts the proxy. Collective.
    pub fn connect(shared: &Shared, spec: &FabricSpec, page: &Arc<Page>) -> Result<Self, Error> {
        let timeout = shared.host_timeout();
        let mut ranks = shared.ranks();
        let rails = spec.rails;
        let peers = rails.peers();
        let rest = (size_of::<RingState>() as u64).next_multiple_of(FLAG_STRIDE_BYTES);
        let allocate = |bytes| OwnMemory::allocate(&shared.ctx, &shared.stream, bytes, timeout);
        let allocated = (|| {
            let ring = DeviceRing::allocate(&shared.ctx)?;
            let arrivals = PinnedArrivals::allocate(&shared.ctx, peers.len(), spec.channels, page)?;
            let state = allocate(rest + spec.state_bytes)?;
            let region = allocate(spec.region_bytes)?;
            Ok(((ring, arrivals, state, region), Vec::new()))
        })();
        let ((ring, arrivals, state, region), _) =
            ranks.agree("allocation for the fabric", allocated, timeout)?;
        let region_bytes = region.bytes() as u64;
        let region = region.share(&shared.ctx, &mut ranks, timeout)?;
        let wires = wires::connect(&mut ranks, &peers, timeout)?;

        let set_up = set_up(shared, spec, (&region, region_bytes), wires);
        let offers = set_up.and_then(|mut setup| {
            let offers = (0..peers.len() as u16).map(|peer| setup.offer(PeerId(peer)));
            let offers: Vec<Vec<u8>> = offers.collect::<Result<_, _>>().map_err(Error::Fabric)?;
            Ok((setup, offers::encode(&offers)))
        });
        let (setup, offers) = ranks.agree(STEP, offers, timeout)?;
        let connected = offers_of(&offers, &peers, rails).and_then(|peers| {
            let (told, deadline) = (Box::new(arrivals.clone()), Instant::now() + timeout);
            let endpoint = setup.connect(&peers, ring.ring.clone(), told, deadline);
            Ok((endpoint.map_err(Error::Fabric)?, Vec::new()))
        });
        // Also the barrier before which nobody puts.
        let (endpoint, _) = ranks.agree(STEP, connected, timeout)?;
        let proxy = Proxy::start(endpoint, &ProxyOptions::default()).map_err(Error::Fabric);
        let proxy = proxy.map(|proxy| (proxy, Vec::new()));
        let (proxy, _) = ranks.agree("start of the proxies", proxy, timeout)?;
        let watch = shared.simulated.as_ref().map(|host| {
            let (ring, page) = (ring.ring.clone(), page.clone());
            // A proxy that has failed has said so to the page.
            host.watch(move || !page.is_aborted() && !ring.is_drained())
        });
        Ok(Self {
            _watch: watch,
            proxy: Some(proxy),
            ring,
            arrivals,
            state,
            rest,
            region,
            rank: rails.rank,
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

    /// Where this rank's region 0 is.
    pub fn region(&self) -> u64 {
        self.region.addresses()[self.rank as usize]
    }

    /// Where the device memory is that the spec asked for besides.
    pub fn state(&self) -> u64 {
        self.state.address() + self.rest
    }

    /// To be called when a kernel is launched.
    pub fn wake(&self) {
        if let Some(proxy) = &self.proxy {
            proxy.wake();
        }
    }

    /// Why the fabric has failed, if it has.
    pub fn failure(&self) -> Option<Error> {
        self.proxy.as_ref()?.error().map(Error::Fabric)
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        if let Some(proxy) = self.proxy.take()
            && let Err(error) = proxy.shutdown(DRAIN_LIMIT)
        {
            tracing::debug!(%error, "the proxy ended");
        }
    }
}

/// The transport, with its region.
fn set_up(
    shared: &Shared,
    spec: &FabricSpec,
    (region, region_bytes): (&Symmetric, u64),
    wires: Vec<std::os::unix::net::UnixStream>,
) -> Result<Setup, Error> {
    let regions = region.addresses()[..shared.world as usize].to_vec();
    let mover = PeerCopies::new(&shared.ctx, shared.rank, regions, shared.host_timeout())?;
    let wires = wires
        .into_iter()
        .map(|wire| Box::new(wire) as Box<dyn Wire>);
    let transport = Emulated::new(
        spec.nic.clone(),
        spec.faults.clone(),
        Clock::Real,
        Box::new(mover),
        wires.collect(),
    );
    let kind = MemoryKind::Gpu {
        device: shared.ctx.ordinal() as u32,
        dma_buf: None,
    };
    // SAFETY: mapped until `Fabric` is dropped, after its proxy has ended and with it the transport; only GPUs reach it.
    let memory =
        unsafe { Memory::new(region.addresses()[shared.rank as usize], region_bytes, kind) };
    let config = Config {
        channels: spec.channels,
        // Where GPUs are simulated too, it is of real time.
        deadline: shared.timeout(),
        first_count: 0,
    };
    transport
        .and_then(|transport| Setup::new(Box::new(transport), vec![memory], config))
        .map_err(Error::Fabric)
}

/// What each peer offers to this rank.
fn offers_of(offers: &[Vec<u8>], peers: &[u32], rails: Rails) -> Result<Vec<PeerOffer>, Error> {
    let of = |(id, (peer, number)): (u16, (&u32, u32))| {
        let offer = offers::decode(&offers[*peer as usize], peers.len(), number as usize);
        Ok(PeerOffer {
            peer: mkernel_fabric::Peer {
                id: PeerId(id),
                name: format!("rank {peer}").into(),
            },
            offer: offer.map(<[u8]>::to_vec).ok_or(Error::Protocol {
                peer: Peer::Rank(*peer),
                step: STEP,
                source: ProtocolFault::Malformed,
            })?,
        })
    };
    let numbers = rails.numbers_at_peers();
    (0..).zip(peers.iter().zip(numbers)).map(of).collect()
}
