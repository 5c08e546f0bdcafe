//! Tables of peers for tests in which the peers of each endpoint are all other endpoints, in order.

use crate::endpoint::Endpoint;
use crate::error::FabricError;
use crate::peer_id::{PeerId, PeerIdentity};
use crate::transport::{MemoryRange, PeerConnectInfo, RegionId, Transport};

/// Returns the index of endpoint `peer` in the table of endpoint `of`.
#[must_use]
pub fn peer_id(of: usize, peer: usize) -> PeerId {
    PeerId((peer - usize::from(peer > of)) as u16)
}

/// Registers a region of each transport, and adds the region to all other transports. Returns the number of the regions.
///
/// # Panics
///
/// Panics if a transport refuses its memory or the info of a peer.
pub fn share_region<'a>(
    transports: impl Iterator<Item = &'a mut Box<dyn Transport>>,
    regions: impl Iterator<Item = MemoryRange>,
) -> RegionId {
    let mut transports: Vec<_> = transports.collect();
    let mut region = RegionId(0);
    let mut infos = Vec::new();
    for (transport, memory) in transports.iter_mut().zip(regions) {
        region = transport.register(memory).expect("registers");
        infos.push(transport.region_info(region));
    }
    for (of, transport) in transports.iter_mut().enumerate() {
        for (peer, info) in infos.iter().enumerate().filter(|(peer, _)| *peer != of) {
            let added = transport.add_peer_region(peer_id(of, peer), info);
            added.expect("a valid region");
        }
    }
    region
}

/// Registers a region of each endpoint, and adds the region to all other endpoints.
///
/// # Errors
///
/// Returns the first error of an endpoint.
pub fn share_endpoint_region(
    endpoints: &mut [&mut Endpoint],
    regions: impl Iterator<Item = MemoryRange>,
) -> Result<(), FabricError> {
    let infos = endpoints.iter_mut().zip(regions);
    let infos = infos.map(|(endpoint, memory)| endpoint.register(memory));
    let infos: Vec<Vec<u8>> = infos.collect::<Result<_, _>>()?;
    for (of, endpoint) in endpoints.iter_mut().enumerate() {
        let others = infos.iter().enumerate().filter(|(peer, _)| *peer != of);
        let others: Vec<Vec<u8>> = others.map(|(_, info)| info.clone()).collect();
        endpoint.add_peer_regions(&others)?;
    }
    Ok(())
}

/// Returns the table of endpoint `of`. `info(peer, id)` returns the connection info that endpoint `peer` creates for
/// the entry `id` of its own table.
pub fn peer_connect_infos(
    endpoints: usize,
    of: usize,
    mut info: impl FnMut(usize, PeerId) -> Vec<u8>,
) -> Vec<PeerConnectInfo> {
    let peers = (0..endpoints).filter(|peer| *peer != of);
    peers
        .map(|peer| PeerConnectInfo {
            peer: PeerIdentity {
                id: peer_id(of, peer),
                name: format!("endpoint {peer}").into(),
            },
            connect_info: info(peer, peer_id(peer, of)),
        })
        .collect()
}
