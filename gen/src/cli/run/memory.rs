//! [`Memory`]: the device memory of an operand.

use mkernel::cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DeviceRepr, DriverError};
use mkernel::operands::Element;
use mkernel::spec::abi::{Operand, OperandSpec};
use mkernel::{Call, Communicator, Error, SymmetricSlice};
use std::sync::Arc;

/// The device memory of an operand.
pub enum Memory<E: 'static> {
    Slice(CudaSlice<E>),
    Symmetric(SymmetricSlice<E>),
}

impl<E: Element + DeviceRepr + Copy> Memory<E> {
    /// Copies the values of an operand to the device. Allocations cannot be empty, so an empty one gets the element `filler`,
    /// and so does the rest of a tensor in symmetric memory. If the operand is there, all ranks must call this.
    pub fn upload(
        ranks: &Communicator,
        stream: &Arc<CudaStream>,
        spec: &OperandSpec,
        values: &[E],
        filler: E,
    ) -> Result<Self, Error> {
        if !spec.symmetric {
            let values = if values.is_empty() { &[filler] } else { values };
            let slice = stream.clone_htod(values);
            return slice.map(Self::Slice).map_err(cuda("clone_htod"));
        }
        // The tensor has the same length on all ranks. The first rank has the most rows.
        let elems = (spec.rows.on(0) * spec.cols).max(1) as usize;
        let mut values = values.to_vec();
        values.resize(elems, filler);
        let mut tensor = ranks.alloc(stream, elems)?;
        let copied = stream.memcpy_htod(&values, &mut tensor);
        copied.map_err(cuda("memcpy_htod"))?;
        Ok(Self::Symmetric(tensor))
    }

    /// Returns memory for an operand whose elements are all `value`. If the operand is in symmetric memory, all ranks must call
    /// this.
    pub fn filled(
        ranks: &Communicator,
        stream: &Arc<CudaStream>,
        spec: &OperandSpec,
        elems: usize,
        value: E,
    ) -> Result<Self, Error> {
        Self::upload(ranks, stream, spec, &vec![value; elems], value)
    }

    /// Adds the memory to `call` as an operand that the kernel writes.
    pub fn written_by<'a>(&'a mut self, call: Call<'a>, operand: Operand) -> Call<'a> {
        match self {
            Self::Slice(slice) => call.write(operand, slice),
            Self::Symmetric(tensor) => call.write(operand, tensor),
        }
    }

    /// Adds the memory to `call` as an operand that the kernel reads.
    pub fn read_by<'a>(&'a self, call: Call<'a>, operand: Operand) -> Call<'a> {
        match self {
            Self::Slice(slice) => call.read(operand, slice),
            Self::Symmetric(tensor) => call.read(operand, tensor),
        }
    }

    /// The address of the first element, and the bytes of all elements.
    pub fn span(&self, stream: &CudaStream) -> (u64, u64) {
        let (address, elems) = match self {
            Self::Slice(slice) => (slice.device_ptr(stream).0, slice.len()),
            Self::Symmetric(tensor) => (tensor.device_ptr(stream).0, tensor.len()),
        };
        (address, (elems * size_of::<E>()) as u64)
    }

    /// Copies the elements to the host.
    pub fn download(&self, stream: &Arc<CudaStream>) -> Result<Vec<E>, Error> {
        let values = match self {
            Self::Slice(slice) => stream.clone_dtoh(slice),
            Self::Symmetric(tensor) => stream.clone_dtoh(tensor),
        };
        values.map_err(cuda("clone_dtoh"))
    }
}

/// Converts an error of a driver call.
fn cuda(call: &'static str) -> impl Fn(DriverError) -> Error {
    move |source| Error::Cuda { call, source }
}
