//! [`EndpointBuilder`]: exchanges connection info, and connects an [`Endpoint`].

use crate::arrivals::Arrivals;
use crate::command_ring::HostRing;
use crate::config::EndpointConfig;
use crate::endpoint::Endpoint;
use crate::endpoint_info::{EndpointInfo, RECEIVES};
use crate::error::FabricError;
use crate::peer_id::PeerId;
use crate::peer_state::PeerState;
use crate::transport::{Limits, PeerConnectInfo, Transport};
use mkernel_spec::fabric::MAX_CHANNELS;
use std::sync::Arc;
use std::time::Instant;

/// An endpoint that is not connected yet.
pub struct EndpointBuilder {
    transport: Box<dyn Transport>,
    config: EndpointConfig,
    limits: Limits,
}

impl EndpointBuilder {
    /// Checks the options.
    ///
    /// # Errors
    ///
    /// [`FabricError::Config`] lists all invalid options.
    pub fn new(transport: Box<dyn Transport>, config: EndpointConfig) -> Result<Self, FabricError> {
        let limits = transport.limits();
        let mut issues = Vec::new();
        if config.channels == 0 || u32::from(config.channels) > MAX_CHANNELS {
            issues.push(format!(
                "the number of channels is {}, but it must be 1 to {MAX_CHANNELS}",
                config.channels
            ));
        }
        if config.deadline.is_zero() {
            issues.push("the deadline is 0, which every put would miss; set a longer one".into());
        }
        if config.byte_window == 0 {
            issues.push("the byte window is 0, so no put could be sent; set a larger one".into());
        }
        if !RECEIVES.contains(&limits.receives) || limits.writes < 2 {
            issues.push(format!(
                "the transport keeps {} receives and {} writes per peer, but {RECEIVES:?} receives and at least 2 writes are \
                 needed; configure deeper queues, or fewer peers",
                limits.receives, limits.writes
            ));
        }
        if !issues.is_empty() {
            return Err(FabricError::Config(issues));
        }
        Ok(Self {
            transport,
            config,
            limits,
        })
    }

    /// Returns the connection info that the peer must pass to [`connect`](Self::connect).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Transport::connect_info`].
    pub fn connect_info(&mut self, peer: PeerId) -> Result<Vec<u8>, FabricError> {
        let info = EndpointInfo {
            receives: self.limits.receives,
            channels: self.config.channels,
            transport: self.transport.connect_info(peer)?,
        };
        Ok(info.encode())
    }

    /// Connects to all peers. The endpoint has no regions yet.
    ///
    /// All endpoints have to pass a barrier afterwards, before any endpoint is stepped.
    ///
    /// # Errors
    ///
    /// [`FabricError::ConnectInfo`] and [`FabricError::Connect`] report a peer that cannot be connected.
    /// [`FabricError::Config`] reports a table of peers that is not ordered by peer index.
    pub fn connect(
        mut self,
        peers: &[PeerConnectInfo],
        ring: Arc<HostRing>,
        arrivals: Box<dyn Arrivals>,
        deadline: Instant,
    ) -> Result<Endpoint, FabricError> {
        let (mut states, mut inner) = (Vec::new(), Vec::new());
        for (at, PeerConnectInfo { peer, connect_info }) in peers.iter().enumerate() {
            if usize::from(peer.id.0) != at {
                return Err(FabricError::Config(vec![format!(
                    "{peer} is entry {at} of the table of peers; order the table by peer index"
                )]));
            }
            let info =
                EndpointInfo::decode(connect_info).map_err(|reason| FabricError::ConnectInfo {
                    peer: peer.clone(),
                    reason,
                })?;
            inner.push(PeerConnectInfo {
                peer: peer.clone(),
                connect_info: info.transport.clone(),
            });
            states.push(PeerState::new(
                peer,
                info,
                self.limits.receives,
                &self.config,
            ));
        }
        self.transport.connect(&inner, deadline)?;
        Ok(Endpoint::new(
            self.transport,
            &self.config,
            ring,
            arrivals,
            states,
        ))
    }
}
