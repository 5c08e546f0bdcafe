//! [`CallMemory`]: the operands of a call in device memory.

use super::inputs::Inputs;
use super::tensor::Tensor;
use super::verdict::Results;
use mkernel::cudarc::driver::CudaStream;
use mkernel::{Communicator, Error, Operand, Operator};
use std::sync::Arc;

/// The place of an operand in device memory.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub operand: Operand,
    pub address: u64,
    pub bytes: u64,
}

/// The operands of a call on one rank, in device memory.
pub struct CallMemory {
    rows: Option<u64>,
    inputs: Vec<(Operand, Tensor)>,
    results: Vec<(Operand, Tensor)>,
}

impl CallMemory {
    /// Uploads the operands that the call reads, and poisons its results. If operands are in symmetric memory, all ranks must call this.
    pub fn new(
        ranks: &Communicator,
        stream: &Arc<CudaStream>,
        call: &Inputs,
    ) -> Result<Self, Error> {
        let rank = ranks.rank();
        let (mut inputs, mut results) = (Vec::new(), Vec::new());
        for spec in &call.operands {
            let operand = spec.operand;
            if spec.written {
                let elems = call.elems(operand, rank);
                let tensor = Tensor::poisoned(ranks, stream, spec, elems)?;
                results.push((operand, tensor));
            } else {
                inputs.push((
                    operand,
                    Tensor::input(ranks, stream, call, spec, rank as usize)?,
                ));
            }
        }
        Ok(Self {
            rows: call.rows,
            inputs,
            results,
        })
    }

    /// Enqueues the call.
    pub fn launch(&mut self, operator: &Operator, stream: &Arc<CudaStream>) -> Result<(), Error> {
        let mut call = operator.call(stream);
        if let Some(rows) = self.rows {
            call = call.rows(rows);
        }
        for (operand, tensor) in &self.inputs {
            call = tensor.read_by(call, *operand);
        }
        for (operand, tensor) in &mut self.results {
            call = tensor.written_by(call, *operand);
        }
        call.launch()
    }

    /// Copies the results to the host.
    pub fn download(&self, stream: &Arc<CudaStream>) -> Result<Results, Error> {
        let results = self.results.iter();
        results
            .map(|(operand, tensor)| Ok((operand.name(), tensor.download(stream)?)))
            .collect()
    }

    /// The place of each operand.
    pub fn spans(&self, stream: &CudaStream) -> Vec<Span> {
        let all = self.inputs.iter().chain(&self.results);
        let span = |(operand, tensor): &(Operand, Tensor)| {
            let (address, bytes) = tensor.span(stream);
            Span {
                operand: *operand,
                address,
                bytes,
            }
        };
        all.map(span).collect()
    }
}
