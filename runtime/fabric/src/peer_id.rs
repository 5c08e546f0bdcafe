//! The references of an endpoint to its peers: numbers in data structures, and names in messages for people.

use std::fmt;
use std::sync::Arc;

/// The index of a peer in an endpoint's table of peers.
///
/// The index is local: the peer may refer to this endpoint by a different number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u16);

/// A peer in the form in which error messages name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The index of the peer in this endpoint's table of peers.
    pub id: PeerId,
    /// A name that people recognise, usually the rank and the host.
    pub name: Arc<str>,
}

impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peer {} ({})", self.id.0, self.name)
    }
}
