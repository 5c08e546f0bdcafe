//! Calls of one operator with different numbers of rows.

use super::{CallData, CollectiveJob};
use crate::jobs::simulated::ResultElement;
use crate::jobs::{CALLS_BEFORE, set_call_count};
use crate::lab::Failure;
use mkernel::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use mkernel::cudarc::driver::{CudaGraph, CudaSlice, CudaStream};
use mkernel::{Communicator, Operand, Operator};
use std::sync::Arc;

/// The operands of a call. They have as many rows as the operator was prepared for.
struct Buffers<E> {
    x: CudaSlice<E>,
    y: CudaSlice<E>,
    rows: CudaSlice<i32>,
}

impl CollectiveJob {
    /// Makes a call for each number of rows on this rank, and checks its results.
    pub(super) fn rank_with_rows<E: ResultElement>(
        &self,
        ranks: &Communicator,
        element: fn(f32) -> E,
    ) -> Result<Vec<Vec<u32>>, Failure> {
        ranks.set_timeout(crate::jobs::deadline(self.edits.is_empty()));
        let operator = self.prepare(ranks)?;
        match self.is_graph {
            true => self.replays(ranks, &operator, element),
            false => self.launches(ranks, &operator, element),
        }
    }

    /// Makes the calls one after the other without a pause. Every other call reads its rows from memory.
    fn launches<E: ResultElement>(
        &self,
        ranks: &Communicator,
        operator: &Operator,
        element: fn(f32) -> E,
    ) -> Result<Vec<Vec<u32>>, Failure> {
        let stream = ranks.context().default_stream();
        let calls = || self.calls().iter().zip(&self.rows);
        let mut all = Vec::new();
        for (call, rows) in calls() {
            all.push(buffers(ranks, operator, &stream, (call, *rows), element)?);
        }
        stream.synchronize()?;
        for (index, ((_, rows), buffers)) in (0..).zip(calls().zip(&mut all)) {
            if let Some(calls) = self.call_count.filter(|_| index == CALLS_BEFORE) {
                set_call_count(ranks, &[operator], calls)?;
            }
            let call = operator.call(&stream).read(Operand::X, &buffers.x);
            let call = call.write(Operand::Y, &mut buffers.y);
            match index % 2 {
                0 => call.rows(*rows).launch()?,
                _ => call.rows_in(&buffers.rows).launch()?,
            }
        }
        ranks.synchronize(&stream)?;
        let checks = calls().zip(&all);
        checks
            .map(|((call, _), buffers)| check(ranks, &stream, &buffers.y, call))
            .collect()
    }

    /// Captures one call, which reads its rows from memory, and replays it for each call.
    fn replays<E: ResultElement>(
        &self,
        ranks: &Communicator,
        operator: &Operator,
        element: fn(f32) -> E,
    ) -> Result<Vec<Vec<u32>>, Failure> {
        // The default stream cannot be captured.
        let stream = ranks.context().new_stream()?;
        let mut calls = self.calls().iter().zip(&self.rows);
        let (first, rows) = calls.next().ok_or("no calls")?;
        let mut used = buffers(ranks, operator, &stream, (first, *rows), element)?;
        stream.synchronize()?;
        let graph = captured(operator, &stream, &mut used)?;
        graph.launch()?;
        let mut results = vec![check(ranks, &stream, &used.y, first)?];
        for (call, rows) in calls {
            let next = buffers(ranks, operator, &stream, (call, *rows), element)?;
            stream.memcpy_dtod(&next.x, &mut used.x)?;
            stream.memcpy_dtod(&next.y, &mut used.y)?;
            stream.memcpy_dtod(&next.rows, &mut used.rows)?;
            graph.launch()?;
            results.push(check(ranks, &stream, &used.y, call)?);
        }
        ranks.synchronize(&stream)?;
        Ok(results)
    }
}

/// Allocates and uploads the operands of a call. Rows of X beyond those of the call are ones, so that results that must not
/// be written are numbers, and Y has values that no kernel computes.
fn buffers<E: ResultElement>(
    ranks: &Communicator,
    operator: &Operator,
    stream: &Arc<CudaStream>,
    (call, rows): (&CallData, u64),
    element: fn(f32) -> E,
) -> Result<Buffers<E>, Failure> {
    let elems = |operand: usize| {
        let spec = operator.plan().operands[operand];
        (spec.rows.on(ranks.rank()) * spec.cols) as usize
    };
    let mut x: Vec<E> = call.x[ranks.rank() as usize]
        .iter()
        .map(|x| element(*x))
        .collect();
    x.resize(elems(0), element(1.0));
    Ok(Buffers {
        x: stream.clone_htod(&x)?,
        y: stream.clone_htod(&vec![E::POISON; elems(1)])?,
        rows: stream.clone_htod(&[rows as i32])?,
    })
}

/// Captures a call that reads its rows from memory.
fn captured<E: ResultElement>(
    operator: &Operator,
    stream: &Arc<CudaStream>,
    Buffers { x, y, rows }: &mut Buffers<E>,
) -> Result<CudaGraph, Failure> {
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let call = operator
        .call(stream)
        .read(Operand::X, x)
        .write(Operand::Y, y);
    // SAFETY: the buffers live until the last replay has ended, and the test uses one stream.
    unsafe { call.rows_in(rows).capture() }?;
    let graph = stream.end_capture(CUgraphInstantiate_flags(0))?;
    Ok(graph.ok_or("nothing was captured")?)
}

/// Compares the result of a call with the expected one, and returns its bits. Nothing may be written beyond it.
fn check<E: ResultElement>(
    ranks: &Communicator,
    stream: &Arc<CudaStream>,
    y: &CudaSlice<E>,
    call: &CallData,
) -> Result<Vec<u32>, Failure> {
    let got: Vec<f32> = stream.clone_dtoh(y)?.into_iter().map(Into::into).collect();
    ranks.check()?;
    let rank = ranks.rank() as usize;
    let (result, beyond) = got.split_at(call.y[rank].len());
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let (result, expected) = (bits(result), bits(&call.y[rank]));
    let wrong = result.iter().zip(&expected).filter(|(a, b)| a != b).count();
    let written = beyond.iter().filter(|x| !x.is_nan()).count();
    if wrong + written > 0 {
        let elements = result.len();
        return Err(format!(
            "rank {rank}: {wrong} of {elements} elements are wrong, and {written} beyond them were written"
        )
        .into());
    }
    Ok(result)
}
