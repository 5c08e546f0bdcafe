//! Operands of a layer, in memory of a GPU.

use mkernel::cudarc::driver::sys::CUstreamCaptureStatus;
use mkernel::cudarc::driver::{CudaSlice, CudaStream, DriverError};
use mkernel::half::bf16;
use mkernel::spec::abi::Operand;
use mkernel::{Call, Error, Operator};
use std::sync::Arc;

/// What a rank gets of a call: places, offsets, rows, sums.
#[derive(Clone, Debug, PartialEq)]
pub struct Got {
    pub places: Vec<i32>,
    pub offsets: Vec<i32>,
    pub rows: Vec<f32>,
    pub sums: Vec<f32>,
}

/// What a call's operands hold before it.
pub struct Values {
    pub tokens: Vec<bf16>,
    pub count: [i32; 1],
    pub ids: Vec<i32>,
    pub gates: Vec<f32>,
    pub rows: Vec<bf16>,
    pub offsets: Vec<i32>,
    pub places: Vec<i32>,
    pub sums: Vec<bf16>,
}

/// Operands of a call.
pub struct Buffers {
    tokens: CudaSlice<bf16>,
    count: CudaSlice<i32>,
    ids: CudaSlice<i32>,
    gates: CudaSlice<f32>,
    rows: CudaSlice<bf16>,
    offsets: CudaSlice<i32>,
    places: CudaSlice<i32>,
    sums: CudaSlice<bf16>,
}

impl Buffers {
    pub fn new(stream: &Arc<CudaStream>, values: &Values) -> Result<Self, DriverError> {
        Ok(Self {
            tokens: stream.clone_htod(&values.tokens)?,
            count: stream.clone_htod(&values.count)?,
            ids: stream.clone_htod(&values.ids)?,
            gates: stream.clone_htod(&values.gates)?,
            rows: stream.clone_htod(&values.rows)?,
            offsets: stream.clone_htod(&values.offsets)?,
            places: stream.clone_htod(&values.places)?,
            sums: stream.clone_htod(&values.sums)?,
        })
    }

    pub fn fill(&mut self, stream: &Arc<CudaStream>, values: &Values) -> Result<(), DriverError> {
        stream.memcpy_htod(&values.tokens, &mut self.tokens)?;
        stream.memcpy_htod(&values.count, &mut self.count)?;
        stream.memcpy_htod(&values.ids, &mut self.ids)?;
        stream.memcpy_htod(&values.gates, &mut self.gates)?;
        stream.memcpy_htod(&values.rows, &mut self.rows)?;
        stream.memcpy_htod(&values.offsets, &mut self.offsets)?;
        stream.memcpy_htod(&values.places, &mut self.places)?;
        stream.memcpy_htod(&values.sums, &mut self.sums)
    }

    pub fn dispatch(
        &mut self,
        stream: &Arc<CudaStream>,
        operator: &Operator,
        weights: &CudaSlice<bf16>,
    ) -> Result<(), Error> {
        let call = operator
            .call(stream)
            .read(Operand::Tokens, &self.tokens)
            .read(Operand::NumTokens, &self.count)
            .read(Operand::TopkIds, &self.ids)
            .read(Operand::B, weights);
        let call = call
            .write(Operand::C, &mut self.rows)
            .write(Operand::ExpertOffsets, &mut self.offsets)
            .write(Operand::RowIndices, &mut self.places);
        enqueue(call, stream)
    }

    /// Makes the place of a token's choice one that no row has.
    pub fn spoil_place(
        &mut self,
        stream: &Arc<CudaStream>,
        choice: usize,
    ) -> Result<(), DriverError> {
        let mut place = self.places.slice_mut(choice..choice + 1);
        stream.memcpy_htod(&[i32::MAX], &mut place)
    }

    pub fn combine(&mut self, stream: &Arc<CudaStream>, operator: &Operator) -> Result<(), Error> {
        let call = operator
            .call(stream)
            .read(Operand::Rows, &self.rows)
            .read(Operand::NumTokens, &self.count)
            .read(Operand::RowIndices, &self.places)
            .read(Operand::TopkWeights, &self.gates);
        enqueue(call.write(Operand::C, &mut self.sums), stream)
    }

    pub fn got(&self, stream: &Arc<CudaStream>) -> Result<Got, Box<dyn std::error::Error>> {
        let floats = |slice: &CudaSlice<bf16>| -> Result<Vec<f32>, DriverError> {
            let found = stream.clone_dtoh(slice)?;
            Ok(found.into_iter().map(bf16::to_f32).collect())
        };
        Ok(Got {
            places: stream.clone_dtoh(&self.places)?,
            offsets: stream.clone_dtoh(&self.offsets)?,
            rows: floats(&self.rows)?,
            sums: floats(&self.sums)?,
        })
    }
}

/// Launches a call, or captures it.
fn enqueue(call: Call<'_>, stream: &CudaStream) -> Result<(), Error> {
    match stream.capture_status() {
        Ok(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE) => {
            // SAFETY: the buffers live until the graph's last replay is over, on the one stream of the test.
            unsafe { call.capture() }
        }
        _ => call.launch(),
    }
}
