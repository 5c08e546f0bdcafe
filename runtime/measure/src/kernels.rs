//! [`Kernels`]: kernels of a CUDA source beside the kernels of mkernel.

use crate::Failure;
use mkernel::cudarc::driver::{CudaFunction, CudaModule, CudaStream, sys};
use mkernel::cudarc::nvrtc::Ptx;
use mkernel_compile::{CudaSource, Store};
use mkernel_spec::{Arch, Backend};
use std::sync::Arc;

/// The kernels of a CUDA source, loaded on one GPU.
pub struct Kernels(Arc<CudaModule>);

impl Kernels {
    /// Compiles the source, or loads the kernels from the cache, for the GPU of `stream`. The identifier names the source in
    /// errors.
    ///
    /// # Errors
    /// The source cannot be compiled or loaded.
    pub fn new(stream: &CudaStream, id: &str, text: &str) -> Result<Self, Failure> {
        let cubin = Store::from_env()?.get_or_build(&source(id, text))?;
        let module = stream.context().load_module(Ptx::from_binary(cubin.bytes));
        Ok(Self(module?))
    }

    /// Returns a kernel.
    ///
    /// # Errors
    /// The source has no kernel of this name, or the driver cannot load it.
    pub fn get(&self, name: &str) -> Result<CudaFunction, Failure> {
        let function = self.0.load_function(name)?;
        // The function is loaded now. Lazy loading would wait for the GPU, which may be running a kernel that waits for a later
        // launch.
        // SAFETY: the function belongs to the loaded module.
        unsafe { sys::cuFuncLoad(function.cu_function()) }.result()?;
        Ok(function)
    }
}

fn source(id: &str, text: &str) -> CudaSource {
    CudaSource {
        id: id.into(),
        arch: Arch::Sm90a,
        backend: Backend::Nvrtc,
        text: text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::source;
    use crate::waits::KERNELS;
    use mkernel_compile::Store;

    /// This test needs libnvrtc.
    #[test]
    fn the_kernels_that_wait_compile() {
        let store = Store::from_env().expect("a cache");
        let cubin = store.get_or_build(&source("waits", KERNELS));
        assert!(!cubin.expect("compiles").bytes.is_empty());
    }
}
