//! [`EndpointInfo`]: the data that an endpoint sends to a peer before they connect.
//!
//! The info holds the endpoint's own parameters and the connection info of its transport. This file also defines the limits on
//! receives and credits that follow from these parameters.

use crate::immediate::SEQUENCE_MODULUS;
use crate::transport::MAX_CONNECT_INFO_BYTES;
use mkernel_spec::fabric::MAX_CHANNELS;

const MAGIC: [u8; 4] = *b"MKFB";
/// The version of the format. Increment the version with every change of this format, of
/// [`Immediate`](crate::immediate::Immediate), or of their meaning.
const VERSION: u16 = 4;
const HEADER_BYTES: usize = 12;

/// The most credit messages to one peer that may be in flight at once.
pub const MAX_CREDITS_IN_FLIGHT: u32 = 4;

/// The receives that a peer may use for credits and for its close. The other receives are for puts.
///
/// This number is sufficient. Consider the credit messages that have arrived but have not been read. At most four of these are
/// newer than the newest message that was read, because each returns a quarter of the credits, and no more credits can be
/// returned. The older messages were overtaken by the newest message that was read, so they were in flight together with it,
/// and their number is below [`MAX_CREDITS_IN_FLIGHT`]. That leaves one receive for the close.
pub const CREDIT_RECEIVES: u32 = 4 + MAX_CREDITS_IN_FLIGHT;

/// The fewest and the most receives that a transport may keep for each peer. The upper limit keeps the window of a
/// channel within half of the sequence numbers.
pub const RECEIVES: std::ops::RangeInclusive<u32> = 2 * CREDIT_RECEIVES..=SEQUENCE_MODULUS / 2;

/// The usual number of receives that are kept posted on a NIC.
pub const RECEIVE_QUEUE: u32 = 8192;

/// The usual largest share of a peer in the receives of a NIC.
pub const MAX_PEER_RECEIVES: u32 = 256;

/// Returns the share of each of `peers` peers in the receives of a NIC: at most `most`, and at least the fewest of [`RECEIVES`].
#[must_use]
pub fn receives_per_peer(receive_queue: u32, most: u32, peers: u32) -> u32 {
    let share = receive_queue / peers.max(1);
    share.max(*RECEIVES.start()).min(most)
}

/// Returns the number of puts that may be in flight to an endpoint that keeps `receives` receives for each peer.
#[must_use]
pub fn put_credits(receives: u32) -> u32 {
    receives - CREDIT_RECEIVES
}

/// The connection info of an endpoint in decoded form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointInfo {
    /// The number of receives that this peer may use.
    pub receives: u32,
    /// The number of channels. Indices of channels are below this number.
    pub channels: u16,
    /// The connection info of the transport.
    pub transport: Vec<u8>,
}

impl EndpointInfo {
    /// Encodes the info, little-endian: magic number, version, channels, receives, connection info of the transport.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::from(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.channels.to_le_bytes());
        bytes.extend(self.receives.to_le_bytes());
        bytes.extend(&self.transport);
        bytes
    }

    /// Decodes the bytes that a peer sent.
    ///
    /// # Errors
    ///
    /// Returns the reason why the bytes are invalid.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let Some((header, transport)) = bytes.split_at_checked(HEADER_BYTES) else {
            return Err(format!(
                "it has {} bytes, fewer than the header of {HEADER_BYTES}",
                bytes.len()
            ));
        };
        let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let word = |at: usize| u32::from(half(at)) | u32::from(half(at + 2)) << 16;
        if header[..4] != MAGIC {
            return Err("it does not start with the magic number MKFB".into());
        }
        if half(4) != VERSION {
            return Err(format!(
                "its version is {}, but this endpoint has version {VERSION}; run the same build on all nodes",
                half(4)
            ));
        }
        let (channels, receives) = (half(6), word(8));
        if u32::from(channels) > MAX_CHANNELS || !RECEIVES.contains(&receives) {
            return Err(format!(
                "it has {channels} channels and {receives} receives, but up to {MAX_CHANNELS} channels and {RECEIVES:?} receives \
                 are possible"
            ));
        }
        if transport.len() > MAX_CONNECT_INFO_BYTES {
            return Err(format!(
                "it has {} bytes of transport info, but up to {MAX_CONNECT_INFO_BYTES} are possible",
                transport.len()
            ));
        }
        Ok(Self {
            receives,
            channels,
            transport: transport.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn info() -> EndpointInfo {
        EndpointInfo {
            receives: 64,
            channels: 9,
            transport: vec![1, 2, 3],
        }
    }

    proptest! {
        /// Damaged bytes are refused or decode to other valid info. They never cause a panic.
        #[test]
        fn damaged_info_is_refused_or_valid(at in 0usize..15, bit in 0u8..8, length in 0usize..16) {
            let mut bytes = info().encode();
            prop_assert_eq!(EndpointInfo::decode(&bytes), Ok(info()));
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            bytes.truncate(length);
            if let Ok(info) = EndpointInfo::decode(&bytes) {
                prop_assert!(RECEIVES.contains(&info.receives) && bytes.len() >= HEADER_BYTES);
                prop_assert!(at >= 6);
            }
        }
    }
}
