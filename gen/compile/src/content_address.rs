//! [`Key::of`]: which texts and options a kernel's key is a hash of.

use crate::compiler::Compiler;
use crate::key::{Key, SCHEMA, hash_parts};
use crate::source::CudaSource;
use crate::templates::headers;
use mkernel_spec::Target;

impl Key {
    /// The key of `source` and of the compiler of its target. For GPUs the compiler is the pinned NVRTC, or with
    /// `MKERNEL_NVRTC_ANY=1` the NVRTC that is found. For simulated GPUs it is the host's C++ compiler.
    #[must_use]
    pub fn of(source: &CudaSource) -> Self {
        Self::for_parts(source.target, &[&source.id, &source.text])
    }

    /// The key of a kernel for `target` that is determined by `parts` and the headers.
    pub(crate) fn for_parts(target: Target, parts: &[&str]) -> Self {
        Self::for_compiler(target, parts, &Compiler::of(target))
    }

    fn for_compiler(target: Target, parts: &[&str], compiler: &Compiler) -> Self {
        let start = format!("mkernel schema {SCHEMA}, {target:?}, {}", compiler.name);
        let headers = headers(target)
            .iter()
            .flat_map(|&(name, text)| [name, text]);
        let before = [&*start]
            .into_iter()
            .chain(compiler.options.iter().copied());
        Self::from_digest(hash_parts(
            before.chain(headers).chain(parts.iter().copied()),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_matters_changes_the_key() {
        let compiler = |name: &str| Compiler {
            name: name.into(),
            options: &["-O1"],
        };
        let gpu = Target::Sm90a;
        let key = |id, text, name| Key::for_compiler(gpu, &[id, text], &compiler(name));
        let base = key("a", "bc", "13.0");
        assert_eq!(base, key("a", "bc", "13.0"));
        assert_ne!(base, key("ab", "c", "13.0"));
        assert_ne!(base, key("a", "bd", "13.0"));
        assert_ne!(base, key("a", "bc", "13.1"));
        let other = Compiler {
            options: &["-O2"],
            ..compiler("13.0")
        };
        assert_ne!(base, Key::for_compiler(gpu, &["a", "bc"], &other));
        let simulated = Target::Simulator;
        assert_ne!(
            base,
            Key::for_compiler(simulated, &["a", "bc"], &compiler("13.0"))
        );
    }
}
