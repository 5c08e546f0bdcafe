//! [`Turns`]: operators of any kind that take turns in one communicator.
//!
//! The first call of each operator is made alone. All later calls with the operands of the first call must give its
//! results, bit by bit. The jobs of each kind test whether these results are right.

use crate::lab::Failure;
use mkernel::cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use mkernel::float8::F8E4M3;
use mkernel::half::{bf16, f16};
use mkernel::spec::abi::{Operand, OperandSpec};
use mkernel::{
    Communicator, KernelConfig, Operator,
    operands::RawOperand,
    spec::{Dtype, Problem},
};
use std::sync::Arc;

/// The bytes of results before a call. Every element type has these bytes as a NaN, or as a value that no kernel
/// writes.
const POISON: u8 = 0xff;

/// An operator with its operands and its expected results.
struct Player {
    operator: Operator,
    /// The operands that calls read; `None` for operands that calls write.
    inputs: Vec<Option<CudaSlice<u8>>>,
    expected: Vec<Vec<u8>>,
}

/// A call: the operator that makes it, and its results.
struct Turn {
    player: usize,
    results: Vec<CudaSlice<u8>>,
}

/// The operators of a rank that take turns, and their calls.
pub struct Turns<'a> {
    ranks: &'a Communicator,
    stream: Arc<CudaStream>,
    players: Vec<Player>,
    turns: Vec<Turn>,
    /// The number of calls that have been enqueued.
    enqueued: usize,
}

impl<'a> Turns<'a> {
    /// Prepares operators, makes the first call of each, and prepares the memory of the calls that `order` names by
    /// operator. `combine` needs a `dispatch_gemm` with the same sizes before it. All ranks must pass the same
    /// configurations and the same order.
    ///
    /// # Errors
    /// An operator cannot be prepared, or a first call fails.
    pub fn new(
        ranks: &'a Communicator,
        configs: &[KernelConfig],
        order: &[usize],
    ) -> Result<Self, Failure> {
        // SAFETY: all calls and copies are made on one stream.
        unsafe { ranks.context().disable_event_tracking() };
        let mut turns = Self {
            ranks,
            stream: ranks.context().new_stream()?,
            players: Vec::new(),
            turns: Vec::new(),
            enqueued: 0,
        };
        for config in configs {
            turns.add(config)?;
        }
        turns.enqueued = 0;
        let all = order.iter().map(|player| turns.poisoned(*player));
        turns.turns = all.collect::<Result<_, _>>()?;
        turns.stream.synchronize()?;
        Ok(turns)
    }

    /// Prepares an operator and makes its first call.
    fn add(&mut self, config: &KernelConfig) -> Result<(), Failure> {
        let shape = config.problem.shape().ok_or("a dynamic dimension")?;
        let operator = self.ranks.prepare(config, shape)?;
        let inputs = self.inputs(&operator, config)?;
        self.players.push(Player {
            operator,
            inputs,
            expected: Vec::new(),
        });
        let player = self.players.len() - 1;
        self.turns.push(self.poisoned(player)?);
        self.call()?;
        self.ranks.synchronize(&self.stream)?;
        self.players[player].expected = self.read(&self.turns[player].results)?;
        Ok(())
    }

    /// Returns a call of an operator, whose results are poison.
    fn poisoned(&self, player: usize) -> Result<Turn, Failure> {
        let specs = self.players[player].operator.plan().operands();
        let poison = |spec| Ok(self.stream.clone_htod(&vec![POISON; self.bytes(spec)])?);
        let written = specs.iter().filter(|spec| spec.written);
        let results = written.map(poison).collect::<Result<_, Failure>>()?;
        Ok(Turn { player, results })
    }

    /// The stream of the calls.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Enqueues the next call.
    ///
    /// # Errors
    /// The call cannot be enqueued.
    pub fn call(&mut self) -> Result<(), Failure> {
        let Turn { player, results } = &self.turns[self.enqueued];
        let Player {
            operator, inputs, ..
        } = &self.players[*player];
        let mut results = results.iter();
        let mut operands = Vec::new();
        for (spec, input) in operator.plan().operands().iter().zip(inputs) {
            let memory = input.as_ref().or_else(|| results.next());
            operands.push(RawOperand {
                ptr: memory.ok_or("no result")?.device_ptr(&self.stream).0,
                row_stride_elems: spec.cols,
            });
        }
        // SAFETY: the memory has the sizes of the plan, and is kept as long as the operator. Nothing else uses the
        // results, and nothing writes the inputs. The stream lives longer than the operator.
        unsafe { operator.launch_raw(self.stream.cu_stream(), &operands)? };
        self.enqueued += 1;
        Ok(())
    }

