//! [`Buffer`]: the memory of a result.

use crate::lab::Failure;
use mkernel::cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DeviceRepr};
use mkernel::operands::Element;
use mkernel::{Communicator, Operand, Operator, SymmetricSlice};
use std::sync::Arc;

/// The memory of a result: in symmetric memory if the operator wants it there.
pub enum Buffer<E: 'static> {
    /// Memory of its own.
    Slice(CudaSlice<E>),
    /// A tensor in symmetric memory.
    Symmetric(SymmetricSlice<E>),
}

/// Returns whether an operand of this operator is in symmetric memory.
pub fn is_symmetric(operator: &Operator, operand: Operand) -> bool {
    let mut specs = operator.plan().operands().iter();
    specs.any(|spec| spec.operand == operand && spec.symmetric)
}

impl<E: Element + DeviceRepr> Buffer<E> {
    /// Allocates memory and uploads the values. If the memory is symmetric, all ranks must call this with equal numbers
    /// of values.
    ///
    /// # Errors
    /// The memory cannot be allocated.
    pub fn upload(
        ranks: &Communicator,
        stream: &Arc<CudaStream>,
        is_symmetric: bool,
        values: &[E],
    ) -> Result<Self, Failure> {
        if !is_symmetric {
            return Ok(Self::Slice(stream.clone_htod(values)?));
        }
        let mut tensor = ranks.alloc(stream, values.len())?;
        stream.memcpy_htod(values, &mut tensor)?;
        Ok(Self::Symmetric(tensor))
    }

    /// Returns the whole buffer.
    pub fn view(&self) -> CudaView<'_, E> {
        match self {
            Self::Slice(slice) => slice.as_view(),
            Self::Symmetric(tensor) => tensor.as_view(),
        }
    }

    /// Returns the whole buffer, to be written.
    pub fn view_mut(&mut self) -> CudaViewMut<'_, E> {
        match self {
            Self::Slice(slice) => slice.as_view_mut(),
            Self::Symmetric(tensor) => tensor.as_view_mut(),
        }
    }
}

/// An operand that launched calls read: their own memory, or one tensor in symmetric memory that they use in turn. It is written
/// again behind each call, so a call may end only when nothing reads it any more.
pub(super) struct SharedOperand<E: 'static>(Option<SymmetricSlice<E>>);

impl<E: Element + DeviceRepr> SharedOperand<E> {
    /// Allocates the tensor if the operator wants the operand there. All ranks must call this.
    pub fn new(
        ranks: &Communicator,
        stream: &Arc<CudaStream>,
        operator: &Operator,
        operand: Operand,
    ) -> Result<Self, Failure> {
        let mut specs = operator.plan().operands().iter();
        let spec = specs.find(|spec| spec.operand == operand && spec.symmetric);
        // The tensor has the same length on all ranks, and the first rank has the most rows.
        let elems = spec.map(|spec| spec.rows.on(0) * spec.cols);
        let tensor = elems.map(|elems| ranks.alloc(stream, elems as usize));
        Ok(Self(tensor.transpose()?))
    }

    /// Returns memory with these values for the next call.
    pub fn with<'a>(
        &'a mut self,
        stream: &Arc<CudaStream>,
        values: &'a CudaSlice<E>,
    ) -> Result<CudaView<'a, E>, Failure> {
        let Some(tensor) = &mut self.0 else {
            return Ok(values.as_view());
        };
        let mut room = tensor.as_view_mut();
        stream.memcpy_dtod(values, &mut room.slice_mut(..values.len()))?;
        Ok(tensor.as_view())
    }
}

/// The result of launched calls: their own memory, or one tensor in symmetric memory that they use in turn. So each call
/// finds that tensor in use by the copies around the others.
pub(super) struct SharedResult<E: 'static>(Option<SymmetricSlice<E>>);

impl<E: Element + DeviceRepr> SharedResult<E> {
    /// Allocates the tensor if `is_symmetric`. All ranks must then call this with equal numbers of elements.
    pub fn new(
        ranks: &Communicator,
        stream: &Arc<CudaStream>,
        is_symmetric: bool,
        elems: usize,
    ) -> Result<Self, Failure> {
        let tensor = is_symmetric.then(|| ranks.alloc(stream, elems));
        Ok(Self(tensor.transpose()?))
    }

    /// Calls `launch` with the memory to which the call writes. The call finds `result` there, and its own result goes to
    /// `result` in the end.
    pub fn launch(
        &mut self,
        stream: &Arc<CudaStream>,
        result: &mut CudaViewMut<'_, E>,
        launch: impl FnOnce(&mut CudaViewMut<'_, E>) -> Result<(), mkernel::Error>,
    ) -> Result<(), Failure> {
        let Some(tensor) = &mut self.0 else {
            return Ok(launch(result)?);
        };
        stream.memcpy_dtod(result, tensor)?;
        launch(&mut tensor.as_view_mut())?;
        Ok(stream.memcpy_dtod(tensor, result)?)
    }
}
