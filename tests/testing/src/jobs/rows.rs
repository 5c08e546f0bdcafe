//! Calls of one operator with different numbers of rows.

use super::buffer::{Buffer, Elements, is_symmetric};
use super::simulated::ResultElement;
use super::{CALLS_BEFORE, set_call_count};
use crate::graph::Graph;
use crate::lab::Failure;
use mkernel::cudarc::driver::{CudaSlice, CudaStream, CudaViewMut};
use mkernel::spec::abi::OperandSpec;
use mkernel::{Call, Communicator, Operand, Operator};
use std::sync::Arc;

/// A call of this rank: its rows over all ranks, its inputs, and the expected result before it is rounded.
pub struct RowsCall {
    pub rows: u64,
    pub inputs: Vec<(Operand, Vec<f32>)>,
    pub expected: Vec<f64>,
}

/// The calls of this rank, one after the other, by one operator that takes rows at run time.
pub struct RowsRun<'a> {
    pub ranks: &'a Communicator,
    pub operator: &'a Operator,
    /// The operand that is the result.
    pub result: Operand,
    pub calls: Vec<RowsCall>,
    /// Whether one call is captured, which is replayed for each call.
    pub is_graph: bool,
    /// If set, the call count of the operator is set to this number after two calls.
    pub call_count: Option<u32>,
    /// Whether a result is right.
    pub is_right: &'a dyn Fn(f32, f64) -> bool,
}

/// The operands of a call, with all rows for which the operator was prepared.
struct Buffers<Out: 'static> {
    inputs: Vec<(Operand, Elements)>,
    result: Buffer<Out>,
    rows: CudaSlice<i32>,
}