    /// Waits for the calls, and compares their results with the results of the first calls.
    ///
    /// # Errors
    /// A call has failed, or a result has other bits.
    pub fn check(&self) -> Result<(), Failure> {
        self.ranks.synchronize(&self.stream)?;
        for (number, turn) in self.turns[..self.enqueued].iter().enumerate() {
            let player = &self.players[turn.player];
            if self.read(&turn.results)? != player.expected {
                let (rank, id) = (self.ranks.rank(), &player.operator.plan().id);
                let error = format!("rank {rank}: call {number}, of {id}, has other bits");
                return Err(error.into());
            }
        }
        self.ranks.check()?;
        Ok(())
    }

    fn read(&self, results: &[CudaSlice<u8>]) -> Result<Vec<Vec<u8>>, Failure> {
        let read = |result| Ok(self.stream.clone_dtoh(result)?);
        results.iter().map(read).collect()
    }

    /// The size of an operand on this rank. An allocation cannot be empty.
    fn bytes(&self, spec: &OperandSpec) -> usize {
        let elems = spec.rows.on(self.ranks.rank()) * spec.cols;
        (elems * spec.dtype.bytes()).max(16) as usize
    }

    /// Returns the operands that calls read.
    fn inputs(
        &self,
        operator: &Operator,
        config: &KernelConfig,
    ) -> Result<Vec<Option<CudaSlice<u8>>>, Failure> {
        let specs = operator.plan().operands().iter().zip(0u64..);
        let input = |(spec, index): (&OperandSpec, u64)| {
            if spec.written {
                return Ok(None);
            }
            let bytes = match spec.operand {
                Operand::RowIndices => self.row_indices(spec)?,
                _ => self.values(spec, config, index),
            };
            Ok(Some(self.stream.clone_htod(&bytes)?))
        };
        specs.map(input).collect()
    }

    /// Returns the row indices that the last operator with such a result has written.
    fn row_indices(&self, spec: &OperandSpec) -> Result<Vec<u8>, Failure> {
        let written = self.players.iter().rev().find_map(|player| {
            let specs = player.operator.plan().operands();
            let mut results = specs.iter().filter(|spec| spec.written);
            let index = results.position(|result| result.operand == spec.operand)?;
            player.expected.get(index)
        });
        Ok(written.ok_or("combine without dispatch_gemm")?.clone())
    }

    /// Returns the bytes of an operand, which depend on its place and on the rank.
    fn values(&self, spec: &OperandSpec, config: &KernelConfig, index: u64) -> Vec<u8> {
        let rank = u64::from(self.ranks.rank());
        let number = |elem: u64| {
            let mixed = (elem + (index << 24) + (rank << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed ^ (mixed >> 29)
        };
        let small = |elem: u64| (number(elem) % 17) as f32 / 8.0 - 1.0;
        let elems = 0..self.bytes(spec) as u64 / spec.dtype.bytes();
        match (spec.operand, spec.dtype) {
            (_, Dtype::Bf16) => elems
                .flat_map(|elem| bf16::from_f32(small(elem)).to_le_bytes())
                .collect(),
            (_, Dtype::Fp16) => elems
                .flat_map(|elem| f16::from_f32(small(elem)).to_le_bytes())
                .collect(),
            (_, Dtype::E4m3) => elems
                .map(|elem| F8E4M3::from_f32(small(elem)).to_bits())
                .collect(),
            (_, Dtype::Fp32) => elems.flat_map(|elem| small(elem).to_le_bytes()).collect(),
            (_, Dtype::Int32) => {
                let (experts, top_k, max_tokens) = routing(config);
                let tokens = max_tokens - rank.min(max_tokens);
                let value = |elem: u64| match spec.operand {
                    // The choices of a token are neighbours, so they differ.
                    Operand::TopkIds => (number(elem / top_k) + elem % top_k) % experts,
                    _ => tokens,
                };
                elems
                    .flat_map(|elem| (value(elem) as i32).to_le_bytes())
                    .collect()
            }
        }
    }
}

/// Returns the experts, the choices of a token, and the tokens of a rank.
fn routing(config: &KernelConfig) -> (u64, u64, u64) {
    let dims = match &config.problem {
        Problem::Dispatch(config) => [config.experts, config.top_k, config.max_tokens],
        Problem::Combine(config) => [config.experts, config.top_k, config.max_tokens],
        _ => return (1, 1, 0),
    };
    let [experts, top_k, max_tokens] = dims.map(|dim| dim.fixed().unwrap_or(1));
    (experts, top_k, max_tokens)
}
