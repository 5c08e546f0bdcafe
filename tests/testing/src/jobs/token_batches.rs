//! Batches of tokens of a layer of experts, whose results are compared bit by bit.
//!
//! The elements, the experts and the weights of a token depend on its number alone. Sums of elements depend on the order of
//! additions, which shows in the few bits of a result, since large terms of a product cancel.

use super::buffer::Elements;
use super::kernel_edits::apply_edits;
use super::machine::Machine;
use super::shares::share;
use super::simulated::{Backend, Results, SimulatedJob};
use crate::lab::{Failure, Random};
use mkernel::cudarc::driver::CudaStream;
use mkernel::network::Faults;
use mkernel::spec::abi::OperandSpec;
use mkernel::spec::{
    BLayout, CombineConfig, CombineOp, CombineShape, Dim, DispatchConfig, DispatchOp,
    DispatchShape, Dtype,
};
use mkernel::testing::prepare_edited;
use mkernel::{Communicator, KernelConfig, Operand, Operator};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A call of `dispatch_gemm`, and a call of `combine` with its rows.
#[derive(Clone, Debug)]
pub struct TokenBatch {
    /// The number of ranks.
    pub world: u32,
    /// The number of nodes that the ranks are divided into.
    pub nodes: u32,
    /// The configuration of `dispatch_gemm`, whose sizes are constant except for the number of tokens.
    pub dispatch: DispatchConfig,
    /// The most tokens of a rank whose sums `combine` sends as packets, or `None` to leave them to the planner.
    pub low_latency_tokens: Option<u32>,
    /// The largest number of tokens of a rank.
    pub max_tokens: u64,
    /// The numbers of the tokens of each rank.
    pub tokens: Vec<Vec<u64>>,
    /// The number of SMs of a simulated GPU.
    pub sms: u32,
    /// The seed of all elements.
    pub seed: u64,
    /// The edits of the kernels' texts, as [`apply_edits`] takes them.
    pub edits: Vec<(String, String)>,
}

/// The results of a batch: for each token, the bits of the rows of its experts and of its sum, as fp32.
type TokenBits = BTreeMap<u64, Vec<u32>>;

/// The results of a rank: the elements of its experts' rows, and the row indices and sums of its tokens.
type RankResults = (Vec<f32>, Vec<i32>, Vec<f32>);

impl TokenBatch {
    /// A batch-invariant layer on one node, without tokens.
    #[must_use]
    pub fn new(world: u32, (experts, top_k): (u64, u64), (hidden, cols): (u64, u64)) -> Self {
        Self {
            world,
            nodes: 1,
            dispatch: DispatchConfig {
                experts: Dim::Static(experts),
                top_k: Dim::Static(top_k),
                hidden: Dim::Static(hidden),
                intermediate: Dim::Static(cols),
                b_layout: BLayout::Nk,
                batch_invariant: true,
                ..DispatchConfig::new(DispatchOp::DispatchGemm)
            },
            low_latency_tokens: None,
            max_tokens: 0,
            tokens: vec![Vec::new(); world as usize],
            sms: 5,
            seed: 0,
            edits: Vec::new(),
        }
    }

    /// The first `count` tokens of the pool in a random order, each on a random rank below `ranks`.
    #[must_use]
    pub fn of_tokens(mut self, random: &mut Random, count: u64, ranks: u32) -> Self {
        self.tokens.iter_mut().for_each(Vec::clear);
        for token in 0..count {
            let rank = &mut self.tokens[random.below(u64::from(ranks)) as usize];
            let place = random.below(rank.len() as u64 + 1) as usize;
            rank.insert(place, token);
        }
        self
    }

    fn size(dim: Dim) -> u64 {
        dim.fixed().expect("a constant size")
    }

