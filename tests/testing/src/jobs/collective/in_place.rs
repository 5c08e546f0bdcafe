//! Calls whose result has the memory of their input.

use super::{CallData, CollectiveJob, right_bits};
use crate::graph::Graph;
use crate::jobs::buffer::{Buffer, is_symmetric};
use crate::jobs::simulated::ResultElement;
use crate::jobs::{CALLS_AFTER, CALLS_BEFORE, set_call_count, stream_of};
use crate::lab::Failure;
use mkernel::cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use mkernel::operands::RawSlice;
use mkernel::spec::{CollectiveOp, CollectiveShape};
use mkernel::{Communicator, Operand, Operator};
use std::ops::Range;
use std::sync::Arc;

/// The memory of a call: all rows for which the operator was prepared, and the places of X and Y.
struct Memory<E: 'static> {
    buffer: Buffer<E>,
    address: u64,
    /// The contents of the memory before the call.
    before: Vec<E>,
    x: Range<usize>,
    y: Range<usize>,
    /// The rows of the call if the call gives them, as a number and in device memory.
    rows: Option<(u64, CudaSlice<i32>)>,
}

impl CollectiveJob {
    /// Makes all calls on this rank, and checks their results.
    pub(super) fn rank_in_place<E: ResultElement>(
        &self,
        ranks: &Communicator,
    ) -> Result<Vec<Vec<u32>>, Failure> {
        ranks.set_timeout(crate::jobs::deadline(self.edits.is_empty()));
        let operator = self.prepare(ranks)?;
        let stream = stream_of(ranks, self.is_graph)?;
        let calls = self.calls().iter().zip(self.rows_of_calls());
        let count = match (self.call_count, self.rows.len()) {
            (_, rows @ 1..) => rows,
            (None, _) => self.calls().len(),
            (Some(_), _) => (CALLS_BEFORE + CALLS_AFTER) as usize,
        };
        let calls: Vec<_> = calls.cycle().take(count).collect();
        let mut all: Vec<Memory<E>> = Vec::new();
        for (call, rows) in &calls {
            all.push(self.memory(ranks, (&operator, &stream), (call, *rows))?);
        }
        stream.synchronize()?;
        self.enqueue(ranks, &operator, &stream, &all)?;
        let rank = ranks.rank() as usize;
        let checks = calls.iter().zip(&all);
        checks
            .map(|((call, _), memory)| {
                let bits = memory.check(&stream, (rank, &call.y[rank]));
                ranks.check()?;
                bits
            })
            .collect()
    }

    /// The rows of each call.
    fn rows_of_calls(&self) -> impl Iterator<Item = u64> + Clone {
        let most = self.shape().m;
        let count = self.calls().len();
        (0..count).map(move |index| self.rows.get(index).copied().unwrap_or(most))
    }

    fn memory<E: ResultElement>(
        &self,
        ranks: &Communicator,
        (operator, stream): (&Operator, &Arc<CudaStream>),
        (call, rows): (&CallData, u64),
    ) -> Result<Memory<E>, Failure> {
        let (rank, most) = (ranks.rank() as usize, self.shape());
        let shape = CollectiveShape { m: rows, ..most };
        let shard = (shape.shard_rows(self.machine.world) * shape.n) as usize;
        let (x, y) = (&call.x[rank], &call.y[rank]);
        let before_shard = (rank * shard).min((rows * shape.n) as usize);
        let (first_of_x, first_of_y) = match self.config.op {
            CollectiveOp::AllReduce | CollectiveOp::Broadcast | CollectiveOp::AllToAll => (0, 0),
            CollectiveOp::AllGather => (before_shard, 0),
            CollectiveOp::ReduceScatter => (0, before_shard),
        };
        let mut before = vec![E::POISON; (most.m * most.n) as usize];
        for (to, from) in before[first_of_x..].iter_mut().zip(x) {
            *to = E::of(*from);
        }
        let is_symmetric = is_symmetric(operator, Operand::Y);
        let buffer = Buffer::upload(ranks, stream, is_symmetric, &before)?;
        let word = stream.clone_htod(&[rows as i32])?;
        let address = buffer.view().device_ptr(stream).0;
        Ok(Memory {
            address,
            buffer,
            before,
            x: first_of_x..first_of_x + x.len(),
            y: first_of_y..first_of_y + y.len(),
            rows: (!self.rows.is_empty()).then_some((rows, word)),
        })
    }

