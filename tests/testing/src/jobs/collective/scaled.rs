//! Jobs of collectives that move rows of e4m3 with their scales. Rows of all operands lie apart, and every bit of the results is
//! known.

pub mod cases;

use super::{CallData, CollectiveJob};
use crate::graph::Graph;
use crate::jobs::buffer::Elements;
use crate::jobs::{
    Backend, CALLS, CALLS_AFTER, CALLS_BEFORE, CallCount, Results, SimulatedJob, set_call_count,
    stream_of,
};
use crate::lab::Failure;
use mkernel::cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use mkernel::operands::{RawOperand, Rows};
use mkernel::spec::abi::OperandSpec;
use mkernel::spec::{CollectiveOp, Dim, Dtype, Scales};
use mkernel::{Communicator, Operand, Operator};
use std::sync::Arc;

/// Several calls of a collective that moves rows with scales.
#[derive(Clone, Debug)]
pub struct ScaledJob {
    /// The calls, and their options. In place, scales also have the memory of the scales of the input.
    pub job: CollectiveJob,
}

/// A call: its rows, and the values of the elements and of the scales.
struct ScaledCall {
    rows: u64,
    elements: CallData,
    scales: CallData,
}

/// The operands of a call in device memory, in the order of the plan, and its rows.
struct Buffers {
    operands: Vec<(Operand, Elements)>,
    rows: CudaSlice<u32>,
}

impl ScaledJob {
    /// Creates a job on one node of `world` ranks, for a tensor of `m` rows and `n` columns.
    pub fn new(
        (op, scales): (CollectiveOp, Scales),
        world: u32,
        (m, n): (u64, u64),
        sms: u32,
    ) -> Self {
        let mut job = CollectiveJob::new(op, world, (m, n), sms);
        (job.config.dtype, job.config.scales) = (Dtype::E4m3, scales);
        Self { job }
    }

    /// Changes the options.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(CollectiveJob) -> CollectiveJob) -> Self {
        self.job = change(self.job);
        self
    }

    /// Runs the job and returns its results: for each call, the rows and then their scales.
    ///
    /// # Errors
    /// A call fails, the simulator finds a defect, or a result is wrong.
    pub fn run_on(&self, backend: Backend) -> Result<Results, String> {
        let calls = self.calls();
        let rank = |ranks: &Communicator| self.rank(ranks, &calls);
        self.job.machine.run_over(&self.job.faults, backend, rank)
    }

    fn calls(&self) -> Vec<ScaledCall> {
        let job = &self.job;
        let mut scales = job.clone();
        let of_row = job.config.scales.of_row(job.shape().n);
        (scales.config.n, scales.config.dtype) = (Dim::Static(of_row), Dtype::Fp32);
        let count = job.call_count.map_or(CALLS, |_| CALLS_BEFORE + CALLS_AFTER);
        let rows = match job.rows.as_slice() {
            [] => vec![job.shape().m; count as usize],
            rows => rows.to_vec(),
        };
        let call = |(number, rows): (u32, u64)| ScaledCall {
            rows,
            elements: job.call(number % CALLS, rows),
            scales: scales.call(number % CALLS + CALLS, rows),
        };
        (0..).zip(rows).map(call).collect()
    }

    fn rank(&self, ranks: &Communicator, calls: &[ScaledCall]) -> Result<Vec<Vec<u32>>, Failure> {
        let job = &self.job;
        ranks.set_timeout(crate::jobs::deadline(job.edits.is_empty()));
        let operator = job.prepare(ranks)?;
        let stream = stream_of(ranks, job.is_graph)?;
        let mut all = Vec::new();
        for call in calls {
            all.push(self.buffers(ranks, (&operator, &stream), call)?);
        }
        stream.synchronize()?;
        self.launch(ranks, (&operator, &stream), calls, &all)?;
        ranks.synchronize(&stream)?;
        let checks = calls.iter().zip(&all);
        checks
            .map(|(call, buffers)| check(ranks, (&operator, &stream), call, buffers))
            .collect()
    }

    /// Allocates and uploads the operands of a call. No kernel computes a NaN.
    fn buffers(
        &self,
        ranks: &Communicator,
        (operator, stream): (&Operator, &Arc<CudaStream>),
        call: &ScaledCall,
    ) -> Result<Buffers, Failure> {
        let rank = ranks.rank();
        let mut operands = Vec::new();
        for spec in operator.plan().operands() {
            let input = match spec.operand {
                Operand::X => &call.elements.x,
                Operand::XScales => &call.scales.x,
                Operand::Y => &call.elements.x,
                _ => &call.scales.x,
            };
            let rows = match spec.written && !self.job.is_in_place {
                true => &[][..],
                false => &input[rank as usize],
            };
            let first = if spec.written {
                self.first_row(call, rank)
            } else {
                0
            };
            let mut values = vec![f32::NAN; (spec.rows.on(rank).max(1) * stride(spec)) as usize];
            let places = values.chunks_mut(stride(spec) as usize).skip(first);
            for (to, from) in places.zip(rows.chunks(spec.cols as usize)) {
                to[..from.len()].copy_from_slice(from);
            }
            let elements = Elements::upload(ranks, stream, spec, &values)?;
            operands.push((spec.operand, elements));
        }
        let rows = stream.clone_htod(&[call.rows as u32])?;
        Ok(Buffers { operands, rows })
    }

    /// The row of Y at which the rows of X lie in place.
    fn first_row(&self, call: &ScaledCall, rank: u32) -> usize {
        let shard = call.rows.div_ceil(self.job.machine.world.into()) as usize;
        match self.job.config.op {
            CollectiveOp::AllGather => rank as usize * shard,
            _ => 0,
        }
    }

    /// Makes all calls, or replays a graph of the calls twice.
    fn launch(
        &self,
        ranks: &Communicator,
        (operator, stream): (&Operator, &Arc<CudaStream>),
        calls: &[ScaledCall],
        all: &[Buffers],
    ) -> Result<(), Failure> {
        let job = &self.job;
        // Slices must not be asked for their addresses while the stream is captured.
        let launches = calls.iter().zip(all).enumerate();
        let launches = launches.map(|(index, (call, buffers))| {
            let rows = match operator.plan().max_rows() {
                None => Rows::Most,
                // Only the host knows the place of a shard.
                Some(_) if !job.is_in_place && (job.is_graph || index % 2 == 1) => {
                    Rows::At(buffers.rows.device_ptr(stream).0)
                }
                Some(_) => Rows::Count(call.rows),
            };
            (
                rows,
                self.raw((operator, stream), call, buffers, ranks.rank()),
            )
        });
        let launches: Vec<_> = launches.collect();
        let enqueue = || {
            for (index, (rows, operands)) in (0..).zip(launches) {
                if let Some(calls) = job.call_count.filter(|_| index == CALLS_BEFORE) {
                    set_call_count(ranks, &[operator], calls)?;
                }
                // SAFETY: the operands follow the plan, in its order, and live until the stream is synchronized.
                unsafe { operator.launch_raw_rows(stream.cu_stream(), &operands, rows) }?;
            }
            Ok(())
        };
        if !job.is_graph {
            return enqueue();
        }
        let graph = Graph::capture(ranks, stream, enqueue)?;
        graph.launch(stream)?;
        graph.launch(stream)?;
        // The graph is destroyed when this function returns, so the replays have to end first.
        Ok(ranks.synchronize(stream)?)
    }

    fn raw(
        &self,
        (operator, stream): (&Operator, &Arc<CudaStream>),
        call: &ScaledCall,
        buffers: &Buffers,
        rank: u32,
    ) -> Vec<RawOperand> {
        let specs = operator.plan().operands().iter();
        let place = |spec: &OperandSpec| {
            let (result, first) = match (spec.operand, self.job.is_in_place) {
                (Operand::X, true) => (Operand::Y, self.first_row(call, rank)),
                (Operand::XScales, true) => (Operand::YScales, self.first_row(call, rank)),
                (own, _) => (own, 0),
            };
            let mut found = buffers.operands.iter();
            let (_, elements) = found.find(|(of, _)| *of == result).expect("an operand");
            let before = first as u64 * stride(spec) * spec.dtype.bytes();
            RawOperand {
                ptr: elements.address(stream) + before,
                row_stride_elems: stride(spec),
            }
        };
        specs.map(place).collect()
    }
}

