//! Calls whose lengths differ from call to call: one after the other, or replays of a graph.

use super::AttentionJob;
use super::place::{Place, UNWRITTEN};
use crate::graph::Graph;
use crate::jobs::simulated::ResultElement;
use crate::jobs::{CALLS_BEFORE, set_call_count};
use crate::lab::Failure;
use mkernel::cudarc::driver::{CudaSlice, CudaStream};
use mkernel::{Call, Communicator, Operand, Operator};
use std::sync::Arc;

/// The operands of a call, with room for the most rows.
pub(super) struct Buffers<E> {
    inputs: Vec<CudaSlice<E>>,
    pub o: CudaSlice<E>,
    pub lse: CudaSlice<f32>,
    /// The number of rows, or the offsets of packed sequences.
    pub lengths: CudaSlice<i32>,
    /// The numbers of cached rows, if calls have them.
    cached: CudaSlice<i32>,
}

impl<E: ResultElement> Buffers<E> {
    /// Uploads Q, K and V, the lengths and the numbers of cached rows. O and LSE, whose places are given, are [`UNWRITTEN`].
    pub fn new(
        stream: &Arc<CudaStream>,
        inputs: [Vec<f32>; 3],
        (o, lse): (Place, Place),
        (lengths, cached): (&[i32], &[i32]),
    ) -> Result<Self, Failure> {
        let unwritten =
            |place: Place| vec![UNWRITTEN; (place.groups * place.most * place.elems).max(1)];
        let elements = |all: Vec<f32>| -> Vec<E> { all.into_iter().map(E::of).collect() };
        let inputs = inputs.map(|input| stream.clone_htod(&elements(input)));
        Ok(Self {
            inputs: inputs.into_iter().collect::<Result<_, _>>()?,
            o: stream.clone_htod(&elements(unwritten(o)))?,
            lse: stream.clone_htod(&unwritten(lse))?,
            lengths: stream.clone_htod(lengths)?,
            cached: stream.clone_htod(if cached.is_empty() { &[0][..] } else { cached })?,
        })
    }

    /// Passes all operands except the lengths, which `call` returns to the caller.
    pub fn call<'a>(
        &'a mut self,
        operator: &'a Operator,
        stream: &'a Arc<CudaStream>,
        is_cached: bool,
    ) -> (Call<'a>, &'a CudaSlice<i32>) {
        let call = operator
            .call(stream)
            .read(Operand::Q, &self.inputs[0])
            .read(Operand::K, &self.inputs[1])
            .read(Operand::V, &self.inputs[2])
            .write(Operand::O, &mut self.o)
            .write(Operand::Lse, &mut self.lse);
        let call = match is_cached {
            true => call.read(Operand::CachedRows, &self.cached),
            false => call,
        };
        (call, &self.lengths)
    }

    /// Copies the operands of another call to the operands of this call.
    fn take(&mut self, stream: &Arc<CudaStream>, next: &Self) -> Result<(), Failure> {
        for (input, next) in self.inputs.iter_mut().zip(&next.inputs) {
            stream.memcpy_dtod(next, input)?;
        }
        stream.memcpy_dtod(&next.o, &mut self.o)?;
        stream.memcpy_dtod(&next.lse, &mut self.lse)?;
        stream.memcpy_dtod(&next.cached, &mut self.cached)?;
        Ok(stream.memcpy_dtod(&next.lengths, &mut self.lengths)?)
    }
}

/// A call of a job on a rank.
pub(super) trait OneCall<E> {
    /// Uploads the operands. The inputs are NaN in place of rows that do not exist.
    fn buffers(&self, stream: &Arc<CudaStream>) -> Result<Buffers<E>, Failure>;

    /// The call with these operands.
    fn call<'a>(
        &self,
        operator: &'a Operator,
        stream: &'a Arc<CudaStream>,
        buffers: &'a mut Buffers<E>,
    ) -> Call<'a>;

    /// Compares the results with the expected results, and returns their bits. Other elements must not be written.
    fn check(
        &self,
        ranks: &Communicator,
        stream: &Arc<CudaStream>,
        buffers: &Buffers<E>,
    ) -> Result<Vec<u32>, Failure>;
}

impl AttentionJob {
    /// Makes the calls one after the other without a pause, and then checks their results.
    pub(super) fn launches<E: ResultElement, C: OneCall<E>>(
        &self,
        ranks: &Communicator,
        operator: &Operator,
        calls: &[C],
    ) -> Result<Vec<Vec<u32>>, Failure> {
        let stream = ranks.default_stream();
        let buffers = calls.iter().map(|call| call.buffers(&stream));
        let mut all = buffers.collect::<Result<Vec<_>, _>>()?;
        stream.synchronize()?;
        for (index, (call, buffers)) in (0..).zip(calls.iter().zip(&mut all)) {
            if let Some(calls) = self.call_count.filter(|_| index == CALLS_BEFORE) {
                set_call_count(ranks, &[operator], calls)?;
            }
            call.call(operator, &stream, buffers).launch()?;
        }
        ranks.synchronize(&stream)?;
        let checks = calls.iter().zip(&all);
        checks
            .map(|(call, buffers)| call.check(ranks, &stream, buffers))
            .collect()
    }
}

/// Captures one call, which reads its lengths from memory, and replays it for each call.
pub(super) fn replays<E: ResultElement, C: OneCall<E>>(
    ranks: &Communicator,
    operator: &Operator,
    calls: &[C],
) -> Result<Vec<Vec<u32>>, Failure> {
    // The default stream cannot be captured.
    let stream = ranks.context().new_stream()?;
    let mut used = calls[0].buffers(&stream)?;
    stream.synchronize()?;
    let graph = Graph::capture(ranks, &stream, || {
        let call = calls[0].call(operator, &stream, &mut used);
        // SAFETY: the buffers live until the last replay has ended, and the test uses one stream.
        Ok(unsafe { call.capture() }?)
    })?;
    let mut results = Vec::new();
    for call in calls {
        used.take(&stream, &call.buffers(&stream)?)?;
        graph.launch(&stream)?;
        ranks.synchronize(&stream)?;
        results.push(call.check(ranks, &stream, &used)?);
    }
    Ok(results)
}