    /// Makes the calls, or replays a graph of the calls twice.
    fn enqueue<E: ResultElement>(
        &self,
        ranks: &Communicator,
        operator: &Operator,
        stream: &Arc<CudaStream>,
        all: &[Memory<E>],
    ) -> Result<(), Failure> {
        let make_calls = |is_captured| {
            for (index, memory) in (0..).zip(all) {
                if let Some(calls) = self.call_count.filter(|_| index == CALLS_BEFORE) {
                    set_call_count(ranks, &[operator], calls)?;
                }
                // Only the host knows the place of a shard.
                let has_place = matches!(
                    self.config.op,
                    CollectiveOp::AllReduce | CollectiveOp::Broadcast
                );
                let from_memory = has_place && index % 2 == 1;
                memory.call(operator, stream, (from_memory, is_captured))?;
            }
            Ok(())
        };
        if !self.is_graph {
            make_calls(false)?;
            return Ok(ranks.synchronize(stream)?);
        }
        let graph = Graph::capture(ranks, stream, || make_calls(true))?;
        for _ in 0..2 {
            for memory in all {
                memory.reset(stream)?;
            }
            graph.launch(stream)?;
            ranks.synchronize(stream)?;
        }
        Ok(())
    }
}

impl<E: ResultElement> Memory<E> {
    /// Makes a call. If the call reads its rows from memory, X and Y have all rows for which the operator was prepared.
    fn call(
        &self,
        operator: &Operator,
        stream: &Arc<CudaStream>,
        (from_memory, is_captured): (bool, bool),
    ) -> Result<(), Failure> {
        let slice = |part: &Range<usize>| {
            let part = match from_memory {
                true => 0..self.before.len(),
                false => part.clone(),
            };
            let address = self.address + (part.start * size_of::<E>()) as u64;
            // SAFETY: the buffer lives until its calls have ended, and one stream uses it.
            unsafe { RawSlice::<E>::new(stream, address, part.len()) }
        };
        let (x, mut y) = (slice(&self.x), slice(&self.y));
        let call = operator.call(stream);
        let call = call.read(Operand::X, &x).write(Operand::Y, &mut y);
        let call = match &self.rows {
            None => call,
            Some((_, word)) if from_memory => call.rows_in(word),
            Some((rows, _)) => call.rows(*rows),
        };
        match is_captured {
            false => Ok(call.launch()?),
            // SAFETY: the buffer and the word live until the last replay has ended, and one stream uses them.
            true => Ok(unsafe { call.capture() }?),
        }
    }

    /// Uploads again what the memory held before the call.
    fn reset(&self, stream: &Arc<CudaStream>) -> Result<(), Failure> {
        // SAFETY: the buffer has this many elements, and nothing else uses it.
        let mut all = unsafe { RawSlice::<E>::new(stream, self.address, self.before.len()) };
        Ok(stream.memcpy_htod(&self.before, &mut all)?)
    }

    /// Compares the result with the expected result, and returns its bits. The memory around the result must be
    /// unchanged.
    fn check(
        &self,
        stream: &Arc<CudaStream>,
        (rank, expected): (usize, &[f32]),
    ) -> Result<Vec<u32>, Failure> {
        let got: Vec<E> = stream.clone_dtoh(&self.buffer.view())?;
        let floats = |values: &[E]| -> Vec<f32> { values.iter().map(|x| (*x).into()).collect() };
        let (got, before) = (floats(&got), floats(&self.before));
        let is_around = |index: &usize| !self.y.contains(index);
        let changed = |index: &usize| got[*index].to_bits() != before[*index].to_bits();
        let around = (0..got.len()).filter(is_around).filter(changed).count();
        if around > 0 {
            return Err(
                format!("rank {rank}: {around} elements beyond the result are written").into(),
            );
        }
        right_bits(rank, &got[self.y.clone()], expected)
    }
}