/// The elements from a row to the next row. Rows lie apart, except scales of rows, which are a vector.
fn stride(spec: &OperandSpec) -> u64 {
    match spec.cols {
        1 => 1,
        cols => cols + spec.stride_step,
    }
}

/// Compares the results of a call with the expected results, and returns their bits. Nothing else may be written.
fn check(
    ranks: &Communicator,
    (operator, stream): (&Operator, &Arc<CudaStream>),
    call: &ScaledCall,
    buffers: &Buffers,
) -> Result<Vec<u32>, Failure> {
    let rank = ranks.rank() as usize;
    let mut bits = Vec::new();
    let specs = operator.plan().operands().iter().zip(&buffers.operands);
    for (spec, (operand, elements)) in specs.filter(|(spec, _)| spec.written) {
        let expected = match operand {
            Operand::Y => &call.elements.y[rank],
            _ => &call.scales.y[rank],
        };
        let found = elements.values(stream)?;
        ranks.check()?;
        let (mut wrong, mut expected_rows) = (0, expected.chunks(spec.cols as usize));
        for found in found.chunks(stride(spec) as usize) {
            let expected = expected_rows.next().unwrap_or_default();
            let (row, beyond) = found.split_at(expected.len().min(found.len()));
            let pairs = row.iter().zip(expected);
            wrong += pairs.filter(|(a, b)| a.to_bits() != b.to_bits()).count();
            wrong += beyond.iter().filter(|x| !x.is_nan()).count();
            bits.extend(row.iter().map(|x| x.to_bits()));
        }
        if wrong > 0 {
            let (name, rows) = (operand.name(), call.rows);
            return Err(
                format!("rank {rank}, {rows} rows: {wrong} elements of {name} are wrong").into(),
            );
        }
    }
    Ok(bits)
}

impl SimulatedJob for ScaledJob {
    fn run(&self, seed: u64) -> Result<Results, String> {
        self.run_on(Backend::Simulated { seed })
    }

    fn edit(&mut self, edits: Vec<(String, String)>) {
        self.job.edit(edits);
    }
}

impl CallCount for ScaledJob {
    fn with_call_count(mut self, calls: u32) -> Self {
        self.job = self.job.with_call_count(calls);
        self
    }

    fn replays_a_graph(&self) -> bool {
        self.job.is_graph
    }
}
