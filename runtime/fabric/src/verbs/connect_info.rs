//! [`ConnectInfo`]: the data that a verbs transport sends to a peer before they connect.
//!
//! The encoding is little-endian. It starts with magic number (4 bytes), version, service, number of rails and number of
//! queue pairs (1 byte each). Each rail follows: link layer (1), MTU (1), LID (2), GID (16), scratch address (8) and
//! scratch key (4), then number (4) and nonce (4) of each queue pair.

use super::reader::Reader;

const MAGIC: [u8; 4] = *b"mkvo";
const VERSION: u8 = 2;

/// The most NICs of an endpoint.
pub(super) const MAX_RAILS: usize = 8;
/// The most queue pairs per peer and rail.
pub(super) const MAX_QUEUE_PAIRS: usize = 16;

/// Decoded connection info. The counts have been checked, the values have not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ConnectInfo {
    /// The transport service of the queue pairs, RC or SRD.
    pub(super) service: u8,
    pub(super) rails: Vec<RailInfo>,
}

/// A NIC of the peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RailInfo {
    pub(super) link: u8,
    pub(super) mtu: u8,
    pub(super) lid: u16,
    pub(super) gid: [u8; 16],
    /// The target of writes of 0 bytes.
    pub(super) scratch: RemoteAddress,
    /// The queue pairs for this endpoint. Every rail has an equal number of queue pairs.
    pub(super) queue_pairs: Vec<QueuePairInfo>,
}

/// A queue pair that the peer created for this endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QueuePairInfo {
    pub(super) number: u32,
    /// A random number: the first packet number of RC, the queue key of SRD.
    pub(super) nonce: u32,
}

/// Memory as a NIC of the peer addresses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RemoteAddress {
    pub(super) address: u64,
    pub(super) key: u32,
}

impl ConnectInfo {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let queue_pairs = self.rails.first().map_or(0, |rail| rail.queue_pairs.len());
        let mut bytes = MAGIC.to_vec();
        bytes.extend([
            VERSION,
            self.service,
            self.rails.len() as u8,
            queue_pairs as u8,
        ]);
        for rail in &self.rails {
            bytes.extend([rail.link, rail.mtu]);
            bytes.extend(rail.lid.to_le_bytes());
            bytes.extend(rail.gid);
            bytes.extend(rail.scratch.address.to_le_bytes());
            bytes.extend(rail.scratch.key.to_le_bytes());
            for pair in &rail.queue_pairs {
                bytes.extend(pair.number.to_le_bytes());
                bytes.extend(pair.nonce.to_le_bytes());
            }
        }
        bytes
    }

    /// Decodes connection info. An error describes the fault of the info.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let mut reader = Reader::new(bytes, MAGIC, VERSION)?;
        let [service] = reader.array()?;
        let rails = reader.count("rails", MAX_RAILS)?;
        let queue_pairs = reader.count("queue pairs", MAX_QUEUE_PAIRS)?;
        let info = Self {
            service,
            rails: (0..rails)
                .map(|_| rail(&mut reader, queue_pairs))
                .collect::<Result<_, _>>()?,
        };
        reader.end().map(|()| info)
    }
}

fn rail(reader: &mut Reader<'_>, queue_pairs: usize) -> Result<RailInfo, String> {
    let [link, mtu] = reader.array()?;
    Ok(RailInfo {
        link,
        mtu,
        lid: reader.array().map(u16::from_le_bytes)?,
        gid: reader.array()?,
        scratch: RemoteAddress {
            address: reader.u64()?,
            key: reader.u32()?,
        },
        queue_pairs: (0..queue_pairs)
            .map(|_| {
                Ok(QueuePairInfo {
                    number: reader.u32()?,
                    nonce: reader.u32()?,
                })
            })
            .collect::<Result<_, String>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::{ConnectInfo, MAX_QUEUE_PAIRS, MAX_RAILS, QueuePairInfo, RailInfo, RemoteAddress};
    use crate::transport::MAX_CONNECT_INFO_BYTES;

    fn info(rails: usize, queue_pairs: usize) -> ConnectInfo {
        let numbered = |index: usize| 0x0102_0304 * (index as u32 + 1);
        let pair = |index| QueuePairInfo {
            number: numbered(index),
            nonce: !numbered(index),
        };
        let rail = |index| RailInfo {
            link: 2,
            mtu: 5,
            lid: index as u16,
            gid: [index as u8; 16],
            scratch: RemoteAddress {
                address: 1 << 40,
                key: numbered(index),
            },
            queue_pairs: (0..queue_pairs).map(pair).collect(),
        };
        ConnectInfo {
            service: 1,
            rails: (0..rails).map(rail).collect(),
        }
    }

    #[test]
    fn info_survives_encoding_and_decoding() {
        for info in [info(1, 1), info(2, 3), info(MAX_RAILS, MAX_QUEUE_PAIRS)] {
            let bytes = info.to_bytes();
            assert!(bytes.len() <= MAX_CONNECT_INFO_BYTES);
            assert_eq!(ConnectInfo::from_bytes(&bytes), Ok(info));
        }
    }

    #[test]
    fn damaged_info_is_refused() {
        let good = info(2, 2).to_bytes();
        for length in 0..good.len() {
            assert!(
                ConnectInfo::from_bytes(&good[..length]).is_err(),
                "cut to {length}"
            );
        }
        let refused = |index: usize, value: u8, why: &str| {
            let mut bytes = good.clone();
            bytes[index] = value;
            let error = ConnectInfo::from_bytes(&bytes).unwrap_err();
            assert!(error.contains(why), "byte {index} = {value}: {error}");
        };
        refused(0, b'x', "not the info of a verbs transport");
        refused(4, 9, "version is 9");
        refused(6, 9, "9 rails, but at most 8");
        refused(7, 200, "200 queue pairs, but at most 16");
        refused(6, 1, "extra bytes");
        let mut long = good.clone();
        long.push(0);
        assert_eq!(
            ConnectInfo::from_bytes(&long),
            Err("it has 1 extra bytes at its end".into())
        );
    }
}
