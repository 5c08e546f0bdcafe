//! [`Key::of`]: which texts and options a kernel's key is a hash of.

use crate::compiler::Compiler;
use crate::key::{Key, SCHEMA};
use crate::source::CudaSource;
use crate::templates::headers;
use sha2::{Digest, Sha256};

impl Key {
    /// The key of `source` and of the compiler of its target. For GPUs the compiler is the pinned NVRTC, or with
    /// `MKERNEL_NVRTC_ANY=1` the NVRTC that is found. For simulated GPUs it is the host's C++ compiler.
    #[must_use]
    pub fn of(source: &CudaSource) -> Self {
        Self::for_compiler(source, &Compiler::of(source.target))
    }

    fn for_compiler(source: &CudaSource, compiler: &Compiler) -> Self {
        let mut hash = Sha256::new();
        let mut part = |text: &str| {
            // The length comes first, so that two different lists of texts never give the same bytes.
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
        Self::from_digest(hash.finalize().into())
    }
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
}