    fn prepare(&self, ranks: &Communicator) -> Result<[Operator; 2], Failure> {
        let DispatchConfig {
            experts,
            top_k,
            hidden,
            intermediate,
            dtype,
            batch_invariant,
            ..
        } = self.dispatch;
        let combine = CombineConfig {
            experts,
            top_k,
            hidden: intermediate,
            dtype: dtype.of_results(),
            low_latency_tokens: self.low_latency_tokens,
            batch_invariant,
            ..CombineConfig::new(CombineOp::Combine)
        };
        let (experts, top_k) = (Self::size(experts), Self::size(top_k));
        let (hidden, intermediate) = (Self::size(hidden), Self::size(intermediate));
        let max_tokens = self.max_tokens;
        let shapes = (
            DispatchShape {
                experts,
                top_k,
                max_tokens,
                hidden,
                intermediate,
            },
            CombineShape {
                experts,
                top_k,
                max_tokens,
                hidden: intermediate,
            },
        );
        let on_nodes = |config| KernelConfig {
            nodes: self.nodes,
            ..config
        };
        let edit = |text: &mut String| {
            // Each of the two kernels contains some of the texts.
            let has = |(from, _): &&(String, String)| text.contains(from.as_str());
            let edits: Vec<_> = self.edits.iter().filter(has).cloned().collect();
            apply_edits(ranks, &edits, text);
        };
        let dispatch = on_nodes(KernelConfig::new(self.world, self.dispatch));
        let combine = on_nodes(KernelConfig::new(self.world, combine));
        // SAFETY: edited kernels run on simulated GPUs only, which check every access.
        unsafe {
            Ok([
                prepare_edited(ranks, &dispatch, shapes.0, edit)?,
                prepare_edited(ranks, &combine, shapes.1, edit)?,
            ])
        }
    }

