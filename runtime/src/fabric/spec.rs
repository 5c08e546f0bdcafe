//! [`FabricSpec`]: the requirements of an endpoint, and [`PreparedEndpoint`]: its transport and region before it is
//! connected.

use super::node_map::NodeMap;
use super::region::Region;
use super::transport::Transport;
use mkernel_fabric::EndpointBuilder;

/// The requirements of a rank's endpoint.
#[derive(Clone, Debug)]
pub(crate) struct FabricSpec {
    pub node_map: NodeMap,
    pub transport: Transport,
    /// The number of channels from each peer.
    pub channels: u16,
    /// The length of the longest put.
    pub put_bytes: u64,
    /// The length of region 0, which NICs read and write.
    pub region_bytes: u64,
    /// Whether GPUs of the same node map the region too.
    pub mapped_by_node: bool,
    /// The length of the additional device memory, which only kernels use.
    pub state_bytes: u64,
}

/// A transport with its region. The fields are dropped in this order, so that the user of the memory goes before the
/// memory.
pub(super) struct PreparedEndpoint {
    pub setup: EndpointBuilder,
    pub region: Region,
}
