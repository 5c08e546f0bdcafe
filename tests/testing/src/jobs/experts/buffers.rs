//! The operands of a call of a layer of experts, on the host and in device memory.

use super::layer::Layer;
use crate::jobs::simulated::ResultElement;
use crate::lab::Failure;
use mkernel::Operand;
use mkernel::cudarc::driver::sys::CUstreamCaptureStatus;
use mkernel::cudarc::driver::{CudaSlice, CudaStream, DriverError};
use mkernel::float8::F8E4M3;
use mkernel::spec::Op;
use mkernel::spec::plan::SCALE_BLOCK;
use mkernel::{Call, Error, Operator};
use std::sync::Arc;

/// The results of a call on one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Outputs {
    /// The experts of tokens, which some kernels choose.
    pub topk_ids: Vec<i32>,
    /// The weights of these experts.
    pub topk_weights: Vec<f32>,
    pub row_indices: Vec<i32>,
    pub expert_offsets: Vec<i32>,
    pub rows: Vec<f32>,
    pub sums: Vec<f32>,
}

/// The contents of the operands before a call.
pub struct OperandValues {
    pub tokens: Vec<f32>,
    /// The scales of tokens; empty if tokens have no scales.
    pub a_scales: Vec<f32>,
    /// The router's logits; empty if the caller passes the experts of tokens.
    pub logits: Vec<f32>,
    pub num_tokens: [i32; 1],
    pub topk_ids: Vec<i32>,
    pub topk_weights: Vec<f32>,
    pub rows: Vec<f32>,
    pub expert_offsets: Vec<i32>,
    pub row_indices: Vec<i32>,
    pub sums: Vec<f32>,
}

/// The operands of a call in device memory.
pub struct Buffers<E: ResultElement> {
    tokens: CudaSlice<E>,
    a_scales: Option<CudaSlice<f32>>,
    logits: Option<CudaSlice<E::OfResults>>,
    num_tokens: CudaSlice<i32>,
    topk_ids: CudaSlice<i32>,
    topk_weights: CudaSlice<f32>,
    rows: CudaSlice<E::OfResults>,
    quantised: Option<QuantisedRows>,
    expert_offsets: CudaSlice<i32>,
    row_indices: CudaSlice<i32>,
    sums: CudaSlice<E::OfResults>,
}

/// Rows of e4m3 in device memory. An element times its scale is NaN unless both have been written.
struct QuantisedRows {
    elements: CudaSlice<F8E4M3>,
    scales: CudaSlice<f32>,
    cols: usize,
}

impl QuantisedRows {
    fn new(stream: &Arc<CudaStream>, layer: &Layer, elems: usize) -> Result<Self, DriverError> {
        let cols = layer.intermediate as usize;
        let scales = elems / cols * cols.div_ceil(SCALE_BLOCK as usize);
        Ok(Self {
            elements: stream.clone_htod(&vec![F8E4M3::ONE; elems])?,
            scales: stream.clone_htod(&vec![f32::NAN; scales])?,
            cols,
        })
    }

    /// Overwrites the elements and the scales.
    fn fill(&mut self, stream: &Arc<CudaStream>) -> Result<(), DriverError> {
        stream.memcpy_htod(&vec![F8E4M3::ONE; self.elements.len()], &mut self.elements)?;
        stream.memcpy_htod(&vec![f32::NAN; self.scales.len()], &mut self.scales)
    }

    /// Downloads the elements times their scales.
    fn values(&self, stream: &Arc<CudaStream>) -> Result<Vec<f32>, DriverError> {
        let scales = stream.clone_dtoh(&self.scales)?;
        let elements = stream.clone_dtoh(&self.elements)?;
        let blocks = elements
            .chunks(self.cols)
            .flat_map(|row| row.chunks(SCALE_BLOCK as usize));
        let values = blocks
            .zip(scales)
            .flat_map(|(block, scale)| block.iter().map(move |x| x.to_f32() * scale));
        Ok(values.collect())
    }
}

/// The weights of a rank's experts in device memory, and the scales of the weights, if any.
pub struct Weights<E> {
    elements: CudaSlice<E>,
    down: Option<CudaSlice<E>>,
    scales: Option<CudaSlice<f32>>,
    down_scales: Option<CudaSlice<f32>>,
}

