//! Calls of an operator that normalises the rows of its result, or makes elements of e4m3.

use super::buffer::Elements;
use super::quantised::Quantised;
use super::{CALLS_BEFORE, set_call_count, stream_of};
use crate::graph::Graph;
use crate::lab::Failure;
use mkernel::cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use mkernel::operands::{RawOperand, Rows};
use mkernel::spec::Dtype;
use mkernel::spec::plan::SCALE_BLOCK;
use mkernel::{Communicator, Operand, Operator};
use std::sync::Arc;

/// The operands of all ranks for one call, and the expected results of every rank.
pub struct NormCall {
    pub rows: u64,
    /// The operands with the values that each rank passes, or one entry if all ranks pass equal values.
    pub inputs: Vec<(Operand, Vec<Vec<f32>>)>,
    /// Empty if the operator does not normalise.
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
    /// The operand that is the norm or the quantised sum.
    pub result: Operand,
    /// Whether the calls are captured in a graph, which is replayed.
    pub is_graph: bool,
    /// If set, the call count of the operator is set to this number after two calls.
    pub call_count: Option<u32>,
    /// Whether the new residual takes the place of the residual, and Y of the type of X the place of X.
    pub is_in_place: bool,
    /// If the result is e4m3, the bits of each call of the same kernel without scales, as [`run`] returns them.
    pub unscaled: Option<Vec<Vec<u32>>>,
}

/// The operands of a call in device memory, in the order of the plan, and its rows.
struct Buffers {
    operands: Vec<(Operand, Elements)>,
    rows: CudaSlice<u32>,
}

impl Buffers {
    fn of(&self, operand: Operand) -> Option<&Elements> {
        let found = self.operands.iter().find(|(of, _)| *of == operand);
        found.map(|(_, elements)| elements)
    }
}

/// Runs the calls with elements of this type, and returns the bits of each call: first of the result, then of the new
/// residual, and then of the scales of the result.
pub fn run(run: &NormRun<'_>, dtype: Dtype) -> Result<Vec<Vec<u32>>, Failure> {
    // The kernel's norm is in fp32.
    let unit = dtype.info().roundoff + 4e-6;
    run.run(unit)
}

