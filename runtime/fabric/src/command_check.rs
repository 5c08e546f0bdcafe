//! Validation of the commands that kernels write to the ring.
//!
//! A command comes from device memory, so the endpoint checks every field before it acts on it.

use crate::error::FabricError;
use crate::peer_id::PeerIdentity;
use crate::transport::Limits;
use mkernel_spec::fabric::{COMMAND_PUT, Command};

/// What the endpoint knows about the peer of a command.
pub struct Target<'a> {
    /// The peer, for errors.
    pub peer: &'a PeerIdentity,
    /// The number of its channels.
    pub channels: u16,
    /// The sizes of the peer's regions in bytes.
    pub regions: &'a [u64],
}

/// Checks every field of the command with this index.
///
/// `regions` are the sizes of the endpoint's own regions. `target` describes the peer if the command names one of the
/// `peers` peers.
pub fn check(
    index: u32,
    command: &Command,
    limits: &Limits,
    regions: &[u64],
    target: Option<Target<'_>>,
    peers: usize,
) -> Result<(), FabricError> {
    let invalid = |field, value: u64, limit: String| FabricError::Command {
        index,
        field,
        value,
        limit,
    };
    if command.kind != COMMAND_PUT {
        let limit = format!("the only kind is a put, {COMMAND_PUT}");
        return Err(invalid("kind", command.kind.into(), limit));
    }
    let Some(target) = target else {
        let limit = format!("there are {peers} peers");
        return Err(invalid("peer", command.peer.into(), limit));
    };
    if command.channel >= target.channels {
        let limit = format!("{} has {} channels", target.peer, target.channels);
        return Err(invalid("channel", command.channel.into(), limit));
    }
    let bytes = command.bytes;
    if bytes > limits.write_bytes {
        let limit = format!("a write has at most {} bytes", limits.write_bytes);
        return Err(invalid("bytes", bytes.into(), limit));
    }
    if bytes == 0 {
        return Ok(());
    }
    let ranges = [
        (
            "source_region",
            "source_offset",
            command.source_region,
            command.source_offset,
            regions,
        ),
        (
            "target_region",
            "target_offset",
            command.target_region,
            command.target_offset,
            target.regions,
        ),
    ];
    for (region_field, offset_field, region, offset, regions) in ranges {
        let Some(size) = regions.get(usize::from(region)) else {
            let limit = format!("there are {} regions", regions.len());
            return Err(invalid(region_field, region.into(), limit));
        };
        let end = offset.checked_add(bytes.into());
        if end.is_none_or(|end| end > *size) {
            let limit = format!("region {region} has {size} bytes and the put has {bytes}");
            return Err(invalid(offset_field, offset, limit));
        }
    }
    Ok(())
}
