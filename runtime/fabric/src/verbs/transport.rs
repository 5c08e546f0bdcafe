//! [`VerbsTransport`]: the tables of peers, regions and rails of a verbs transport, their setup, and the
//! implementation of [`Transport`].

use super::connect_info::{ConnectInfo, QueuePairInfo, RailInfo, RemoteAddress};
use super::flusher::Flusher;
use super::lane::Lane;
use super::lanes::Lanes;
use super::open::open_all;
use super::options::Options;
use super::queue_pair_type::QueuePairType;
use super::rail::Rail;
use super::region_info::RegionInfo;
use super::registration::{Access, Registration};
use crate::error::FabricError;
use crate::peer_id::PeerId;
use crate::stats::RailCounters;
use crate::transport::{
    Event, Limits, MAX_REGIONS, MemoryRange, PeerConnectInfo, RegionId, Transport, Write,
};
use ibverbs_sys::ibv_wc;
use std::hash::{BuildHasher, RandomState};
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Instant;

/// The number of completions that one call of a driver may return.
const COMPLETIONS: usize = 64;

/// A transport over queue pairs of one type. Its fields are dropped in order, queue pairs before memory.
pub(super) struct VerbsTransport<K> {
    pub(super) lanes: Lanes<K>,
    /// The flusher of each rail, if arrivals wait for flushes.
    pub(super) flushers: Vec<Flusher<K>>,
    pub(super) peers: Vec<RemoteMemory>,
    pub(super) regions: Vec<LocalRegion>,
    pub(super) rails: Vec<Rail>,
    pub(super) options: Options,
    /// Losses that a later `poll` reports: losses that `post` found, and losses while arrivals wait for a flush.
    pub(super) lost: Vec<Event>,
    pub(super) completions: Vec<ibv_wc>,
    pub(super) next_event_check: Instant,
}

/// A region of this endpoint.
pub(super) struct LocalRegion {
    /// The registration on each rail. Registrations are dropped before the memory that they register.
    pub(super) registrations: Vec<Registration>,
    pub(super) memory: MemoryRange,
}

/// The memory of a peer that this endpoint may write.
#[derive(Clone, Default)]
pub(super) struct RemoteMemory {
    pub(super) regions: Vec<RegionInfo>,
    /// The scratch memory on each rail.
    pub(super) scratch: Vec<RemoteAddress>,
    /// Whether connection info for the peer was created.
    pub(super) has_connect_info: bool,
    pub(super) lost: bool,
}

impl<K: QueuePairType> VerbsTransport<K> {
    pub(super) fn new(options: Options) -> Result<Self, FabricError> {
        options.check(K::MAX_QUEUE_PAIRS)?;
        let rails = open_all::<K>(&options)?;
        let flushers = flushers(&rails, &options)?;
        let writes_per_peer = writes_per_peer(&options, rails.len());
        let salt = random(0) as usize;
        let counters = RailCounters::of(rails.iter().map(|rail| rail.device.name.clone()));
        Ok(Self {
            lanes: Lanes::new(options.peers, counters, writes_per_peer, salt),
            peers: vec![RemoteMemory::default(); options.peers.into()],
            flushers,
            regions: Vec::new(),
            rails,
            options,
            lost: Vec::new(),
            completions: vec![ibv_wc::default(); COMPLETIONS],
            next_event_check: Instant::now(),
        })
    }

    /// Creates the queue pairs for a peer, or for all peers if they do not exist yet.
    fn make_lanes(&mut self, id: PeerId) -> Result<(), String> {
        let peer = usize::from(id.0);
        let Some(state) = self.peers.get_mut(peer) else {
            return Err(format!(
                "peer {} does not exist; the transport was created for {} peers",
                id.0, self.options.peers
            ));
        };
        if std::mem::replace(&mut state.has_connect_info, true) {
            return Err("its connection info was created before".into());
        }
        if !self.lanes.ids_of(peer).is_empty() {
            return Ok(());
        }
        let peer = (!K::SERVES_ALL_PEERS).then_some(id.0);
        for _ in 0..self.options.queue_pairs {
            for (index, rail) in self.rails.iter_mut().enumerate() {
                let lane = Lane::<K>::new((rail, index), peer, random(id.0))
                    .map_err(|error| format!("{}: {error}", rail.device.name))?;
                let number = lane.pair.pair().number();
                rail.lanes.insert(number, self.lanes.add(lane));
            }
        }
        Ok(())
    }

