//! Jobs of `all_reduce` with a norm. Every bit of the new residual is known. The result is compared with a norm in fp64 of
//! that residual, and is the same on all ranks.

pub mod cases;

use super::CollectiveJob;
use crate::jobs::simulated::ResultElement;
use crate::jobs::{
    Backend, CALLS, CALLS_AFTER, CALLS_BEFORE, CallCount, Results, SimulatedJob, emulated,
    set_call_count,
};
use crate::lab::Failure;
use mkernel::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use mkernel::cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use mkernel::half::bf16;
use mkernel::operands::{RawOperand, Rows};
use mkernel::spec::{CollectiveOp, CollectiveShape, Dtype, Eps, Norm, SumEpilogue};
use mkernel::{Communicator, Operand, Operator};
use std::sync::Arc;

/// Several calls of an all-reduce whose rows are normalised.
#[derive(Clone, Debug)]
pub struct NormJob {
    /// The sums, and whether they are in a graph.
    pub job: CollectiveJob,
    /// Whether the new residual takes the place of the residual.
    pub is_in_place: bool,
}

/// The operands of all ranks for one call, and the expected results of every rank.
struct CallData {
    rows: u64,
    x: Vec<Vec<f32>>,
    bias: Vec<f32>,
    residual: Vec<f32>,
    weight: Vec<f32>,
    residual_out: Vec<f32>,
    y: Vec<f64>,
}

/// The operands of a call in device memory, in the order of the plan, and its rows.
struct Buffers<E> {
    operands: Vec<(Operand, CudaSlice<E>)>,
    rows: CudaSlice<u32>,
}

impl<E: ResultElement> Buffers<E> {
    fn of(&self, operand: Operand) -> Option<&CudaSlice<E>> {
        let found = self.operands.iter().find(|(of, _)| *of == operand);
        found.map(|(_, slice)| slice)
    }
}

impl NormJob {
    /// Creates a job that adds a residual to the sum of a tensor of `m` rows and `n` columns, and normalises its rows.
    pub fn new(world: u32, size: (u64, u64), sms: u32) -> Self {
        let mut job = CollectiveJob::new(CollectiveOp::AllReduce, world, size, sms);
        job.config.epilogue = SumEpilogue {
            residual: true,
            norm: Norm::Rms,
            // So large that a norm without it is wrong.
            eps: Eps::new(0.05),
            ..SumEpilogue::default()
        };
        Self {
            job,
            is_in_place: false,
        }
    }