    /// The random numbers of row `number` of an operand.
    fn random(&self, operand: Operand, number: u64) -> Random {
        let place = (operand as u64) << 56 | number;
        Random(self.seed ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The experts of a token.
    fn choices(&self, token: u64) -> Vec<u64> {
        let experts = Self::size(self.dispatch.experts);
        let random = &mut self.random(Operand::TopkIds, token);
        let mut chosen = Vec::new();
        while chosen.len() < Self::size(self.dispatch.top_k) as usize {
            let expert = random.below(experts);
            if !chosen.contains(&expert) {
                chosen.push(expert);
            }
        }
        chosen
    }

    /// The values of an input of a rank with `rows` rows, without the places beyond the rank's tokens.
    fn values(&self, operand: Operand, (rows, cols): (u64, u64), rank: usize) -> Vec<f32> {
        let tokens = &self.tokens[rank];
        // The smallest numbers of e4m3 would be zeros.
        let exponents = match self.dispatch.dtype {
            Dtype::E4m3 => 3,
            _ => 20,
        };
        let lines = |numbers: Vec<u64>, cols: u64, exponents: u64| {
            let line = |number| {
                let mut random = self.random(operand, number);
                let largest = 0.5_f32.powi(random.below(exponents) as i32);
                let mut draw = || largest * ((random.draw() >> 40) as f32 / (1 << 23) as f32 - 1.0);
                (0..cols).map(|_| draw()).collect::<Vec<_>>()
            };
            numbers.into_iter().flat_map(line).collect::<Vec<f32>>()
        };
        let top_k = Self::size(self.dispatch.top_k);
        match operand {
            Operand::NumTokens => vec![tokens.len() as f32],
            Operand::Tokens => {
                let mut tokens = lines(tokens.clone(), cols, exponents);
                tokens
                    .chunks_exact_mut(cols as usize)
                    .for_each(|token| cancel(token, 1.0));
                tokens
            }
            Operand::AScales => lines(tokens.clone(), cols, 4),
            Operand::BScales => {
                let first = rank as u64 * rows;
                lines((first..first + rows).collect(), cols, 4)
            }
            Operand::TopkWeights => lines(tokens.clone(), top_k, 1),
            Operand::TopkIds => {
                let choices = tokens.iter().flat_map(|token| self.choices(*token));
                choices.map(|expert| expert as f32).collect()
            }
            Operand::B => {
                let weight_cols = if self.dispatch.swiglu { 2 } else { 1 };
                let rows = weight_cols * Self::size(self.dispatch.intermediate);
                let local = Self::size(self.dispatch.experts) / u64::from(self.world);
                let first = rank as u64 * local * rows;
                let mut weights = lines((first..first + local * rows).collect(), cols, 1);
                weights
                    .chunks_exact_mut(cols as usize)
                    .for_each(|weight| cancel(weight, -1.0));
                weights
            }
            _ => Vec::new(),
        }
    }

    fn rank(&self, ranks: &Communicator) -> Result<RankResults, Failure> {
        let operators = self.prepare(ranks)?;
        let stream = ranks.default_stream();
        let mut all = Vec::new();
        for operator in &operators {
            let mut operands = BTreeMap::new();
            for spec in operator.plan().operands() {
                let size = (spec.rows.on(ranks.rank()), spec.cols);
                let mut values = self.values(spec.operand, size, ranks.rank() as usize);
                values.resize((size.0 * size.1) as usize, 0.0);
                let elements = Elements::upload(ranks, &stream, spec, &values)?;
                operands.insert(spec.operand as u32, (spec, elements));
            }
            all.push(operands);
        }
        stream.synchronize()?;
        let [mut first, mut second] = <[_; 2]>::try_from(all).map_err(|_| "two operators")?;
        launch_twice(&operators[0], &stream, &mut first)?;
        for operand in [Operand::Rows, Operand::RowIndices] {
            let from = if operand == Operand::Rows {
                Operand::C
            } else {
                operand
            };
            let to = second.get_mut(&(operand as u32)).ok_or("an operand")?;
            to.1.copy_from(&stream, &first[&(from as u32)].1)?;
        }
        launch_twice(&operators[1], &stream, &mut second)?;
        ranks.synchronize(&stream)?;
        ranks.barrier()?;
        let of = |operands: &Operands<'_>, operand| operands[&(operand as u32)].1.values(&stream);
        let indices = of(&first, Operand::RowIndices)?;
        let indices = indices.into_iter().map(|index| index as i32).collect();
        Ok((of(&first, Operand::C)?, indices, of(&second, Operand::C)?))
    }

    /// Makes both calls twice on all ranks and returns the results of the second calls.
    ///
    /// # Errors
    /// A call fails, or the simulator finds a defect.
    pub fn run_on(&self, backend: Backend) -> Result<TokenBits, String> {
        let machine = Machine {
            world: self.world,
            sms: self.sms,
            skew: 60,
        };
        let rank = |ranks: &Communicator| self.rank(ranks);
        let of_ranks = machine.run_over(&Faults::default(), backend, rank)?;
        let cols = Self::size(self.dispatch.intermediate) as usize;
        let top_k = Self::size(self.dispatch.top_k) as usize;
        let most_rows = of_ranks[0].0.len() / cols;
        let mut bits = TokenBits::new();
        for (tokens, (_, indices, sums)) in self.tokens.iter().zip(&of_ranks) {
            for (place, token) in tokens.iter().enumerate() {
                let rows = indices[place * top_k..][..top_k].iter().map(|index| {
                    let (rank, row) = (*index as usize / most_rows, *index as usize % most_rows);
                    &of_ranks[rank].0[row * cols..][..cols]
                });
                let lines = rows.chain([&sums[place * cols..][..cols]]);
                let words = lines.flatten().map(|value| value.to_bits());
                bits.insert(*token, words.collect());
            }
        }
        Ok(bits)
    }
}

/// Sets the second 7/16 of a line to the first 7/16 times `factor`, and the remaining elements to small numbers.
fn cancel(line: &mut [f32], factor: f32) {
    let part = line.len() * 7 / 16;
    let (first, others) = line.split_at_mut(part);
    let (second, rest) = others.split_at_mut(part);
    for (second, first) in second.iter_mut().zip(first) {
        *second = *first * factor;
    }
    rest.iter_mut().for_each(|value| *value /= 64.0);
}

/// The memory of the operands of a call, by the number of the operand.
type Operands<'a> = BTreeMap<u32, (&'a OperandSpec, Elements)>;

fn launch_twice(
    operator: &Operator,
    stream: &Arc<CudaStream>,
    operands: &mut Operands<'_>,
) -> Result<(), Failure> {
    for _ in 0..2 {
        let mut call = operator.call(stream);
        for (spec, elements) in operands.values_mut() {
            call = match spec.written {
                true => elements.written_by(call, spec.operand),
                false => elements.read_by(call, spec.operand),
            };
        }
        call.launch()?;
    }
    Ok(())
}

/// Batches of tokens that are compared with one batch of the same layer that has all tokens.
#[derive(Clone, Debug)]
pub struct ComparedTokens {
    /// The layer.
    pub layer: TokenBatch,
    /// The number of tokens of the pool.
    pub pool: u64,
    /// The numbers of tokens of the other batches.
    pub counts: Vec<u64>,
    /// One in this number of the other batches is run, unless [`share`] returns all.
    pub one_in: u64,
}

impl ComparedTokens {
    /// Runs all batches and compares the tokens that they share with the batch of all tokens.
    ///
    /// # Errors
    /// A call fails, the simulator finds a defect, or a token differs.
    pub fn run_on(&self, backend: Backend, seed: u64) -> Result<(), String> {
        let random = &mut Random(seed);
        let layer = TokenBatch {
            seed,
            max_tokens: self.pool,
            ..self.layer.clone()
        };
        let all = layer.clone().of_tokens(random, self.pool, layer.world);
        let reference = all.run_on(backend)?;
        for (name, batch) in share(self.batches(&layer, random), layer.world, (0, self.one_in)) {
            let bits = batch.run_on(backend);
            let bits = bits.map_err(|error| format!("{name}: {error}"))?;
            let differs = |(token, bits): &(&u64, &Vec<u32>)| reference[*token] != **bits;
            if let Some((token, _)) = bits.iter().find(differs) {
                return Err(format!("{name}: token {token} differs"));
            }
        }
        Ok(())
    }

