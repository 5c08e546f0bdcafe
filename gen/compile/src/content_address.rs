//! [`Key::of`]: the texts and options that a kernel's key hashes.

use crate::compiler::Compiler;
use crate::key::{Key, SCHEMA, hash_parts};
use crate::source::CudaSource;
use crate::templates::headers;
use mkernel_spec::{Arch, Backend};

impl Key {
    /// The key of `source` and of the compiler of its backend. For GPUs the compiler is the pinned NVRTC, or with
    /// `MKERNEL_NVRTC_ANY=1` the NVRTC that is found. For simulated GPUs it is the host's C++ compiler.
    #[must_use]
    pub fn of(source: &CudaSource) -> Self {
        Self::for_parts(source.arch, source.backend, &[&source.id, &source.text])
    }

    /// The key of a kernel for `arch` and `backend` that is determined by `parts` and the headers.
    pub(crate) fn for_parts<T: AsRef<str>>(arch: Arch, backend: Backend, parts: &[T]) -> Self {
        Self::for_compiler(arch, backend, parts, &Compiler::of(arch, backend))
    }

    fn for_compiler<T: AsRef<str>>(
        arch: Arch,
        backend: Backend,
        parts: &[T],
        compiler: &Compiler,
    ) -> Self {
        let start = format!(
            "mkernel schema {SCHEMA}, {arch}, {backend:?}, {}",
            compiler.name
        );
        let headers = headers(backend)
            .iter()
            .flat_map(|&(name, text)| [name, text]);
        let before = [&*start]
            .into_iter()
            .chain(compiler.options.iter().map(String::as_str));
        Self::from_digest(hash_parts(
            before.chain(headers).chain(parts.iter().map(AsRef::as_ref)),
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
            options: vec!["-O1".to_owned()],
        };
        let (arch, gpu) = (Arch::Sm90a, Backend::Nvrtc);
        let key = |id, text, name| Key::for_compiler(arch, gpu, &[id, text], &compiler(name));
        let base = key("a", "bc", "13.0");
        assert_eq!(base, key("a", "bc", "13.0"));
        assert_ne!(base, key("ab", "c", "13.0"));
        assert_ne!(base, key("a", "bd", "13.0"));
        assert_ne!(base, key("a", "bc", "13.1"));
        let other = Compiler {
            options: vec!["-O2".to_owned()],
            ..compiler("13.0")
        };
        assert_ne!(base, Key::for_compiler(arch, gpu, &["a", "bc"], &other));
        let simulated = Backend::HostCxx;
        assert_ne!(
            base,
            Key::for_compiler(arch, simulated, &["a", "bc"], &compiler("13.0"))
        );
    }
}
