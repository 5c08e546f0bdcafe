//! Validation of the commands that kernels write to the ring.
//!
//! A command comes from device memory, so the endpoint checks every field before it acts on the command.

use crate::error::FabricError;
use crate::peer_id::PeerIdentity;
use crate::transport::Limits;
use mkernel_spec::fabric::{COMMAND_PUT, COMMAND_PUT_TO_PEERS, Command, MAX_MASK_PEERS};

/// The facts about the peer of a command that its checks need.
pub struct Target<'a> {
    /// The peer, for errors.
    pub peer: &'a PeerIdentity,
    /// The number of the peer's channels.
    pub channels: u16,
    /// The sizes of the peer's regions in bytes.
    pub regions: &'a [u64],
}

/// Returns the puts of a command, each to one peer. [`check_peers`] must have accepted the command.
pub fn puts(command: &Command, peers: usize) -> impl Iterator<Item = Command> + use<> {
    let (command, peers) = (*command, peers as u32);
    let is_single = command.kind == COMMAND_PUT;
    let count = if is_single {
        1
    } else {
        u32::from(command.target_region)
    };
    (0..count).map(move |i| {
        if is_single {
            return command;
        }
        let is_in_mask = command.target_offset >> i & 1 == 1;
        Command {
            peer: ((u32::from(command.peer) + i) % peers) as u16,
            kind: COMMAND_PUT,
            target_region: command.source_region,
            target_offset: command.source_offset,
            bytes: if is_in_mask { command.bytes } else { 0 },
            ..command
        }
    })
}

/// Checks the fields that name the peers of the command with this index. There are `peers` peers.
pub fn check_peers(index: u32, command: &Command, peers: usize) -> Result<(), FabricError> {
    let invalid = |field, value: u64, limit: String| {
        Err(FabricError::Command {
            index,
            field,
            value,
            limit,
        })
    };
    let count = u32::from(command.target_region);
    if ![COMMAND_PUT, COMMAND_PUT_TO_PEERS].contains(&command.kind) {
        let limit = format!(
            "a put to one peer is {COMMAND_PUT}, a put to several peers is {COMMAND_PUT_TO_PEERS}"
        );
        return invalid("kind", command.kind.into(), limit);
    }
    if usize::from(command.peer) >= peers {
        let limit = format!("there are {peers} peers");
        return invalid("peer", command.peer.into(), limit);
    }
    if command.kind == COMMAND_PUT {
        return Ok(());
    }
    let most = MAX_MASK_PEERS.min(peers as u32);
    if !(1..=most).contains(&count) {
        let limit = format!("a put to several peers has 1 to {most} peers");
        return invalid("target_region", count.into(), limit);
    }
    if command.target_offset >> count != 0 {
        let limit = format!("the mask has a bit for each of {count} peers");
        return invalid("target_offset", command.target_offset, limit);
    }
    Ok(())
}

/// Checks the other fields of a put of the command with this index.
///
/// `regions` are the sizes of the endpoint's own regions. `target` describes the peer.
pub fn check_put(
    index: u32,
    command: &Command,
    limits: &Limits,
    regions: &[u64],
    target: &Target<'_>,
) -> Result<(), FabricError> {
    let invalid = |field, value: u64, limit: String| FabricError::Command {
        index,
        field,
        value,
        limit,
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