impl<E: ResultElement> Weights<E> {
    /// Uploads the weights of a rank.
    pub fn new(stream: &Arc<CudaStream>, layer: &Layer, rank: usize) -> Result<Self, DriverError> {
        Ok(Self {
            elements: stream.clone_htod(&elements::<E>(&layer.weights(rank)))?,
            down: match layer.has_down() {
                true => Some(stream.clone_htod(&elements::<E>(&layer.down_weights(rank)))?),
                false => None,
            },
            scales: upload_scales(stream, &layer.weight_scales(rank))?,
            down_scales: upload_scales(stream, &layer.down_scales(rank))?,
        })
    }
}

impl<E: ResultElement> Buffers<E> {
    /// Allocates the operands and uploads their contents.
    pub fn new(
        stream: &Arc<CudaStream>,
        layer: &Layer,
        values: &OperandValues,
    ) -> Result<Self, DriverError> {
        let quantised = || QuantisedRows::new(stream, layer, values.rows.len());
        Ok(Self {
            quantised: layer.quantises.then(quantised).transpose()?,
            tokens: stream.clone_htod(&elements::<E>(&values.tokens))?,
            a_scales: upload_scales(stream, &values.a_scales)?,
            logits: match values.logits.as_slice() {
                [] => None,
                logits => Some(stream.clone_htod(&elements::<E::OfResults>(logits))?),
            },
            num_tokens: stream.clone_htod(&values.num_tokens)?,
            topk_ids: stream.clone_htod(&values.topk_ids)?,
            topk_weights: stream.clone_htod(&values.topk_weights)?,
            rows: stream.clone_htod(&elements::<E::OfResults>(&values.rows))?,
            expert_offsets: stream.clone_htod(&values.expert_offsets)?,
            row_indices: stream.clone_htod(&values.row_indices)?,
            sums: stream.clone_htod(&elements::<E::OfResults>(&values.sums))?,
        })
    }

    /// Overwrites the contents of the operands.
    pub fn fill(
        &mut self,
        stream: &Arc<CudaStream>,
        values: &OperandValues,
    ) -> Result<(), DriverError> {
        stream.memcpy_htod(&elements::<E>(&values.tokens), &mut self.tokens)?;
        if let Some(scales) = &mut self.a_scales {
            stream.memcpy_htod(&values.a_scales, scales)?;
        }
        if let Some(logits) = &mut self.logits {
            stream.memcpy_htod(&elements::<E::OfResults>(&values.logits), logits)?;
        }
        stream.memcpy_htod(&values.num_tokens, &mut self.num_tokens)?;
        stream.memcpy_htod(&values.topk_ids, &mut self.topk_ids)?;
        stream.memcpy_htod(&values.topk_weights, &mut self.topk_weights)?;
        stream.memcpy_htod(&elements::<E::OfResults>(&values.rows), &mut self.rows)?;
        if let Some(rows) = &mut self.quantised {
            rows.fill(stream)?;
        }
        stream.memcpy_htod(&values.expert_offsets, &mut self.expert_offsets)?;
        stream.memcpy_htod(&values.row_indices, &mut self.row_indices)?;
        stream.memcpy_htod(&elements::<E::OfResults>(&values.sums), &mut self.sums)
    }

    /// Enqueues a call of `dispatch_gemm` or `moe_layer`.
    pub fn dispatch(
        &mut self,
        stream: &Arc<CudaStream>,
        operator: &Operator,
        weights: &Weights<E>,
    ) -> Result<(), Error> {
        let is_whole = operator.plan().spec.op() == Op::MoeLayer;
        let call = operator
            .call(stream)
            .read(Operand::Tokens, &self.tokens)
            .read(Operand::NumTokens, &self.num_tokens)
            .read(Operand::B, &weights.elements);
        let call = match &self.logits {
            Some(logits) => call
                .read(Operand::Logits, logits)
                .write(Operand::TopkIds, &mut self.topk_ids)
                .write(Operand::TopkWeights, &mut self.topk_weights),
            None if is_whole => call
                .read(Operand::TopkIds, &self.topk_ids)
                .read(Operand::TopkWeights, &self.topk_weights),
            None => call.read(Operand::TopkIds, &self.topk_ids),
        };
        let call = match (&self.a_scales, &weights.scales) {
            (Some(of_tokens), Some(of_weights)) => call
                .read(Operand::AScales, of_tokens)
                .read(Operand::BScales, of_weights),
            _ => call,
        };
        if let (true, Some(down)) = (is_whole, &weights.down) {
            let call = call.read(Operand::Down, down);
            let call = match &weights.down_scales {
                Some(scales) => call.read(Operand::DownScales, scales),
                None => call,
            };
            return enqueue(call.write(Operand::C, &mut self.sums), stream);
        }
        let call = match &mut self.quantised {
            Some(rows) => call
                .write(Operand::C, &mut rows.elements)
                .write(Operand::CScales, &mut rows.scales),
            None => call.write(Operand::C, &mut self.rows),
        };
        let call = call
            .write(Operand::ExpertOffsets, &mut self.expert_offsets)
            .write(Operand::RowIndices, &mut self.row_indices);
        enqueue(call, stream)
    }

