//! Calls of an operator that normalises the rows of its result.

use super::simulated::{ResultElement, by_element};
use super::{CALLS_BEFORE, set_call_count};
use crate::graph::Graph;
use crate::lab::Failure;
use mkernel::cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use mkernel::operands::{RawOperand, Rows};
use mkernel::spec::Dtype;
use mkernel::{Communicator, Operand, Operator};
use std::sync::Arc;

/// The operands of all ranks for one call, and the expected results of every rank.
pub struct NormCall {
    pub rows: u64,
    /// The operands with the values that each rank passes, or one entry if all ranks pass equal values.
    pub inputs: Vec<(Operand, Vec<Vec<f32>>)>,
    pub residual_out: Vec<f32>,
    pub result: Vec<f64>,
}

impl NormCall {
    /// Completes a call: the norm in fp64 of a new residual, which has been rounded.
    pub fn new(
        rows: u64,
        inputs: Vec<(Operand, Vec<Vec<f32>>)>,
        residual_out: Vec<f32>,
        (weight, eps): (&[f32], f32),
    ) -> Self {
        let cols = weight.len();
        let result = residual_out.chunks(cols).flat_map(|row| {
            let squares: f64 = row.iter().map(|z| f64::from(*z).powi(2)).sum();
            let mean = squares / cols as f64 + f64::from(eps);
            let of = move |(z, w): (&f32, &f32)| f64::from(*z) / mean.sqrt() * f64::from(*w);
            row.iter().zip(weight).map(of)
        });
        Self {
            rows,
            result: result.collect(),
            inputs,
            residual_out,
        }
    }
}

/// The calls of this rank by one operator.
pub struct NormRun<'a> {
    pub ranks: &'a Communicator,
    pub operator: &'a Operator,
    pub calls: &'a [NormCall],
    /// The operand that is the norm.
    pub result: Operand,
    /// Whether the calls are captured in a graph, which is replayed.
    pub is_graph: bool,
    /// If set, the call count of the operator is set to this number after two calls.
    pub call_count: Option<u32>,
    /// Whether the new residual takes the place of the residual, and Y the place of X.
    pub is_in_place: bool,
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

/// Runs the calls with elements of this type, and returns the bits of each call: first of the result, then of the new
/// residual.
pub fn run(run: &NormRun<'_>, dtype: Dtype) -> Result<Vec<Vec<u32>>, Failure> {
    // The kernel's norm is in fp32.
    let unit = dtype.info().roundoff + 4e-6;
    by_element!(dtype, Element => run.run::<Element>(unit))
}