impl RowsRun<'_> {
    /// Makes the calls, and returns the bits of their results.
    pub fn run<Out: ResultElement>(&self) -> Result<Vec<Vec<u32>>, Failure> {
        match self.is_graph {
            true => self.replays::<Out>(),
            false => self.launches::<Out>(),
        }
    }

    /// Makes the calls one after the other without a pause. Every other call reads its rows from memory.
    fn launches<Out: ResultElement>(&self) -> Result<Vec<Vec<u32>>, Failure> {
        let stream = self.ranks.default_stream();
        let mut all = Vec::new();
        for call in &self.calls {
            all.push(self.buffers::<Out>(&stream, call)?);
        }
        stream.synchronize()?;
        for (index, (call, buffers)) in (0..).zip(self.calls.iter().zip(&mut all)) {
            if let Some(calls) = self.call_count.filter(|_| index == CALLS_BEFORE) {
                set_call_count(self.ranks, &[self.operator], calls)?;
            }
            let Buffers {
                inputs,
                result,
                rows,
            } = buffers;
            let mut result = result.view_mut();
            let given = self.call(&stream, inputs, &mut result);
            match index % 2 {
                0 => given.rows(call.rows).launch()?,
                _ => given.rows_in(rows).launch()?,
            }
        }
        self.ranks.synchronize(&stream)?;
        let checks = self.calls.iter().zip(&all);
        checks
            .map(|(call, buffers)| self.check(&stream, &buffers.result, call))
            .collect()
    }

    /// Captures one call, which reads its rows from memory, and replays it for each call.
    fn replays<Out: ResultElement>(&self) -> Result<Vec<Vec<u32>>, Failure> {
        // The default stream cannot be captured.
        let stream = self.ranks.context().new_stream()?;
        let first = self.calls.first().ok_or("no calls")?;
        let mut used = self.buffers::<Out>(&stream, first)?;
        stream.synchronize()?;
        let graph = self.captured(&stream, &mut used)?;
        let mut results = Vec::new();
        for call in &self.calls {
            let next = self.buffers::<Out>(&stream, call)?;
            for ((_, to), (_, from)) in used.inputs.iter_mut().zip(&next.inputs) {
                to.copy_from(&stream, from)?;
            }
            stream.memcpy_dtod(&next.result.view(), &mut used.result.view_mut())?;
            stream.memcpy_dtod(&next.rows, &mut used.rows)?;
            graph.launch(&stream)?;
            self.ranks.synchronize(&stream)?;
            results.push(self.check(&stream, &used.result, call)?);
        }
        Ok(results)
    }

    fn call<'a, Out: ResultElement>(
        &'a self,
        stream: &'a Arc<CudaStream>,
        inputs: &'a [(Operand, Elements)],
        result: &'a mut CudaViewMut<'_, Out>,
    ) -> Call<'a> {
        let call = self.operator.call(stream);
        let inputs = inputs.iter();
        inputs
            .fold(call, |call, (operand, elements)| {
                elements.read_by(call, *operand)
            })
            .write::<Out, _>(self.result, result)
    }

    /// Allocates and uploads the operands of a call. Rows of inputs beyond the rows of the call are ones, so that
    /// results that must not be written are numbers, and the result has values that no kernel computes.
    fn buffers<Out: ResultElement>(
        &self,
        stream: &Arc<CudaStream>,
        call: &RowsCall,
    ) -> Result<Buffers<Out>, Failure> {
        let specs = self.operator.plan().operands();
        let ranks = self.ranks;
        let spec_of = |operand: Operand| {
            let mut specs = specs.iter();
            specs
                .find(|spec| spec.operand == operand)
                .ok_or("no such operand")
        };
        // Tensors in symmetric memory have the same length on all ranks, and the first rank has the most rows.
        let elems = |spec: &OperandSpec| {
            let rank = if spec.symmetric { 0 } else { ranks.rank() };
            (spec.rows.on(rank) * spec.cols) as usize
        };
        let poison = vec![Out::POISON; elems(spec_of(self.result)?)];
        let mut inputs = Vec::new();
        for (operand, values) in &call.inputs {
            let spec = spec_of(*operand)?;
            let mut values = values.clone();
            values.resize(elems(spec), 1.0);
            inputs.push((*operand, Elements::upload(ranks, stream, spec, &values)?));
        }
        Ok(Buffers {
            inputs,
            result: Buffer::upload(
                ranks,
                stream,
                is_symmetric(self.operator, self.result),
                &poison,
            )?,
            rows: stream.clone_htod(&[call.rows as i32])?,
        })
    }

    /// Captures a call that reads its rows from memory.
    fn captured<Out: ResultElement>(
        &self,
        stream: &Arc<CudaStream>,
        buffers: &mut Buffers<Out>,
    ) -> Result<Graph, Failure> {
        Graph::capture(self.ranks, stream, || {
            let mut result = buffers.result.view_mut();
            let call = self.call(stream, &buffers.inputs, &mut result);
            // SAFETY: the buffers live until the last replay has ended, and the test uses one stream.
            Ok(unsafe { call.rows_in(&buffers.rows).capture() }?)
        })
    }

    /// Compares the result of a call with the expected result, and returns its bits. Elements beyond the result must
    /// not be written.
    fn check<Out: ResultElement>(
        &self,
        stream: &Arc<CudaStream>,
        result: &Buffer<Out>,
        call: &RowsCall,
    ) -> Result<Vec<u32>, Failure> {
        let got: Vec<f32> = stream
            .clone_dtoh(&result.view())?
            .into_iter()
            .map(Into::into)
            .collect();
        self.ranks.check()?;
        let (result, beyond) = got.split_at(call.expected.len());
        let pairs = result.iter().zip(&call.expected);
        let wrong = pairs.filter(|(got, want)| !(self.is_right)(**got, **want));
        let (wrong, written) = (wrong.count(), beyond.iter().filter(|x| !x.is_nan()).count());
        if wrong + written > 0 {
            let (rank, rows, elements) = (self.ranks.rank(), call.rows, result.len());
            return Err(format!(
                "rank {rank}, {rows} rows: {wrong} of {elements} elements are wrong, and {written} beyond them were written"
            )
            .into());
        }
        Ok(result.iter().map(|x| x.to_bits()).collect())
    }
}
