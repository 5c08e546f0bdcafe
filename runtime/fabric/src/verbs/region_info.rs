//! [`RegionInfo`]: the data that peers of a verbs transport need to write to a region.
//!
//! The encoding is little-endian: magic number (4 bytes), version and number of rails (1 byte each), address and size of
//! the region (8 each), and its key on each rail (4).

use super::connect_info::MAX_RAILS;
use super::reader::Reader;

const MAGIC: [u8; 4] = *b"mkvr";
const VERSION: u8 = 1;

/// A region of the peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RegionInfo {
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// The remote key on each rail.
    pub(super) keys: Vec<u32>,
}

impl RegionInfo {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([VERSION, self.keys.len() as u8]);
        bytes.extend(self.address.to_le_bytes());
        bytes.extend(self.bytes.to_le_bytes());
        bytes.extend(self.keys.iter().flat_map(|key| key.to_le_bytes()));
        bytes
    }

    /// Decodes the info of a region of a peer with `rails` rails. An error describes the fault of the info.
    pub(super) fn from_bytes(bytes: &[u8], rails: usize) -> Result<Self, String> {
        let mut reader = Reader::new(bytes, MAGIC, VERSION)?;
        let keys = reader.count("keys", MAX_RAILS)?;
        if keys != rails {
            return Err(format!("it has {keys} keys, but the peer has {rails} NICs"));
        }
        let info = Self {
            address: reader.u64()?,
            bytes: reader.u64()?,
            keys: (0..keys).map(|_| reader.u32()).collect::<Result<_, _>>()?,
        };
        reader.end()?;
        match info.address.checked_add(info.bytes) {
            Some(_) => Ok(info),
            None => Err("it exceeds the address space".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> RegionInfo {
        RegionInfo {
            address: 1 << 40,
            bytes: 4096,
            keys: vec![7, 8],
        }
    }

    #[test]
    fn info_survives_encoding_and_decoding() {
        assert_eq!(RegionInfo::from_bytes(&info().to_bytes(), 2), Ok(info()));
    }

    #[test]
    fn damaged_info_is_refused() {
        let good = info().to_bytes();
        for length in 0..good.len() {
            let cut = RegionInfo::from_bytes(&good[..length], 2);
            assert!(cut.is_err(), "cut to {length}");
        }
        let refused = |bytes: &[u8], rails: usize, why: &str| {
            let error = RegionInfo::from_bytes(bytes, rails).expect_err("refused");
            assert!(error.contains(why), "{error}");
        };
        let changed = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            bytes
        };
        refused(&changed(0, b'x'), 2, "not the info of a verbs transport");
        refused(&changed(4, 9), 2, "version is 9");
        refused(&changed(5, 9), 2, "9 keys, but at most 8");
        refused(&good, 3, "2 keys, but the peer has 3 NICs");
        refused(&[&good[..], &[0]].concat(), 2, "1 extra bytes");
        let beyond = RegionInfo {
            address: u64::MAX - 4095,
            ..info()
        };
        refused(&beyond.to_bytes(), 2, "exceeds the address space");
    }
}
