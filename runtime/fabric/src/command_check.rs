//! Whether a command of a kernel can be carried out.

use crate::error::FabricError;
use crate::peer_id::PeerIdentity;
use crate::transport::Limits;
use mkernel_spec::fabric::{COMMAND_PUT, Command};

/// What the peer of a command has.
pub struct Target<'a> {
    pub peer: &'a PeerIdentity,
    pub channels: u16,
    /// Sizes in bytes.
    pub regions: &'a [u64],
}

/// Checks every field of the command with this index: whom it is for, if it is for one of `peers`, and its ranges there
/// and in `regions`, the endpoint's own.
pub fn check(
    index: u32,
    command: &Command,
    limits: &Limits,
    regions: &[u64],
    target: Option<Target<'_>>,
    peers: usize,
) -> Result<(), FabricError> {
    let fault = |field, value: u64, limit: String| FabricError::Command {
        index,
        field,
        value,
        limit,
    };
    if command.kind != COMMAND_PUT {
        let limit = format!("a put is {COMMAND_PUT}, and there is no other");
        return Err(fault("kind", command.kind.into(), limit));
    }
    let Some(target) = target else {
        let limit = format!("there are {peers} peers");
        return Err(fault("peer", command.peer.into(), limit));
    };
    if command.channel >= target.channels {
        let limit = format!("{} has {} channels", target.peer, target.channels);
        return Err(fault("channel", command.channel.into(), limit));
    }
    let bytes = command.bytes;
    if bytes > limits.write_bytes {
        let limit = format!("a write has at most {} bytes", limits.write_bytes);
        return Err(fault("bytes", bytes.into(), limit));
    }
    if bytes == 0 {
        return Ok(());
    }
    let places = [
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
    for (region_field, offset_field, region, offset, regions) in places {
        let Some(size) = regions.get(usize::from(region)) else {
            let limit = format!("there are {} regions", regions.len());
            return Err(fault(region_field, region.into(), limit));
        };
        let end = offset.checked_add(bytes.into());
        if end.is_none_or(|end| end > *size) {
            let limit = format!("region {region} has {size} bytes, and the put {bytes}");
            return Err(fault(offset_field, offset, limit));
        }
    }
    Ok(())
}
