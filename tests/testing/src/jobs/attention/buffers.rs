//! The operands of attention on a rank.

use super::reference::{CallData, Sharding};
use crate::jobs::simulated::ResultElement;
use crate::lab::Failure;
use mkernel::Operand;
use mkernel::Operator;
use mkernel::cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use std::sync::Arc;

/// The operands of a rank for one call, in device memory.
pub(super) struct Buffers<E> {
    /// Q, K and V.
    pub inputs: Vec<CudaSlice<E>>,
    pub o: CudaSlice<E>,
    pub lse: CudaSlice<f32>,
    /// The number of the rank's rows, over all batches and heads.
    pub rows: usize,
}

impl<E: ResultElement> Buffers<E> {
    /// Uploads the rank's shards of the inputs, and fills the results with a number that the call overwrites.
    pub(super) fn new(
        stream: &Arc<CudaStream>,
        sharding: Sharding,
        call: &CallData,
        rank: u32,
    ) -> Result<Self, Failure> {
        let mut inputs = Vec::new();
        for (whole, heads) in [
            (&call.q, sharding.shape.heads),
            (&call.k, sharding.shape.kv_heads),
            (&call.v, sharding.shape.kv_heads),
        ] {
            let own = sharding.shard(whole, heads, rank);
            let mut own: Vec<E> = own.into_iter().map(E::of).collect();
            own.resize(own.len().max(1), E::POISON); // An allocation cannot be empty.
            inputs.push(stream.clone_htod(&own)?);
        }
        let rows =
            sharding.rows(rank).len() * (sharding.shape.batch * sharding.shape.heads) as usize;
        let elems = rows * sharding.shape.head_dim as usize;
        Ok(Self {
            inputs,
            o: stream.clone_htod(&vec![E::of(77.0); elems.max(1)])?,
            lse: stream.clone_htod(&vec![77.0f32; rows.max(1)])?,
            rows,
        })
    }

    /// Returns the addresses of the operands, in the order of the plan.
    pub(super) fn addresses(&self, stream: &Arc<CudaStream>) -> Vec<u64> {
        let inputs = self.inputs.iter().map(|x| x.device_ptr(stream).0);
        let results = [self.o.device_ptr(stream).0, self.lse.device_ptr(stream).0];
        inputs.chain(results).collect()
    }

    pub(super) fn launch(
        &mut self,
        stream: &Arc<CudaStream>,
        operator: &Operator,
    ) -> Result<(), Failure> {
        let call = operator
            .call(stream)
            .read(Operand::Q, &self.inputs[0])
            .read(Operand::K, &self.inputs[1])
            .read(Operand::V, &self.inputs[2])
            .write(Operand::O, &mut self.o)
            .write(Operand::Lse, &mut self.lse);
        Ok(call.launch()?)
    }
}

/// Downloads elements as fp32.
pub(super) fn floats<E: ResultElement>(
    stream: &Arc<CudaStream>,
    slice: &CudaSlice<E>,
) -> Result<Vec<f32>, Failure> {
    let elements = stream.clone_dtoh(slice)?;
    Ok(elements.into_iter().map(Into::into).collect())
}
