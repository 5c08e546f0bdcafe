//! [`Heap`]: the symmetric memory of a communicator, which holds the workspaces of operators and the tensors of programs.
//!
//! The heap consists of extents. An extent is an allocation of the same size on each rank, which all ranks of a host
//! map, and which is registered once with each NIC. Blocks are placed in extents by a deterministic allocator that runs
//! identically on all ranks. An operator that fits in the heap therefore needs no allocation, no descriptor and no
//! exchange of addresses, and the heap grows rarely.
//!
//! The space of a block is used again when the block was dropped on all ranks. Ranks drop the block at different times, so they
//! exchange the numbers of dropped blocks when they next prepare an operator or allocate a tensor.

mod allocator;
mod contribution;

use crate::bootstrap::{Collective, Description, ensure_equal};
use crate::driver::DeviceMemory;
use crate::error::{DeviceError, Error};
use crate::fabric::endpoint::Fabric;
use crate::fabric::node_map::NodeMap;
use crate::fabric::transport::Transport;
use crate::range::Range;
use crate::shared::Shared;
use crate::stats::Stats;
use crate::symmetric::{OwnMemory, Symmetric};
use crate::tensors::Tensor;
pub(crate) use allocator::BlockKind;
use allocator::{Allocator, MAX_EXTENTS, Place};
use cudarc::driver::sys::CUresult;
use mkernel_spec::abi::MAX_RANKS;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The minimum size of an extent, in units of the driver's allocation granularity.
const LEAST_UNITS: u64 = 16;

/// The most blocks that ranks free in one step. This bounds the contributions to the step.
const MAX_DROPPED: usize = 1024;

type Dropped = Arc<Mutex<BTreeSet<u64>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every statement leaves the guarded value consistent, so a poisoned lock can still be used.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const OUT_OF_MEMORY: CUresult = CUresult::CUDA_ERROR_OUT_OF_MEMORY;

/// Checks that all ranks have placed a block at the same place. `places` are its [descriptions](Block::describe).
pub(crate) fn ensure_same_places(places: &[Vec<u8>]) -> Result<(), Error> {
    let places: Vec<&[u8]> = places.iter().map(Vec::as_slice).collect();
    ensure_equal(&places, &Description::TEXT)
}

/// The symmetric memory of a communicator, and the fabrics over which other nodes write this memory.
#[derive(Default)]
pub(crate) struct Heap {
    // Fabrics are dropped before the extents that they access.
    fabrics: Vec<Arc<Fabric>>,
    allocator: Allocator,
    extents: Vec<Symmetric>,
    dropped: Dropped,
}

/// A rank's request in a collective call that places a block.
pub(crate) struct Request<T> {
    pub value: T,
    /// Bytes that must be equal on all ranks.
    pub bytes: Vec<u8>,
    /// A number that may differ between the ranks.
    pub number: u32,
}

/// A zeroed range of the heap, at one place on all ranks. Nothing may access the range any more when this value is dropped.
pub(crate) struct Block {
    place: Place,
    extent: Symmetric,
    dropped: Dropped,
}

impl Heap {
    /// Begins a collective call that places a block: compares the requests of all ranks, and frees the blocks that all ranks
    /// have dropped. Returns the value of this rank's request, and the numbers of all ranks' requests.
    pub fn agree<T>(
        &mut self,
        ranks: &mut Collective,
        step: &'static str,
        request: Result<Request<T>, Error>,
        description: &Description,
        timeout: Duration,
    ) -> Result<(T, Vec<u32>), Error> {
        let contribution = request.map(|request| {
            let bytes = contribution::join(&request.bytes, request.number, &self.dropped());
            (request.value, bytes)
        });
        let (value, all) = ranks.agree(step, contribution, timeout)?;
        let parts: Vec<_> = all.iter().map(|bytes| contribution::split(bytes)).collect();
        let requests: Vec<&[u8]> = parts.iter().map(|part| part.request).collect();
        ensure_equal(&requests, description)?;
        self.reclaim(parts.iter().map(|part| part.dropped));
        Ok((value, parts.iter().map(|part| part.number).collect()))
    }