    /// Returns the connection info of one rail.
    fn rail_info(&self, index: usize, peer: PeerId) -> RailInfo {
        let lanes = self.lanes.of(peer.0.into());
        let lanes = lanes.filter(|lane| lane.rail == index);
        let queue_pairs = lanes.map(|lane| QueuePairInfo {
            number: lane.pair.pair().number(),
            nonce: lane.nonce,
        });
        self.rails[index].info(queue_pairs.collect())
    }

    /// Decodes connection info and compares it with the parameters of this endpoint.
    fn check(&self, bytes: &[u8]) -> Result<ConnectInfo, String> {
        let info = ConnectInfo::from_bytes(bytes)?;
        let pairs = info.rails.first().map_or(0, |rail| rail.queue_pairs.len());
        for (what, theirs, ours) in [
            (
                "service",
                usize::from(info.service),
                usize::from(K::SERVICE),
            ),
            ("number of NICs", info.rails.len(), self.rails.len()),
            (
                "number of queue pairs",
                pairs,
                self.options.queue_pairs.into(),
            ),
        ] {
            if theirs != ours {
                return Err(format!(
                    "its {what} is {theirs}, but that of this endpoint is {ours}"
                ));
            }
        }
        for (theirs, ours) in info.rails.iter().zip(&self.rails) {
            if theirs.link != ours.port.link as u8 {
                return Err(format!(
                    "its link layer is {}, but that of {} is {:?}",
                    theirs.link, ours.device.name, ours.port.link
                ));
            }
            if let Some(pair) = theirs
                .queue_pairs
                .iter()
                .find(|pair| pair.number >= 1 << 24)
            {
                return Err(format!(
                    "it has queue pair {}, but numbers have 24 bits",
                    pair.number
                ));
            }
            if !(1..=5).contains(&theirs.mtu) {
                return Err(format!(
                    "its MTU has code {}, but it must be 1 to 5",
                    theirs.mtu
                ));
            }
        }
        Ok(info)
    }

    fn connect_peer(
        &mut self,
        id: PeerId,
        info: ConnectInfo,
        deadline: Instant,
    ) -> Result<(), String> {
        let lanes = self.lanes.ids_of(id.0.into()).to_vec();
        if lanes.is_empty() {
            return Err("no connection info was created for it".into());
        }
        for (index, lane) in lanes.into_iter().enumerate() {
            if Instant::now() >= deadline {
                return Err("the deadline passed".into());
            }
            let rails = self.rails.len();
            let (rail, to) = (&mut self.rails[index % rails], &info.rails[index % rails]);
            let pair = &mut self.lanes.lane_mut(lane).pair;
            let connected = pair.connect(id.0, rail, to, to.queue_pairs[index / rails]);
            let sender = connected.map_err(|error| {
                format!(
                    "{} to {}: {error}",
                    rail.device.name,
                    Ipv6Addr::from(to.gid)
                )
            })?;
            if let Some(sender) = sender
                && let Some(other) = rail.senders.insert(sender, id.0)
            {
                return Err(format!(
                    "its queue pair {} of {} is also that of peer {other}",
                    sender.queue_pair,
                    Ipv6Addr::from(to.gid)
                ));
            }
        }
        let peer = &mut self.peers[usize::from(id.0)];
        peer.scratch = info.rails.iter().map(|rail| rail.scratch).collect();
        Ok(())
    }
}

/// Returns the most writes that may be in flight to one peer.
fn writes_per_peer(options: &Options, rails: usize) -> u32 {
    options.writes * rails as u32 * u32::from(options.queue_pairs)
}

/// Creates the flusher of each rail if arrivals wait for flushes.
fn flushers<K: QueuePairType>(
    rails: &[Rail],
    options: &Options,
) -> Result<Vec<Flusher<K>>, FabricError> {
    if !options.flush {
        return Ok(Vec::new());
    }
    let flusher = |(number, rail): (u16, &Rail)| {
        Flusher::new(rail, random(number)).map_err(|error| FabricError::Nic {
            reason: format!("{}: {error}", rail.device.name),
        })
    };
    (0..).zip(rails).map(flusher).collect()
}

/// Returns 32 random bits from a randomly keyed hash, which is the standard library's source of random numbers.
fn random(number: u16) -> u32 {
    RandomState::new().hash_one(number) as u32
}

