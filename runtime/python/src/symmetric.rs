//! [`SymmetricMemory`]: memory at one offset on all ranks.

use crate::detached::Detached;
use mkernel::SymmetricSlice;
use mkernel::float8::F8E4M3;
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory at one offset on all ranks, which is freed when the object is dropped.
#[pyclass(frozen, module = "mkernel._native")]
pub struct SymmetricMemory {
    slice: Detached<SymmetricSlice<F8E4M3>>,
    address: u64,
    /// The tensor of the host that stands for the memory of a simulated GPU, and where it is known.
    host: Option<(u64, Arc<HostTensors>)>,
}

impl SymmetricMemory {
    pub fn new(
        (slice, address): (SymmetricSlice<F8E4M3>, u64),
        host: Option<(u64, Arc<HostTensors>)>,
    ) -> Self {
        if let Some((host, tensors)) = &host {
            tensors.known().insert(*host, (slice.len(), address));
        }
        Self {
            slice: Detached::new(slice),
            address,
            host,
        }
    }
}

#[pymethods]
impl SymmetricMemory {
    /// The address on this rank's GPU.
    #[getter]
    fn address(&self) -> u64 {
        self.address
    }

    fn __len__(&self) -> usize {
        self.slice.get().map_or(0, SymmetricSlice::len)
    }
}

impl Drop for SymmetricMemory {
    fn drop(&mut self) {
        if let Some((host, tensors)) = &self.host {
            tensors.known().remove(host);
        }
    }
}

/// Tensors of the host that stand for symmetric memory of a simulated GPU: their sizes in bytes and addresses on the GPU, by
/// address.
#[derive(Default)]
pub struct HostTensors(Mutex<BTreeMap<u64, (usize, u64)>>);

impl HostTensors {
    fn known(&self) -> MutexGuard<'_, BTreeMap<u64, (usize, u64)>> {
        // Nothing panics while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the address on the GPU of a part of a tensor that stands for symmetric memory.
    pub fn on_gpu(&self, address: u64, bytes: usize) -> Option<u64> {
        let known = self.known();
        let (first, (size, on_gpu)) = known.range(..=address).next_back()?;
        let offset = address - first;
        (offset + bytes as u64 <= *size as u64).then(|| on_gpu + offset)
    }
}