impl NormRun<'_> {
    fn run(&self, unit: f64) -> Result<Vec<Vec<u32>>, Failure> {
        let stream = stream_of(self.ranks, self.is_graph)?;
        let mut buffers = Vec::new();
        for call in self.calls {
            buffers.push(self.buffers(&stream, call)?);
        }
        stream.synchronize()?;
        self.launch(&stream, &buffers)?;
        self.ranks.synchronize(&stream)?;
        let checks = self.calls.iter().zip(&buffers).enumerate();
        checks
            .map(|(index, (call, buffers))| {
                let unscaled = self.unscaled.as_ref().map(|calls| &calls[index][..]);
                self.check(&stream, call, buffers, (unit, unscaled))
            })
            .collect()
    }

    fn buffers(&self, stream: &Arc<CudaStream>, call: &NormCall) -> Result<Buffers, Failure> {
        let rank = self.ranks.rank();
        let mut operands = Vec::new();
        for spec in self.operator.plan().operands() {
            let given = call.inputs.iter().find(|(of, _)| *of == spec.operand);
            let values = given.and_then(|(_, all)| all.get(rank as usize).or(all.first()));
            let mut values = values.cloned().unwrap_or_default();
            // An allocation cannot be empty. No kernel computes a NaN.
            let elems = (spec.rows.on(rank) * spec.cols).max(1) as usize;
            values.resize(elems, f32::NAN);
            let elements = Elements::upload(self.ranks, stream, spec, &values)?;
            operands.push((spec.operand, elements));
        }
        let rows = stream.clone_htod(&[call.rows as u32])?;
        Ok(Buffers { operands, rows })
    }

    /// Makes all calls, or replays a graph of the calls twice.
    fn launch(&self, stream: &Arc<CudaStream>, buffers: &[Buffers]) -> Result<(), Failure> {
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

    fn raw(&self, buffers: &Buffers, stream: &Arc<CudaStream>) -> Vec<RawOperand> {
        let specs = self.operator.plan().operands();
        let of = |((operand, elements), cols): (&(Operand, Elements), u64)| {
            let place = buffers.of(self.place_of(*operand)).unwrap_or(elements);
            RawOperand {
                ptr: place.address(stream),
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
            Operand::Y if self.is_in_place && self.unscaled.is_none() => Operand::X,
            other => other,
        }
    }

    fn scales_of_result(&self) -> Operand {
        match self.result {
            Operand::C => Operand::CScales,
            _ => Operand::YScales,
        }
    }

    /// Compares the results of a call with the expected results, and returns their bits. Elements beyond the results
    /// must not be written. `unscaled` are the bits of the call without scales.
    fn check(
        &self,
        stream: &Arc<CudaStream>,
        call: &NormCall,
        buffers: &Buffers,
        (unit, unscaled): (f64, Option<&[u32]>),
    ) -> Result<Vec<u32>, Failure> {
        let get = |operand| -> Result<Vec<f32>, Failure> {
            let elements = buffers.of(operand).ok_or("an operand is missing")?;
            let values = elements.values(stream)?;
            self.ranks.check()?;
            Ok(values)
        };
        let residual_out = match buffers.of(Operand::ResidualOut) {
            Some(_) => get(self.place_of(Operand::ResidualOut))?,
            None => Vec::new(),
        };
        let result = get(self.place_of(self.result))?;
        let wrong_sums = other_bits(&residual_out, &call.residual_out);
        let elements = call.result.len();
        let (wrong, scales) = match unscaled {
            None => (wrong_norms(&result, &call.result, unit), Vec::new()),
            Some(bits) => {
                let scales = get(self.scales_of_result())?;
                let (of_call, of_scales) = self.quantised(&bits[..elements]);
                let wrong = other_bits(&result, &of_call) + other_bits(&scales, &of_scales);
                let (of_call, beyond) = scales.split_at(of_scales.len());
                let written = beyond.iter().filter(|x| !x.is_nan()).count();
                (wrong + written, of_call.to_vec())
            }
        };
        let beyond = [&result, &residual_out].map(|all| all.get(elements..).unwrap_or_default());
        let written = beyond.concat().iter().filter(|x| !x.is_nan()).count();
        if wrong_sums + wrong + written > 0 {
            return Err(format!(
                "rank {}, {} rows: of {elements} elements each, {wrong_sums} of the new residual and {wrong} of the result are \
                 wrong, and {written} beyond them were written",
                self.ranks.rank(),
                call.rows,
            )
            .into());
        }
        let bits = result.iter().chain(&residual_out).chain(&scales);
        Ok(bits.map(|x| x.to_bits()).collect())
    }

    /// The elements of e4m3 and the scales of a result with these bits.
    fn quantised(&self, bits: &[u32]) -> (Vec<f32>, Vec<f32>) {
        let specs = self.operator.plan().operands().iter();
        let cols = |operand| {
            let spec = specs.clone().find(|spec| spec.operand == operand);
            spec.map_or(1, |spec| spec.cols) as usize
        };
        let (n, of_row) = (cols(self.result), cols(self.scales_of_result()));
        let share = if of_row == 1 { n } else { SCALE_BLOCK as usize };
        let result: Vec<f32> = bits.iter().copied().map(f32::from_bits).collect();
        let blocks = result.chunks(n).flat_map(|row| row.chunks(share));
        let blocks: Vec<_> = blocks.map(Quantised::of).collect();
        let elements = blocks.iter().flat_map(|block| &block.elements);
        let elements = elements.map(|x| x.to_f32()).collect();
        (elements, blocks.iter().map(|block| block.scale).collect())
    }
}

/// The number of elements whose bits are not the expected bits.
fn other_bits(found: &[f32], expected: &[f32]) -> usize {
    let pairs = found.iter().zip(expected);
    pairs.filter(|(a, b)| a.to_bits() != b.to_bits()).count()
}

/// The number of elements that are not the expected norm, which has an error of `unit`.
fn wrong_norms(found: &[f32], expected: &[f64], unit: f64) -> usize {
    let is_wrong = |(got, want): &(&f32, &f64)| {
        let error = (f64::from(**got) - **want).abs();
        error.is_nan() || error > want.abs() * unit + 1e-6
    };
    found.iter().zip(expected).filter(is_wrong).count()
}

/// Returns the results of all ranks, which must have the same bits.
pub fn same_on_all_ranks(results: super::Results) -> Result<super::Results, String> {
    match results.iter().position(|of_rank| *of_rank != results[0]) {
        Some(rank) => Err(format!("rank {rank} has other bits than rank 0")),
        None => Ok(results),
    }
}
