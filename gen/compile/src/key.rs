//! [`Key`]: the content address of a kernel.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;

/// The version of the format of stored kernels, and of the inputs of keys.
pub(crate) const SCHEMA: u32 = 3;

/// The content address of a kernel: the SHA-256 hash of everything that determines its machine code and of the version
/// of the storage format. A key is printed as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Key([u8; 32]);

impl Key {
    /// The key with these bytes.
    pub(crate) fn from_digest(digest: [u8; 32]) -> Self {
        Self(digest)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

/// The error of parsing a text that is not 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key must be 64 lower-case hexadecimal digits")]
pub struct ParseKeyError;

impl FromStr for Key {
    type Err = ParseKeyError;

    fn from_str(text: &str) -> Result<Self, ParseKeyError> {
        let digits = text.as_bytes();
        let digit = |c: u8| match c {
            b'0'..=b'9' => Ok(c - b'0'),
            b'a'..=b'f' => Ok(c - b'a' + 10),
            _ => Err(ParseKeyError),
        };
        if digits.len() != 64 {
            return Err(ParseKeyError);
        }
        let mut key = [0; 32];
        for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Ok(Self(key))
    }
}

impl From<Key> for String {
    fn from(key: Key) -> Self {
        key.to_string()
    }
}

impl TryFrom<String> for Key {
    type Error = ParseKeyError;

    fn try_from(text: String) -> Result<Self, ParseKeyError> {
        text.parse()
    }
}

/// Hashes a list of texts. Each text is preceded by its length, so that two different lists never give the same bytes.
pub(crate) fn hash_parts(parts: impl IntoIterator<Item = impl AsRef<str>>) -> [u8; 32] {
    let mut hash = Sha256::new();
    for text in parts {
        let text = text.as_ref();
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    hash.finalize().into()
}

/// Formats bytes as lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trip() {
        let key = Key::from_digest(std::array::from_fn(|byte| 7 * byte as u8));
        assert_eq!(key.to_string().parse(), Ok(key));
        for wrong in ["", "00", &"g".repeat(64), &"A".repeat(64), &"é".repeat(32)] {
            assert_eq!(wrong.parse::<Key>(), Err(ParseKeyError), "{wrong}");
        }
    }
}
