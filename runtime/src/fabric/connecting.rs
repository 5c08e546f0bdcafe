//! The steps by which the ranks of a fabric connect their endpoints and exchange their regions.

use super::nics;
use super::node_map::NodeMap;
use super::offers;
use super::transport::Transport;
use crate::bootstrap::{Collective, socket_pairs};
use crate::error::{Error, Peer, ProtocolFault};
use crate::shared::Shared;
use mkernel_fabric::emulated::{Clock, CopyEngine, EmulatedTransport, Faults, NicModel, Wire};
use mkernel_fabric::{
    Endpoint, EndpointBuilder, EndpointConfig, PeerConnectInfo, PeerId, PeerIdentity, Proxy,
    ProxyOptions,
};
use mkernel_spec::fabric::PUT_CHANNELS;
use std::time::Duration;

/// The step in which endpoints are connected.
pub(super) const STEP: &str = "connection of the fabric";

/// An endpoint before it is connected, and the data for connecting that this rank sends to all other ranks.
pub(super) type Opened = (EndpointBuilder, Vec<u8>);

/// Opens the NICs. Emulated NICs copy by the engine that `copies` creates. The outer error is an error of the collective step.
pub(super) fn open(
    shared: &Shared,
    ranks: &mut Collective,
    transport: &Transport,
    peers: &[u32],
    copies: impl FnOnce() -> Result<Box<dyn CopyEngine>, Error>,
) -> Result<Result<Opened, Error>, Error> {
    let byte_window = transport.byte_window();
    let transport = match transport {
        Transport::Emulated { nic, faults } => {
            let wires = socket_pairs::connect(ranks, peers, shared.host_timeout())?;
            copies().and_then(|copies| emulated((nic, faults), copies, wires))
        }
        Transport::Rc(_) | Transport::Efa(_) => nics::open(shared, transport, peers.len()),
    };
    Ok(transport.and_then(|transport| {
        let config = EndpointConfig {
            channels: PUT_CHANNELS,
            // This deadline is real time, also if GPUs are simulated.
            deadline: shared.timeout(),
            byte_window,
            first_count: 0,
        };
        let mut builder = EndpointBuilder::new(transport, config).map_err(Error::Fabric)?;
        let offers = (0..peers.len() as u16).map(|peer| builder.connect_info(PeerId(peer)));
        let offers: Vec<Vec<u8>> = offers.collect::<Result<_, _>>().map_err(Error::Fabric)?;
        Ok((builder, offers::encode(&offers)))
    }))
}

fn emulated(
    (nic, faults): (&NicModel, &Faults),
    copies: Box<dyn CopyEngine>,
    wires: Vec<std::os::unix::net::UnixStream>,
) -> Result<Box<dyn mkernel_fabric::Transport>, Error> {
    let wires = wires
        .into_iter()
        .map(|wire| Box::new(wire) as Box<dyn Wire>);
    let transport = EmulatedTransport::new(
        nic.clone(),
        faults.clone(),
        Clock::Real,
        copies,
        wires.collect(),
    );
    Ok(Box::new(transport.map_err(Error::Fabric)?))
}

/// Starts the proxy of an endpoint.
pub(super) fn start_proxy(
    shared: &Shared,
    transport: &Transport,
    endpoint: Endpoint,
    sleeps_at_once: bool,
) -> Result<Proxy, Error> {
    let options = ProxyOptions {
        cores: nics::cores(shared, transport)?,
        sleeps_at_once,
    };
    Proxy::start(endpoint, &options).map_err(Error::Fabric)
}

/// Returns the data that each peer sent to this rank for connecting.
pub(super) fn offers_of(
    shared: &Shared,
    offers: &[Vec<u8>],
    peers: &[u32],
    node_map: &NodeMap,
) -> Result<Vec<PeerConnectInfo>, Error> {
    let of = |(id, (peer, number)): (u16, (&u32, u32))| {
        let offer = offers::decode(&offers[*peer as usize], peers.len(), number as usize);
        Ok(PeerConnectInfo {
            peer: PeerIdentity {
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

/// Adds the peers' regions that correspond to a region of this rank. `registered` is the outcome of its registration. This is a
/// collective call.
pub(super) fn exchange_regions<T>(
    proxy: Result<&Proxy, Error>,
    ranks: &mut Collective,
    peers: &[u32],
    registered: Result<(T, Vec<u8>), Error>,
    timeout: Duration,
) -> Result<T, Error> {
    let (owner, infos) = ranks.agree("registration of memory", registered, timeout)?;
    let infos: Vec<Vec<u8>> = peers
        .iter()
        .map(|peer| infos[*peer as usize].clone())
        .collect();
    let added = proxy.and_then(|proxy| {
        let added = proxy.with_endpoint(move |endpoint| endpoint.add_peer_regions(&infos));
        added.map(|()| ((), Vec::new())).map_err(Error::Fabric)
    });
    // This step is also a barrier: no rank puts to a region that a peer does not know yet.
    ranks.agree("exchange of regions", added, timeout)?;
    Ok(owner)
}