impl<K: QueuePairType> Transport for VerbsTransport<K> {
    fn limits(&self) -> Limits {
        Limits {
            write_bytes: self
                .rails
                .iter()
                .map(|rail| rail.write_bytes)
                .min()
                .unwrap_or(0),
            writes: writes_per_peer(&self.options, self.rails.len()),
            receives: self.options.receives_per_peer(),
            rails: self.rails.len() as u32,
        }
    }

    fn rail_counters(&self) -> Arc<[RailCounters]> {
        self.lanes.counters()
    }

    fn register(&mut self, memory: MemoryRange) -> Result<RegionId, FabricError> {
        let (address, bytes) = (memory.address(), memory.bytes());
        let refused = |reason| FabricError::Register {
            address,
            bytes,
            reason,
        };
        if self.regions.len() == MAX_REGIONS {
            return Err(refused(format!(
                "the limit of {MAX_REGIONS} regions is reached"
            )));
        }
        let access = Access {
            flush: self.options.flush,
            relaxed_ordering: self.options.relaxed_ordering,
        };
        let registrations = self
            .rails
            .iter()
            .map(|rail| Registration::new(&rail.device, &memory, access));
        let registrations = registrations.collect::<Result<_, _>>().map_err(refused)?;
        self.regions.push(LocalRegion {
            memory,
            registrations,
        });
        Ok(RegionId(self.regions.len() as u8 - 1))
    }

    fn region_info(&self, region: RegionId) -> Vec<u8> {
        let region = self.regions.get(usize::from(region.0));
        let info = region.map(|region| RegionInfo {
            address: region.memory.address(),
            bytes: region.memory.bytes(),
            keys: region
                .registrations
                .iter()
                .map(Registration::remote_key)
                .collect(),
        });
        info.unwrap_or_default().to_bytes()
    }

    fn add_peer_region(&mut self, peer: PeerId, region_info: &[u8]) -> Result<u64, String> {
        let info = RegionInfo::from_bytes(region_info, self.rails.len())?;
        let peer = self.peers.get_mut(usize::from(peer.0));
        let peer = peer.ok_or("it is not a peer of this transport")?;
        let bytes = info.bytes;
        peer.regions.push(info);
        Ok(bytes)
    }

    fn connect_info(&mut self, peer: PeerId) -> Result<Vec<u8>, FabricError> {
        self.make_lanes(peer)
            .map_err(|reason| FabricError::Nic { reason })?;
        let info = ConnectInfo {
            service: K::SERVICE,
            rails: (0..self.rails.len())
                .map(|rail| self.rail_info(rail, peer))
                .collect(),
        };
        Ok(info.to_bytes())
    }

    fn connect(&mut self, peers: &[PeerConnectInfo], deadline: Instant) -> Result<(), FabricError> {
        if peers.len() != self.peers.len() {
            let (given, made) = (peers.len(), self.peers.len());
            return Err(FabricError::Config(vec![format!(
                "there is connection info of {given} peers, but the transport was created for {made}"
            )]));
        }
        for (id, PeerConnectInfo { peer, connect_info }) in (0..).map(PeerId).zip(peers) {
            let info = self
                .check(connect_info)
                .map_err(|reason| FabricError::ConnectInfo {
                    peer: peer.clone(),
                    reason,
                })?;
            self.connect_peer(id, info, deadline)
                .map_err(|reason| FabricError::Connect {
                    peer: peer.clone(),
                    reason,
                })?;
        }
        Ok(())
    }

    fn post(&mut self, writes: &[Write]) -> Result<usize, FabricError> {
        let mut accepted = 0;
        for write in writes {
            if !self.accept(write)? {
                break;
            }
            accepted += 1;
        }
        self.flush()?;
        Ok(accepted)
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), FabricError> {
        let first = events.len();
        events.append(&mut self.lost);
        for rail in 0..self.rails.len() {
            self.drain(rail, events)
                .map_err(|reason| FabricError::Nic {
                    reason: format!("{}: {reason}", self.rails[rail].device.name),
                })?;
        }
        self.replace_receives()?;
        if Instant::now() >= self.next_event_check {
            self.check_async_events(events)?;
        }
        self.start_flushes()?;
        self.hold_losses(events, first);
        Ok(())
    }
}
