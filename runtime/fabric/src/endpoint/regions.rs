//! The regions of an [`Endpoint`] and of its peers.

use super::Endpoint;
use crate::error::FabricError;
use crate::transport::{MAX_REGIONS, MemoryRange};

impl Endpoint {
    /// Registers the next region. Returns the info that every peer must pass to [`add_peer_regions`](Self::add_peer_regions).
    ///
    /// # Errors
    ///
    /// [`FabricError::Register`] if the memory is refused. The state of the endpoint is then unchanged.
    pub fn register(&mut self, memory: MemoryRange) -> Result<Vec<u8>, FabricError> {
        let bytes = memory.bytes();
        let region = self.transport.register(memory)?;
        self.regions.push(bytes);
        Ok(self.transport.region_info(region))
    }

    /// Adds the next region of each peer, in the order of peer indices. All endpoints have to pass a barrier afterwards,
    /// before a command names the region.
    ///
    /// # Errors
    ///
    /// [`FabricError::RegionInfo`] names the peer whose info is invalid. [`FabricError::Config`] reports a wrong number of
    /// infos.
    pub fn add_peer_regions(&mut self, infos: &[Vec<u8>]) -> Result<(), FabricError> {
        if infos.len() != self.peers.len() {
            let (given, peers) = (infos.len(), self.peers.len());
            return Err(FabricError::Config(vec![format!(
                "there are regions of {given} peers, but {peers} peers"
            )]));
        }
        for (state, info) in self.peers.iter_mut().zip(infos) {
            let added = match state.regions.len() {
                MAX_REGIONS.. => Err(format!("it has more than {MAX_REGIONS} regions")),
                _ => self.transport.add_peer_region(state.peer.id, info),
            };
            let peer = &state.peer;
            state
                .regions
                .push(added.map_err(|reason| FabricError::RegionInfo {
                    peer: peer.clone(),
                    reason,
                })?);
        }
        Ok(())
    }
}