impl NormRun<'_> {
    fn run<E: ResultElement>(&self, unit: f64) -> Result<Vec<Vec<u32>>, Failure> {
        let stream = match self.is_graph {
            // The default stream cannot be captured.
            true => self.ranks.context().new_stream()?,
            false => self.ranks.default_stream(),
        };
        let mut buffers = Vec::new();
        for call in self.calls {
            buffers.push(self.buffers::<E>(&stream, call)?);
        }
        stream.synchronize()?;
        self.launch(&stream, &buffers)?;
        self.ranks.synchronize(&stream)?;
        let checks = self.calls.iter().zip(&buffers);
        checks
            .map(|(call, buffers)| self.check(&stream, call, buffers, unit))
            .collect()
    }

    fn buffers<E: ResultElement>(
        &self,
        stream: &Arc<CudaStream>,
        call: &NormCall,
    ) -> Result<Buffers<E>, Failure> {
        let rank = self.ranks.rank();
        let mut operands = Vec::new();
        for spec in self.operator.plan().operands() {
            let given = call.inputs.iter().find(|(of, _)| *of == spec.operand);
            let values = given.and_then(|(_, all)| all.get(rank as usize).or(all.first()));
            let values = values.map_or(&[][..], |values| values);
            let mut values: Vec<E> = values.iter().copied().map(E::of).collect();
            // An allocation cannot be empty.
            let elems = (spec.rows.on(rank) * spec.cols).max(1);
            values.resize(elems as usize, E::POISON);
            operands.push((spec.operand, stream.clone_htod(&values)?));
        }
        let rows = stream.clone_htod(&[call.rows as u32])?;
        Ok(Buffers { operands, rows })
    }

    /// Makes all calls, or replays a graph of the calls twice.
    fn launch<E: ResultElement>(
        &self,
        stream: &Arc<CudaStream>,
        buffers: &[Buffers<E>],
    ) -> Result<(), Failure> {
        // Slices must not be asked for their addresses while the stream is captured.
        let calls = (0..).zip(self.calls.iter().zip(buffers));
        let calls = calls.map(|(index, (call, buffers))| {
            let rows = match self.operator.plan().max_rows() {
                None => Rows::Most,
                Some(_) if self.is_graph || index % 2 == 1 => {
                    Rows::At(buffers.rows.device_ptr(stream).0)
                }
                Some(_) => Rows::Count(call.rows),
            };
            (index, rows, self.raw(buffers, stream))
        });
        let calls: Vec<_> = calls.collect();
        let enqueue = || {
            for (index, rows, operands) in calls {
                if let Some(calls) = self.call_count.filter(|_| index == CALLS_BEFORE) {
                    set_call_count(self.ranks, &[self.operator], calls)?;
                }
                // SAFETY: the operands follow the plan, in its order, and live until the stream is synchronized.
                unsafe {
                    self.operator
                        .launch_raw_rows(stream.cu_stream(), &operands, rows)
                }?;
            }
            Ok(())
        };
        if !self.is_graph {
            return enqueue();
        }
        let graph = Graph::capture(self.ranks, stream, enqueue)?;
        graph.launch(stream)?;
        graph.launch(stream)?;
        // The graph is destroyed when this function returns, so the replays have to end first.
        Ok(self.ranks.synchronize(stream)?)
    }

    fn raw<E: ResultElement>(
        &self,
        buffers: &Buffers<E>,
        stream: &Arc<CudaStream>,
    ) -> Vec<RawOperand> {
        let specs = self.operator.plan().operands();
        let of = |((operand, slice), cols): (&(Operand, CudaSlice<E>), u64)| {
            let place = buffers.of(self.place_of(*operand)).unwrap_or(slice);
            RawOperand {
                ptr: place.device_ptr(stream).0,
                row_stride_elems: cols,
            }
        };
        let cols = specs.iter().map(|spec| spec.cols);
        buffers.operands.iter().zip(cols).map(of).collect()
    }

    /// Returns the operand whose place another operand takes.
    fn place_of(&self, operand: Operand) -> Operand {
        match operand {
            Operand::ResidualOut if self.is_in_place => Operand::Residual,
            Operand::Y if self.is_in_place => Operand::X,
            other => other,
        }
    }

    /// Compares the results of a call with the expected results, and returns their bits. Elements beyond the results
    /// must not be written.
    fn check<E: ResultElement>(
        &self,
        stream: &Arc<CudaStream>,
        call: &NormCall,
        buffers: &Buffers<E>,
        unit: f64,
    ) -> Result<Vec<u32>, Failure> {
        let get = |operand| -> Result<Vec<f32>, Failure> {
            let slice = buffers.of(operand).ok_or("an operand is missing")?;
            let values = stream.clone_dtoh(slice)?;
            self.ranks.check()?;
            Ok(values.into_iter().map(Into::into).collect())
        };
        let residual_out = get(self.place_of(Operand::ResidualOut))?;
        let result = get(self.place_of(self.result))?;
        let pairs = residual_out.iter().zip(&call.residual_out);
        let wrong_sums = pairs.filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        let is_wrong = |(got, want): &(&f32, &f64)| {
            let error = (f64::from(**got) - **want).abs();
            error.is_nan() || error > want.abs() * unit + 1e-6
        };
        let wrong = result.iter().zip(&call.result).filter(is_wrong).count();
        let beyond = [&result, &residual_out].map(|all| &all[call.result.len()..]);
        let written = beyond.concat().iter().filter(|x| !x.is_nan()).count();
        if wrong_sums + wrong + written > 0 {
            return Err(format!(
                "rank {}, {} rows: of {} elements each, {wrong_sums} of the new residual and {wrong} of the result are \
                 wrong, and {written} beyond them were written",
                self.ranks.rank(),
                call.rows,
                call.result.len()
            )
            .into());
        }
        let bits = result.iter().chain(&residual_out).map(|x| x.to_bits());
        Ok(bits.collect())
    }
}

/// Returns the results of all ranks, which must have the same bits.
pub fn same_on_all_ranks(results: super::Results) -> Result<super::Results, String> {
    match results.iter().position(|of_rank| *of_rank != results[0]) {
        Some(rank) => Err(format!("rank {rank} has other bits than rank 0")),
        None => Ok(results),
    }
}
