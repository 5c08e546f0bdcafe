//! What an endpoint tells a peer before they connect: its own figures, and its transport's offer.

use crate::immediate::SEQUENCE_MODULUS;
use crate::transport::{MAX_CONNECT_INFO_BYTES, MAX_REGIONS};
use mkernel_spec::fabric::MAX_CHANNELS;

const MAGIC: [u8; 4] = *b"MKFB";
/// Bump with every change of this format, of [`Immediate`](crate::immediate::Immediate) or of what they mean.
const VERSION: u16 = 3;
const HEADER_BYTES: usize = 16;

/// Credit messages to a peer that may be on their way at once.
pub const MAX_CREDITS_IN_FLIGHT: u32 = 4;

/// Receives that a peer may use for credits and its goodbye; the rest is for puts. So many are enough. Of credit messages
/// that have arrived and were not read, those newer than the newest that was read are four at most, since each gives back
/// a quarter of the puts that may be on their way, and there are no more puts to give back. Those older were overtaken by
/// the newest that was read, and so were on their way with it: less than [`MAX_CREDITS_IN_FLIGHT`]. That leaves one.
pub const CREDIT_RECEIVES: u32 = 4 + MAX_CREDITS_IN_FLIGHT;

/// The fewest and the most receives that a transport may keep: the window of a channel is at most half of the sequence
/// numbers.
pub const RECEIVES: std::ops::RangeInclusive<u32> = 2 * CREDIT_RECEIVES..=SEQUENCE_MODULUS / 2;

/// Puts that may be on their way to an endpoint that keeps so many receives for each peer.
#[must_use]
pub fn put_credits(receives: u32) -> u32 {
    receives - CREDIT_RECEIVES
}

/// Decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointInfo {
    /// Receives that this peer may use.
    pub receives: u32,
    /// Its channels are numbered below.
    pub channels: u16,
    /// Sizes of regions in bytes.
    pub regions: Vec<u64>,
    /// The transport's own.
    pub transport: Vec<u8>,
}

impl EndpointInfo {
    /// As bytes, little-endian: magic, version, channels, receives, regions, their sizes, the transport's.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::from(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.channels.to_le_bytes());
        bytes.extend(self.receives.to_le_bytes());
        bytes.extend((self.regions.len() as u32).to_le_bytes());
        bytes.extend(self.regions.iter().flat_map(|size| size.to_le_bytes()));
        bytes.extend(&self.transport);
        bytes
    }

    /// From a peer's bytes.
    ///
    /// # Errors
    ///
    /// Why they are no offer.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let Some((header, rest)) = bytes.split_at_checked(HEADER_BYTES) else {
            return Err(format!("{} bytes, too short", bytes.len()));
        };
        let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let word = |at: usize| u32::from(half(at)) | u32::from(half(at + 2)) << 16;
        if header[..4] != MAGIC {
            return Err("it does not start with the magic number of the fabric".into());
        }
        if half(4) != VERSION {
            return Err(format!(
                "version {}, but this is version {VERSION}: run the same build on all nodes",
                half(4)
            ));
        }
        let (channels, receives, regions) = (half(6), word(8), word(12) as usize);
        if u32::from(channels) > MAX_CHANNELS || !RECEIVES.contains(&receives) {
            return Err(format!("{channels} channels and {receives} receives"));
        }
        if regions > MAX_REGIONS || rest.len() < 8 * regions {
            return Err(format!("{regions} regions in {} bytes", rest.len()));
        }
        let (sizes, transport) = rest.split_at(8 * regions);
        if transport.len() > MAX_CONNECT_INFO_BYTES {
            return Err(format!("{} bytes of a transport", transport.len()));
        }
        let size = |bytes: &[u8]| {
            bytes
                .iter()
                .rev()
                .fold(0, |size, byte| size << 8 | u64::from(*byte))
        };
        Ok(Self {
            receives,
            channels,
            regions: sizes.chunks(8).map(size).collect(),
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
            regions: vec![1 << 40, 7],
            transport: vec![1, 2, 3],
        }
    }

    proptest! {
        /// Whatever is damaged: refused, or another sound offer; no panic.
        #[test]
        fn damaged_offers_are_refused_or_sound(at in 0usize..40, bit in 0u8..8, length in 0usize..40) {
            let mut bytes = info().encode();
            prop_assert_eq!(EndpointInfo::decode(&bytes), Ok(info()));
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            bytes.truncate(length);
            if let Ok(info) = EndpointInfo::decode(&bytes) {
                prop_assert!(RECEIVES.contains(&info.receives) && info.regions.len() <= MAX_REGIONS);
                prop_assert!(bytes.len() > HEADER_BYTES && at >= 6);
            }
        }
    }
}