    /// Few and many tokens, on all ranks and on one rank: with the planner's choices, with other tiles, and without
    /// packets.
    fn batches(&self, layer: &TokenBatch, random: &mut Random) -> Vec<(String, TokenBatch)> {
        let mut found = Vec::new();
        for (index, count) in self.counts.iter().enumerate() {
            let ranks = [layer.world, 1][index % 2];
            let batch = layer.clone().of_tokens(random, *count, ranks);
            found.push((format!("{count} tokens on {ranks} ranks"), batch));
        }
        for (tile_m, tile_n) in [(64, 256), (128, 128)] {
            let mut batch = layer.clone().of_tokens(random, self.pool, layer.world);
            (batch.dispatch.tile_m, batch.dispatch.tile_n) = (Some(tile_m), Some(tile_n));
            batch.low_latency_tokens = Some(0);
            found.push((format!("tiles of {tile_m} x {tile_n}, no packets"), batch));
        }
        // A kernel for few tokens, on another number of SMs.
        let few = self.pool / 4;
        let batch = TokenBatch {
            max_tokens: few,
            sms: 3,
            ..layer.clone().of_tokens(random, few, layer.world)
        };
        found.push((format!("at most {few} tokens"), batch));
        found
    }
}

impl SimulatedJob for ComparedTokens {
    fn run(&self, seed: u64) -> Result<Results, String> {
        self.run_on(Backend::Simulated { seed }, seed)?;
        Ok(Results::new())
    }

    fn edit(&mut self, edits: Vec<(String, String)>) {
        self.layer.edits = edits;
    }
}