    /// Changes the sums.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(CollectiveJob) -> CollectiveJob) -> Self {
        self.job = change(self.job);
        self
    }

    /// Adds a bias.
    #[must_use]
    pub fn biased(mut self) -> Self {
        self.job.config.epilogue.bias = true;
        self
    }

    /// Adds no residual.
    #[must_use]
    pub fn without_residual(mut self) -> Self {
        self.job.config.epilogue.residual = false;
        self
    }

    /// Puts the new residual in the place of the residual.
    #[must_use]
    pub fn in_place(mut self) -> Self {
        self.is_in_place = true;
        self
    }

    /// Runs the job and returns its results: those of a call are the result and the new residual.
    ///
    /// # Errors
    /// A call fails, the simulator finds a defect, a result is wrong, or ranks have different bits.
    pub fn run_on(&self, backend: Backend) -> Result<Results, String> {
        let job = &self.job;
        let transport = emulated(&job.faults, backend);
        let calls = self.calls();
        let results = job.machine.run(backend, |ranks| {
            ranks.set_transport(transport.clone());
            let found = match job.config.dtype {
                Dtype::Bf16 => self.rank::<bf16>(ranks, &calls, bf16::from_f32),
                _ => self.rank::<f32>(ranks, &calls, |x| x),
            };
            found.map_err(|failure| failure as Box<dyn std::error::Error>)
        })?;
        match results.iter().position(|of_rank| *of_rank != results[0]) {
            Some(rank) => Err(format!("rank {rank} has other bits than rank 0")),
            None => Ok(results),
        }
    }

    fn rank<E: ResultElement>(
        &self,
        ranks: &Communicator,
        calls: &[CallData],
        element: fn(f32) -> E,
    ) -> Result<Vec<Vec<u32>>, Failure> {
        let job = &self.job;
        ranks.set_timeout(crate::jobs::deadline(job.edits.is_empty()));
        let operator = job.prepare(ranks)?;
        let stream = match job.is_graph {
            // The default stream cannot be captured.
            true => ranks.context().new_stream()?,
            false => ranks.context().default_stream(),
        };
        let mut buffers = Vec::new();
        for call in calls {
            buffers.push(self.buffers(ranks, &operator, (&stream, call), element)?);
        }
        stream.synchronize()?;
        self.launch(ranks, &operator, (&stream, calls), &buffers)?;
        ranks.synchronize(&stream)?;
        let checks = calls.iter().zip(&buffers);
        checks
            .map(|(call, buffers)| self.check(ranks, (&stream, call), buffers))
            .collect()
    }

    fn buffers<E: ResultElement>(
        &self,
        ranks: &Communicator,
        operator: &Operator,
        (stream, call): (&Arc<CudaStream>, &CallData),
        element: fn(f32) -> E,
    ) -> Result<Buffers<E>, Failure> {
        let mut operands = Vec::new();
        for spec in &operator.plan().operands {
            let values: &[f32] = match spec.operand {
                Operand::X => &call.x[ranks.rank() as usize],
                Operand::Bias => &call.bias,
                Operand::Residual => &call.residual,
                Operand::Weight => &call.weight,
                _ => &[],
            };
            let mut values: Vec<E> = values.iter().map(|x| element(*x)).collect();
            values.resize((spec.rows.on(ranks.rank()) * spec.cols) as usize, E::POISON);
            operands.push((spec.operand, stream.clone_htod(&values)?));
        }
        let rows = stream.clone_htod(&[call.rows as u32])?;
        Ok(Buffers { operands, rows })
    }

    /// Makes all calls, or replays a graph of them twice.
    fn launch<E: ResultElement>(
        &self,
        ranks: &Communicator,
        operator: &Operator,
        (stream, calls): (&Arc<CudaStream>, &[CallData]),
        buffers: &[Buffers<E>],
    ) -> Result<(), Failure> {
        let is_graph = self.job.is_graph;
        // Slices must not be asked for their addresses while the stream is captured.
        let calls = (0..).zip(calls.iter().zip(buffers));
        let calls = calls.map(|(index, (call, buffers))| {
            let rows = match operator.plan().max_rows() {
                None => Rows::Most,
                Some(_) if is_graph || index % 2 == 1 => {
                    Rows::At(buffers.rows.device_ptr(stream).0)
                }
                Some(_) => Rows::Count(call.rows),
            };
            (index, rows, self.raw(buffers, stream))
        });
        let calls: Vec<_> = calls.collect();
        if is_graph {
            stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        }
        for (index, rows, operands) in calls {
            if let Some(calls) = self.job.call_count.filter(|_| index == CALLS_BEFORE) {
                set_call_count(ranks, &[operator], calls)?;
            }
            // SAFETY: the operands are those of the plan, in its order, and live until the stream is synchronized.
            unsafe { operator.launch_raw_rows(stream.cu_stream(), &operands, rows) }?;
        }
        if is_graph {
            let graph = stream.end_capture(CUgraphInstantiate_flags(0))?;
            let graph = graph.ok_or("nothing was captured")?;
            graph.launch()?;
            graph.launch()?;
            // The graph is destroyed when this function returns, so the replays have to end first.
            stream.synchronize()?;
        }
        Ok(())
    }

    fn raw<E: ResultElement>(
        &self,
        buffers: &Buffers<E>,
        stream: &Arc<CudaStream>,
    ) -> Vec<RawOperand> {
        let n = self.job.shape().n;
        let of = |(operand, slice): &(Operand, CudaSlice<E>)| {
            let place = match operand {
                Operand::ResidualOut if self.is_in_place => buffers.of(Operand::Residual),
                _ => Some(slice),
            };
            RawOperand {
                ptr: place.map_or(0, |slice| slice.device_ptr(stream).0),
                row_stride_elems: n,
            }
        };
        buffers.operands.iter().map(of).collect()
    }

    /// Compares the results of a call with the expected ones, and returns their bits. Nothing may be written beyond them.
    fn check<E: ResultElement>(
        &self,
        ranks: &Communicator,
        (stream, call): (&Arc<CudaStream>, &CallData),
        buffers: &Buffers<E>,
    ) -> Result<Vec<u32>, Failure> {
        let get = |operand| -> Result<Vec<f32>, Failure> {
            let slice = buffers.of(operand).ok_or("an operand is missing")?;
            let values = stream.clone_dtoh(slice)?;
            ranks.check()?;
            Ok(values.into_iter().map(Into::into).collect())
        };
        let residual_out = get(match self.is_in_place {
            true => Operand::Residual,
            false => Operand::ResidualOut,
        })?;
        let y = get(Operand::Y)?;
        let unit = match self.job.config.dtype {
            Dtype::Bf16 => 1.0 / 256.0,
            _ => 4e-6,
        };
        let pairs = residual_out.iter().zip(&call.residual_out);
        let wrong_sums = pairs.filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        let is_wrong = |(got, want): &(&f32, &f64)| {
            let error = (f64::from(**got) - **want).abs();
            error.is_nan() || error > want.abs() * unit + 1e-6
        };
        let wrong = y.iter().zip(&call.y).filter(is_wrong).count();
        let beyond = [&y, &residual_out].map(|all| &all[call.y.len()..]);
        let written = beyond.concat().iter().filter(|x| !x.is_nan()).count();
        if wrong_sums + wrong + written > 0 {
            return Err(format!(
                "rank {}, {} rows: of {} elements each, {wrong_sums} of the new residual and {wrong} of the result are \
                 wrong, and {written} beyond them were written",
                ranks.rank(),
                call.rows,
                call.y.len()
            )
            .into());
        }
        let bits = y.iter().chain(&residual_out).map(|x| x.to_bits());
        Ok(bits.collect())
    }

    fn calls(&self) -> Vec<CallData> {
        let job = &self.job;
        let count = job.call_count.map_or(CALLS, |_| CALLS_BEFORE + CALLS_AFTER);
        match job.rows.as_slice() {
            [] => (0..count)
                .map(|number| self.call(number % CALLS, job.shape().m))
                .collect(),
            rows => (0..)
                .zip(rows)
                .map(|(number, rows)| self.call(number, *rows))
                .collect(),
        }
    }

    fn call(&self, number: u32, rows: u64) -> CallData {
        let job = &self.job;
        let epilogue = job.config.epilogue;
        let shape = CollectiveShape {
            m: rows,
            ..job.shape()
        };
        let n = shape.n as usize;
        let mut state = u64::from(number) + 77;
        let mut random = |len: usize, is_there: bool| -> Vec<f32> {
            let mut next = || {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                job.rounded((state >> 40) as f32 / (1 << 23) as f32 - 1.0)
            };
            (0..if is_there { len } else { 0 })
                .map(|_| next())
                .collect()
        };
        let x = job.call(number, rows).x;
        let whole = rows as usize * n;
        let bias = random(n, epilogue.bias);
        let residual = random(whole, epilogue.residual);
        let weight = random(n, true);
        let owned = job.owned_elems(shape);
        let z = |index: usize| {
            let mut z = job.sum(&x, index, index / owned);
            z += bias.get(index % n).copied().unwrap_or(0.0);
            z += residual.get(index).copied().unwrap_or(0.0);
            job.rounded(z)
        };
        let residual_out: Vec<f32> = (0..whole).map(z).collect();
        let y = residual_out.chunks(n).flat_map(|row| {
            let squares: f64 = row.iter().map(|z| f64::from(*z).powi(2)).sum();
            let mean = squares / n as f64 + f64::from(epilogue.eps.value());
            let of = move |(z, w): (&f32, &f32)| f64::from(*z) / mean.sqrt() * f64::from(*w);
            row.iter().zip(&weight).map(of)
        });
        CallData {
            rows,
            y: y.collect(),
            x,
            bias,
            residual,
            weight,
            residual_out,
        }
    }
}

impl SimulatedJob for NormJob {
    fn run(&self, seed: u64) -> Result<Results, String> {
        self.run_on(Backend::Simulated { seed })
    }

    fn edit(&mut self, edits: Vec<(String, String)>) {
        self.job.edit(edits);
    }
}

impl CallCount for NormJob {
    fn with_call_count(mut self, calls: u32) -> Self {
        self.job = self.job.with_call_count(calls);
        self
    }
}
