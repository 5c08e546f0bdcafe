//! Tables of peers for tests in which each endpoint has all others as its peers, in order.

use crate::peer_id::{PeerId, PeerIdentity};
use crate::transport::PeerConnectInfo;

/// Returns the index of endpoint `peer` in the table of endpoint `of`.
#[must_use]
pub fn peer_id(of: usize, peer: usize) -> PeerId {
    PeerId((peer - usize::from(peer > of)) as u16)
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
