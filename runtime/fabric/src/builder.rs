//! The way to an endpoint: regions, connection info, connections.

use crate::arrivals::Arrivals;
use crate::command_ring::HostRing;
use crate::config::EndpointConfig;
use crate::endpoint::Endpoint;
use crate::endpoint_info::{EndpointInfo, RECEIVES};
use crate::error::FabricError;
use crate::peer_id::PeerId;
use crate::peer_state::PeerState;
use crate::transport::{Limits, MemoryRange, PeerConnectInfo, Transport};
use mkernel_spec::fabric::MAX_CHANNELS;
use std::sync::Arc;
use std::time::Instant;

/// An endpoint that is not connected yet.
pub struct EndpointBuilder {
    transport: Box<dyn Transport>,
    config: EndpointConfig,
    limits: Limits,
    regions: Vec<u64>,
}

impl EndpointBuilder {
    /// Registers regions 0, 1, …
    ///
    /// # Errors
    ///
    /// [`FabricError::Config`] with all mistakes; [`FabricError::Register`].
    pub fn new(
        mut transport: Box<dyn Transport>,
        regions: Vec<MemoryRange>,
        config: EndpointConfig,
    ) -> Result<Self, FabricError> {
        let limits = transport.limits();
        let mut mistakes = Vec::new();
        if config.channels == 0 || u32::from(config.channels) > MAX_CHANNELS {
            mistakes.push(format!(
                "{} channels, but there may be 1 to {MAX_CHANNELS}",
                config.channels
            ));
        }
        if config.deadline.is_zero() {
            mistakes.push("a deadline of 0, which every put would miss".into());
        }
        if config.put_bytes > limits.write_bytes.into() {
            mistakes.push(format!(
                "puts of up to {} bytes, but a write of these NICs has at most {}: choose other NICs, or a plan with smaller \
                 puts",
                config.put_bytes, limits.write_bytes
            ));
        }
        if !RECEIVES.contains(&limits.receives) || limits.writes < 2 {
            mistakes.push(format!(
                "a transport that keeps {} receives and {} writes per peer, but {RECEIVES:?} and at least 2 are needed: \
                 use deeper queues, or fewer peers",
                limits.receives, limits.writes
            ));
        }
        if !mistakes.is_empty() {
            return Err(FabricError::Config(mistakes));
        }
        let sizes = regions.iter().map(MemoryRange::bytes).collect();
        for memory in regions {
            transport.register(memory)?;
        }
        Ok(Self {
            transport,
            config,
            limits,
            regions: sizes,
        })
    }

    /// What the peer's [`connect`](Self::connect) must get.
    ///
    /// # Errors
    ///
    /// Of the transport.
    pub fn connect_info(&mut self, peer: PeerId) -> Result<Vec<u8>, FabricError> {
        let info = EndpointInfo {
            receives: self.limits.receives,
            channels: self.config.channels,
            regions: self.regions.clone(),
            transport: self.transport.connect_info(peer)?,
        };
        Ok(info.encode())
    }

    /// Connects to all peers. Afterwards all endpoints have to meet before any of them is stepped.
    ///
    /// # Errors
    ///
    /// [`FabricError::ConnectInfo`], [`FabricError::Connect`]; [`FabricError::Config`] for peers out of place.
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
                    "{peer} is at place {at} of the table of peers"
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
            self.config.deadline,
            self.regions,
            ring,
            arrivals,
            states,
        ))
    }
}