    /// Returns the numbers of the blocks that this rank has dropped.
    fn dropped(&self) -> Vec<u8> {
        let dropped = lock(&self.dropped);
        let first = dropped.iter().take(MAX_DROPPED);
        first.flat_map(|id| id.to_le_bytes()).collect()
    }

    /// Frees the blocks that all ranks have dropped. `contributions` are the results of [`dropped`](Self::dropped) on all
    /// ranks.
    fn reclaim<'a>(&mut self, contributions: impl Iterator<Item = &'a [u8]>) {
        let ids = |bytes: &[u8]| -> BTreeSet<u64> {
            let ids = bytes.as_chunks().0.iter();
            ids.map(|id| u64::from_le_bytes(*id)).collect()
        };
        let on_all = contributions
            .map(ids)
            .reduce(|all, theirs| &all & &theirs)
            .unwrap_or_default();
        let mut dropped = lock(&self.dropped);
        for id in on_all {
            dropped.remove(&id);
            self.allocator.free(id);
        }
    }

    /// Places a block of `bytes` bytes, and adds an extent if no extent has room for the block. This is a collective call, and
    /// all ranks must pass equal sizes. The block must be [zeroed](Block::zero) before another rank may access it.
    pub fn place(
        &mut self,
        shared: &Shared,
        ranks: &mut Collective,
        kind: BlockKind,
        bytes: u64,
    ) -> Result<Block, Error> {
        let _range = Range::step("place memory");
        let place = match self.allocator.place(kind, bytes) {
            Some(place) => place,
            None => {
                self.grow(shared, ranks, bytes)?;
                let placed = self.allocator.place(kind, bytes);
                placed.ok_or(Error::Aborted { cause: None })?
            }
        };
        Ok(Block {
            place,
            extent: self.extents[place.extent].clone(),
            dropped: self.dropped.clone(),
        })
    }

    /// Adds an extent that has room for a block of `bytes` bytes.
    fn grow(&mut self, shared: &Shared, ranks: &mut Collective, bytes: u64) -> Result<(), Error> {
        let timeout = shared.host_timeout();
        let allocated = self.allocate(shared, bytes).map(|memory| {
            let size = format!("an extent of {} bytes", memory.bytes());
            (memory, size.into_bytes())
        });
        let (memory, sizes) = ranks.agree("allocation of symmetric memory", allocated, timeout)?;
        let sizes: Vec<&[u8]> = sizes.iter().map(Vec::as_slice).collect();
        ensure_equal(&sizes, &Description::TEXT)?;
        let extent = memory.share(&shared.ctx, ranks, timeout)?;
        for fabric in &self.fabrics {
            if let Err(error) = fabric.share(shared, ranks, &extent) {
                // The numbers of extents and regions would differ from now on, so later operators get new fabrics.
                self.fabrics.clear();
                return Err(error);
            }
        }
        let (rank, bytes) = (shared.rank, extent.bytes());
        self.allocator.add_extent(bytes);
        self.extents.push(extent);
        tracing::debug!(
            rank,
            bytes,
            extents = self.extents.len(),
            "the heap has grown"
        );
        Ok(())
    }

    /// Allocates this rank's part of an extent.
    fn allocate(&self, shared: &Shared, bytes: u64) -> Result<OwnMemory, Error> {
        let extents = self.extents.len();
        if extents >= MAX_EXTENTS {
            return Err(Error::Device(DeviceError::HeapExtents { extents }));
        }
        let (ctx, stream, timeout) = (&shared.ctx, &shared.stream, shared.gpu_timeout());
        let for_nics = !matches!(shared.transport()?, Transport::Emulated { .. });
        let least_bytes = LEAST_UNITS * DeviceMemory::unit_bytes(ctx, for_nics)?;
        let bytes = self.allocator.extent_bytes_for(bytes, least_bytes);
        let allocated = match for_nics {
            true => OwnMemory::allocate_for_nics(ctx, stream, bytes, timeout),
            false => OwnMemory::allocate(ctx, stream, bytes, timeout),
        };
        allocated.map_err(|error| self.explain(error, bytes))
    }

    /// Returns [`DeviceError::HeapMemory`] if the GPU lacked memory for an extent of `bytes` bytes, and `error` otherwise.
    fn explain(&self, error: Error, bytes: u64) -> Error {
        match error {
            Error::Cuda { source, .. } if source.0 == OUT_OF_MEMORY => {
                let heap_bytes = self.allocator.stats().bytes;
                Error::Device(DeviceError::HeapMemory { bytes, heap_bytes })
            }
            error => error,
        }
    }

    /// Places a block that the other ranks do not place.
    #[cfg(test)]
    pub fn misplace(&mut self, bytes: u64) {
        self.allocator.place(BlockKind::Tensor, bytes);
    }

    pub fn stats(&self) -> Stats {
        Stats {
            heap: self.allocator.stats(),
            fabrics: self.fabrics.iter().map(|fabric| fabric.stats()).collect(),
        }
    }

    /// Sets the deadline of puts.
    pub fn set_deadline(&self, deadline: Duration) {
        for fabric in &self.fabrics {
            fabric.set_deadline(deadline);
        }
    }

    /// Returns the fabric between the given nodes. The first call connects the fabric. This is a collective call.
    pub fn fabric(
        &mut self,
        shared: &Shared,
        ranks: &mut Collective,
        node_map: &NodeMap,
        transport: &Transport,
    ) -> Result<Arc<Fabric>, Error> {
        if let Some(known) = self
            .fabrics
            .iter()
            .find(|fabric| fabric.connects(node_map, transport))
        {
            return Ok(known.clone());
        }
        let fabric = Fabric::connect(shared, ranks, node_map, transport)?;
        for extent in &self.extents {
            fabric.share(shared, ranks, extent)?;
        }
        let fabric = Arc::new(fabric);
        self.fabrics.push(fabric.clone());
        Ok(fabric)
    }
}

