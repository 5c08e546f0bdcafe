//! [`Key`]: the content address of a kernel.

use crate::compiler::Compiler;
use crate::entry::SCHEMA;
use crate::source::CudaSource;
use crate::templates::headers;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;

/// The content address of a kernel: SHA-256 of all that decides its machine code, and of the format in which it is
/// stored. Printed as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Key([u8; 32]);

impl Key {
    /// The key of `source`, compiled by the pinned NVRTC (with `MKERNEL_NVRTC_ANY=1`: by the one that is found), or,
    /// for simulated GPUs, by the host's C++ compiler.
    #[must_use]
    pub fn of(source: &CudaSource) -> Self {
        Self::for_compiler(source, &Compiler::of(source.target))
    }

    fn for_compiler(source: &CudaSource, compiler: &Compiler) -> Self {
        let mut hash = Sha256::new();
        let mut part = |text: &str| {
            // With its length, so that no two lists of parts run together to the same bytes.
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        };
        part(&format!(
            "mkernel schema {SCHEMA}, {:?}, {}",
            source.target, compiler.name
        ));
        compiler.options.iter().copied().for_each(&mut part);
        for (name, text) in headers(source.target) {
            part(name);
            part(text);
        }
        part(&source.id);
        part(&source.text);
        Self(hash.finalize().into())
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

/// The text is not 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key is 64 lower-case hexadecimal digits")]
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

/// Lower-case hexadecimal digits of `bytes`.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mkernel_spec::Target;

    fn source(id: &str, text: &str) -> CudaSource {
        CudaSource {
            id: id.into(),
            target: Target::Sm90a,
            text: text.into(),
        }
    }

    #[test]
    fn everything_that_matters_changes_the_key() {
        let compiler = |name: &str| Compiler {
            name: name.into(),
            options: &["-O1"],
        };
        let key = |id, text, name| Key::for_compiler(&source(id, text), &compiler(name));
        let base = key("a", "bc", "13.0");
        assert_eq!(base, key("a", "bc", "13.0"));
        assert_ne!(base, key("ab", "c", "13.0"));
        assert_ne!(base, key("a", "bd", "13.0"));
        assert_ne!(base, key("a", "bc", "13.1"));
        let other = Compiler {
            options: &["-O2"],
            ..compiler("13.0")
        };
        assert_ne!(base, Key::for_compiler(&source("a", "bc"), &other));
        let simulated = CudaSource {
            target: Target::Simulator,
            ..source("a", "bc")
        };
        assert_ne!(base, Key::for_compiler(&simulated, &compiler("13.0")));
    }

    #[test]
    fn text_round_trip() {
        let key = Key::of(&source("a", "b"));
        assert_eq!(key.to_string().parse(), Ok(key));
        for wrong in ["", "00", &"g".repeat(64), &"A".repeat(64), &"é".repeat(32)] {
            assert_eq!(wrong.parse::<Key>(), Err(ParseKeyError), "{wrong}");
        }
    }
}
