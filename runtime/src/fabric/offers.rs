//! The message that each rank sends to all other ranks before they connect. The message contains the connection data for each
//! of the sender's peers.

/// Encodes the data for each peer: its length as a little-endian u32, then its bytes.
pub(crate) fn encode(offers: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for offer in offers {
        bytes.extend((offer.len() as u32).to_le_bytes());
        bytes.extend(offer);
    }
    bytes
}

/// Returns the data at `index` from a message for `count` peers, or `None` if the message is malformed.
pub(crate) fn decode(mut bytes: &[u8], count: usize, index: usize) -> Option<&[u8]> {
    let mut found = None;
    for at in 0..count {
        let (length, rest) = bytes.split_first_chunk()?;
        let (offer, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        if at == index {
            found = Some(offer);
        }
        bytes = rest;
    }
    found.filter(|_| bytes.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn offers_are_read_as_written(offers: Vec<Vec<u8>>, cut: prop::sample::Index) {
            let bytes = encode(&offers);
            let count = offers.len();
            for (index, offer) in offers.iter().enumerate() {
                prop_assert_eq!(decode(&bytes, count, index), Some(&offer[..]));
                prop_assert_eq!(decode(&bytes, count + 1, index), None);
                prop_assert_eq!(decode(&bytes[..cut.index(bytes.len())], count, index), None);
            }
            prop_assert_eq!(decode(&bytes, count, count), None);
        }

        #[test]
        fn garbage_is_no_panic(bytes: Vec<u8>, count in 0usize..5) {
            if let Some(offer) = decode(&bytes, count, 0) {
                prop_assert!(offer.len() + 4 * count <= bytes.len());
            }
        }
    }
}