impl Block {
    /// Returns the number of the block's extent, which is also the number of its region in fabrics.
    pub fn region(&self) -> u32 {
        self.place.extent as u32
    }

    /// Returns the offset of the block in its extent.
    pub fn offset_bytes(&self) -> u64 {
        self.place.offset_bytes
    }

    /// Returns the place of the block in the form of a tensor.
    pub fn tensor(&self) -> Tensor {
        Tensor {
            addresses: self.addresses(),
            bytes: self.place.bytes,
            extent: self.region(),
            offset_bytes: self.offset_bytes(),
        }
    }

    /// Returns the addresses in this process of the block on all ranks of this host, by local rank. Unused entries are 0.
    pub fn addresses(&self) -> [u64; MAX_RANKS] {
        let of = |address| match address {
            0 => 0,
            start => start + self.place.offset_bytes,
        };
        self.extent.addresses().map(of)
    }

    /// Returns the address of this rank's block.
    pub fn own(&self, shared: &Shared) -> u64 {
        self.addresses()[shared.cluster.hosts.local_rank(shared.rank)]
    }

    /// Returns a description that must be equal on all ranks.
    pub fn describe(&self) -> String {
        let Place {
            kind,
            extent,
            offset_bytes,
            bytes,
            ..
        } = self.place;
        let name = match kind {
            BlockKind::Workspace => "workspace",
            BlockKind::Tensor => "tensor",
        };
        format!("a {name} of {bytes} bytes at offset {offset_bytes} of extent {extent}")
    }

    /// Zeroes this rank's memory, and waits until the memory is zeroed.
    pub fn zero(&self, shared: &Shared) -> Result<(), Error> {
        if self.place.is_fresh {
            return Ok(());
        }
        let own = self.own(shared);
        // SAFETY: the range belongs to this block, which no kernel uses yet: all ranks have dropped the blocks that were
        // there before. The extent stays mapped until the stream is done; after a timeout it is leaked.
        unsafe { shared.stream.zero(own, self.place.bytes as usize)? };
        shared
            .stream
            .wait(shared.gpu_timeout())
            .inspect_err(|_| std::mem::forget(self.extent.clone()))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        lock(&self.dropped).insert(self.place.id);
    }
}