    /// Overwrites the row index of an entry with an index that no row has.
    pub fn invalidate_row_index(
        &mut self,
        stream: &Arc<CudaStream>,
        entry: usize,
    ) -> Result<(), DriverError> {
        let mut index = self.row_indices.slice_mut(entry..entry + 1);
        stream.memcpy_htod(&[i32::MAX], &mut index)
    }

    /// Overwrites the row index of the second entry with the row index of the first entry.
    pub fn repeat_row_index(
        &mut self,
        stream: &Arc<CudaStream>,
        [first, second]: [usize; 2],
    ) -> Result<(), DriverError> {
        let first = stream.clone_dtoh(&self.row_indices.slice(first..first + 1))?;
        let mut index = self.row_indices.slice_mut(second..second + 1);
        stream.memcpy_htod(&first, &mut index)
    }

    /// Enqueues a call of `combine` or `gemm_combine`, if the layer needs one.
    pub fn combine(
        &mut self,
        stream: &Arc<CudaStream>,
        operator: &Operator,
        weights: &Weights<E>,
    ) -> Result<(), Error> {
        match operator.plan().spec.op() {
            Op::GemmCombine => return self.gemm_combine(stream, operator, weights),
            Op::Combine if self.quantised.is_none() => {}
            _ => return Ok(()),
        }
        let call = operator
            .call(stream)
            .read(Operand::Rows, &self.rows)
            .read(Operand::NumTokens, &self.num_tokens)
            .read(Operand::RowIndices, &self.row_indices)
            .read(Operand::TopkWeights, &self.topk_weights);
        enqueue(call.write(Operand::C, &mut self.sums), stream)
    }

    fn gemm_combine(
        &mut self,
        stream: &Arc<CudaStream>,
        operator: &Operator,
        weights: &Weights<E>,
    ) -> Result<(), Error> {
        let call = operator
            .call(stream)
            .read(Operand::ExpertOffsets, &self.expert_offsets)
            .read(Operand::NumTokens, &self.num_tokens)
            .read(Operand::RowIndices, &self.row_indices)
            .read(Operand::TopkWeights, &self.topk_weights);
        let call = match &weights.down {
            Some(down) => call.read(Operand::B, down),
            None => call,
        };
        let call = match (&self.quantised, &weights.down_scales) {
            (Some(rows), Some(of_weights)) => call
                .read(Operand::A, &rows.elements)
                .read(Operand::AScales, &rows.scales)
                .read(Operand::BScales, of_weights),
            _ => call.read(Operand::A, &self.rows),
        };
        enqueue(call.write(Operand::C, &mut self.sums), stream)
    }

    /// Downloads the results.
    pub fn outputs(&self, stream: &Arc<CudaStream>) -> Result<Outputs, Failure> {
        let floats = |slice: &CudaSlice<E::OfResults>| -> Result<Vec<f32>, DriverError> {
            let found = stream.clone_dtoh(slice)?;
            Ok(found.into_iter().map(Into::into).collect())
        };
        Ok(Outputs {
            topk_ids: stream.clone_dtoh(&self.topk_ids)?,
            topk_weights: stream.clone_dtoh(&self.topk_weights)?,
            row_indices: stream.clone_dtoh(&self.row_indices)?,
            expert_offsets: stream.clone_dtoh(&self.expert_offsets)?,
            rows: match &self.quantised {
                Some(rows) => rows.values(stream)?,
                None => floats(&self.rows)?,
            },
            sums: floats(&self.sums)?,
        })
    }
}

fn upload_scales(
    stream: &Arc<CudaStream>,
    scales: &[f32],
) -> Result<Option<CudaSlice<f32>>, DriverError> {
    match scales {
        [] => Ok(None),
        scales => stream.clone_htod(scales).map(Some),
    }
}

/// Rounds numbers to elements.
fn elements<E: ResultElement>(values: &[f32]) -> Vec<E> {
    values.iter().copied().map(E::of).collect()
}

/// Launches a call, or captures it if the stream is being captured.
fn enqueue(call: Call<'_>, stream: &CudaStream) -> Result<(), Error> {
    match stream.capture_status() {
        Ok(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE) => {
            // SAFETY: the buffers live until the last replay of the graph has ended, and the test uses one stream.
            unsafe { call.capture() }
        }
        _ => call.launch(),
    }
}
