//! Allocates tensors in the symmetric memory, on all ranks together.

use crate::bootstrap::Description;
use crate::driver::{self, Uncaptured};
use crate::error::{CallError, Error};
use crate::heap::{BlockKind, Heap, Request, ensure_same_places};
use crate::launch::slice_types::Element;
use crate::shared::Shared;
use crate::symmetric_slice::{Memory, SymmetricSlice};
use cudarc::driver::CudaStream;
use std::sync::Arc;

/// An upper limit of sizes in bytes, which is more than any GPU has. Sums of sizes below this limit do not overflow.
const MAX_BYTES: u64 = 1 << 60;

/// Allocates a tensor. All ranks must call this.
pub(crate) fn alloc<T: Element>(
    shared: &Shared,
    heap: &mut Heap,
    stream: &Arc<CudaStream>,
    elems: usize,
) -> Result<SymmetricSlice<T>, Error> {
    // Another thread may be capturing a stream of its own, which must not be affected.
    let _uncaptured = Uncaptured::new();
    let timeout = shared.host_timeout();
    let mut ranks = shared.ranks();
    let request = shared
        .ensure_usable()
        .and_then(|()| check_stream(shared, stream));
    let request = request.map(|()| {
        let request = format!("a tensor of {elems} {} elements", T::DTYPE.name());
        Request {
            value: (),
            bytes: request.into_bytes(),
            number: 0,
        }
    });
    heap.agree(
        &mut ranks,
        "requesting a tensor",
        request,
        &Description::TEXT,
        timeout,
    )?;
    // No GPU has as much memory as the limit, so the driver refuses it.
    let bytes = (elems as u64).saturating_mul(size_of::<T>() as u64);
    let block = heap.place(shared, &mut ranks, BlockKind::Tensor, bytes.min(MAX_BYTES))?;
    let placed = block.zero(shared).and_then(|()| {
        if let Some(host) = &shared.simulated {
            host.name_tensor(block.own(shared), bytes);
        }
        let place = block.describe().into_bytes();
        Ok((Memory::new(shared, block, stream, elems)?, place))
    });
    // This step is also a barrier: after it, the tensors of all ranks are zero.
    let (memory, places) = ranks.agree("placing a tensor", placed, timeout)?;
    ensure_same_places(&places)?;
    Ok(SymmetricSlice::new(shared, memory))
}

pub(crate) fn check_stream(shared: &Shared, stream: &CudaStream) -> Result<(), Error> {
    let (given, expected) = (stream.context(), &shared.ctx);
    if given != expected {
        return Err(Error::Call(CallError::WrongDevice {
            given: given.ordinal(),
            expected: expected.ordinal(),
        }));
    }
    driver::bind(expected)
}
