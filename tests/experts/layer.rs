//! A layer of experts: tokens to their experts, and the weighted sums back; several calls in a row, each with other tokens.

use mkernel::cudarc::driver::{CudaSlice, CudaStream};
use mkernel::half::bf16;
use mkernel::spec::abi::Operand;
use mkernel::{
    BLayout, CombineConfig, CombineOp, CombineShape, Communicator, Dim, DispatchConfig, DispatchOp,
    DispatchShape, Error, KernelConfig, Operator, Simulation,
};
use std::sync::Arc;

/// Tokens of a call, by rank: the experts of each.
pub type Call = Vec<Vec<Vec<i32>>>;

/// Replacements in a kernel's text, each of which must be found.
pub type Edits = Vec<(String, String)>;

#[derive(Clone, Debug)]
pub struct Layer {
    pub world: u32,
    pub experts: u64,
    pub top_k: u64,
    pub max_tokens: u64,
    pub hidden: u64,
    pub intermediate: u64,
    pub nk: bool,
    pub tile: Option<(u32, u32)>,
    pub max_rows: Option<u32>,
    pub sms: u32,
    pub skew: u32,
    pub calls: Vec<Call>,
    /// What is said of the number of tokens, if not the truth.
    pub count: Option<i32>,
    pub dispatch_edits: Edits,
    pub combine_edits: Edits,
}

/// What a rank gets of a call: places, offsets, rows, sums.
#[derive(Clone, Debug, PartialEq)]
struct Got {
    places: Vec<i32>,
    offsets: Vec<i32>,
    rows: Vec<f32>,
    sums: Vec<f32>,
}

/// Operands of a call.
struct Buffers {
    tokens: CudaSlice<bf16>,
    count: CudaSlice<i32>,
    ids: CudaSlice<i32>,
    gates: CudaSlice<f32>,
    rows: CudaSlice<bf16>,
    offsets: CudaSlice<i32>,
    places: CudaSlice<i32>,
    sums: CudaSlice<bf16>,
}

/// Small whole numbers, few of them not 0: sums stay exact in bf16.
fn token_value(call: usize, rank: usize, token: usize, col: usize) -> f32 {
    let x = (call * 7919 + rank * 104_729 + token * 1299 + col * 31) % 97;
    [1.0, -1.0, 2.0].get(x / 2).copied().unwrap_or(0.0)
}

fn weight_value(expert: usize, row: usize, col: usize) -> f32 {
    ((expert * 31 + row * 17 + col * 7) % 3) as f32 - 1.0
}

fn gate_value(token: usize, choice: usize) -> f32 {
    [1.0, 2.0, -1.0][(token + 2 * choice) % 3]
}

impl Layer {
    /// Kernels as they are rendered, a tile of 64 x 128 if it may be small.
    pub fn new(world: u32, experts: u64, top_k: u64, max_tokens: u64) -> Self {
        Self {
            world,
            experts,
            top_k,
            max_tokens,
            hidden: 200,
            intermediate: 72,
            nk: false,
            tile: Some((64, 128)),
            max_rows: None,
            sms: 5,
            skew: 60,
            calls: Vec::new(),
            count: None,
            dispatch_edits: Vec::new(),
            combine_edits: Vec::new(),
        }
    }

    /// With another call, in which token `t` of rank `r`, of `counts[r]`, has experts `choose(r, t)`.
    pub fn call(mut self, counts: &[usize], choose: impl Fn(usize, usize) -> Vec<i32>) -> Self {
        let of_rank =
            |(rank, count): (usize, &usize)| (0..*count).map(|t| choose(rank, t)).collect();
        self.calls
            .push(counts.iter().enumerate().map(of_rank).collect());
        self
    }

    fn local(&self) -> usize {
        self.experts as usize / self.world as usize
    }

    fn configs(&self) -> (KernelConfig, KernelConfig) {
        let dispatch = DispatchConfig {
            experts: Dim::Static(self.experts),
            top_k: Dim::Static(self.top_k),
            max_tokens: Dim::DYNAMIC,
            hidden: Dim::Static(self.hidden),
            intermediate: Dim::Static(self.intermediate),
            b_layout: if self.nk { BLayout::Nk } else { BLayout::Kn },
            max_rows: self.max_rows,
            tile_m: self.tile.map(|tile| tile.0),
            tile_n: self.tile.map(|tile| tile.1),
            ..DispatchConfig::new(DispatchOp::DispatchGemm)
        };
        let combine = CombineConfig {
            experts: Dim::Static(self.experts),
            top_k: Dim::Static(self.top_k),
            max_tokens: Dim::DYNAMIC,
            hidden: Dim::Static(self.intermediate),
            max_rows: self.max_rows,
            ..CombineConfig::new(CombineOp::Combine)
        };
        (
            KernelConfig::new(self.world, dispatch),
            KernelConfig::new(self.world, combine),
        )
    }

    /// Runs it with `seed`: what each rank says.
    pub fn run(&self, seed: u64) -> Vec<Result<(), String>> {
        let simulation = Simulation {
            ranks: self.world,
            seed,
            sms: self.sms,
            skew: self.skew,
            timeline: false,
        };
        let ranks = Communicator::simulated(&simulation).expect("simulated GPUs");
        std::thread::scope(|scope| {
            let threads: Vec<_> = ranks
                .into_iter()
                .map(|ranks| scope.spawn(move || self.rank(&ranks)))
                .collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined
                .map(|result| result.unwrap_or_else(|_| Err("a rank panicked".to_owned())))
                .collect()
        })
    }

    /// The first failure, of whatever rank; a finding before what came of it.
    pub fn failure(&self, seed: u64) -> Option<String> {
        let mut failures: Vec<_> = self.run(seed).into_iter().filter_map(Result::err).collect();
        failures.sort_by_key(|failure| !failure.contains("simulator found"));
        failures.into_iter().next()
    }

    fn rank(&self, ranks: &Communicator) -> Result<(), String> {
        let rank = ranks.rank() as usize;
        let got = self.results(ranks).map_err(|error| error.to_string())?;
        for (index, (call, got)) in self.calls.iter().zip(got).enumerate() {
            let expected = self.expected(index, call, rank);
            for (what, is_right) in [
                ("places", got.places == expected.places),
                ("offsets", got.offsets == expected.offsets),
                ("rows", same(&got.rows, &expected.rows)),
                ("sums", same(&got.sums, &expected.sums)),
            ] {
                if !is_right {
                    return Err(format!("rank {rank}, call {index}: wrong {what}"));
                }
            }
        }
        Ok(())
    }

    fn results(&self, ranks: &Communicator) -> Result<Vec<Got>, Box<dyn std::error::Error>> {
        // Kernels' own deadlines pass in simulated time.
        ranks.set_timeout(std::time::Duration::from_secs(20));
        let (dispatch, combine) = self.prepare(ranks)?;
        let stream = ranks.context().default_stream();
        let rank = ranks.rank() as usize;
        let weights = self.weights(rank);
        let weights = stream.clone_htod(&weights)?;
        let mut buffers = Vec::new();
        for (index, call) in self.calls.iter().enumerate() {
            buffers.push(self.buffers(&stream, index, &call[rank], rank)?);
        }
        stream.synchronize()?;
        for all in &mut buffers {
            dispatch
                .call(&stream)
                .read(Operand::Tokens, &all.tokens)
                .read(Operand::Count, &all.count)
                .read(Operand::Ids, &all.ids)
                .read(Operand::B, &weights)
                .write(Operand::C, &mut all.rows)
                .write(Operand::Offsets, &mut all.offsets)
                .write(Operand::Places, &mut all.places)
                .launch()?;
        }
        // Only now: an operator's calls follow each other, and no other holds ranks together.
        for all in &mut buffers {
            combine
                .call(&stream)
                .read(Operand::Rows, &all.rows)
                .read(Operand::Count, &all.count)
                .read(Operand::Places, &all.places)
                .read(Operand::Gates, &all.gates)
                .write(Operand::C, &mut all.sums)
                .launch()?;
        }
        ranks.synchronize(&stream)?;
        let floats = |slice: &CudaSlice<bf16>| -> Result<Vec<f32>, Box<dyn std::error::Error>> {
            Ok(stream
                .clone_dtoh(slice)?
                .into_iter()
                .map(bf16::to_f32)
                .collect())
        };
        let mut results = Vec::new();
        for all in &buffers {
            results.push(Got {
                places: stream.clone_dtoh(&all.places)?,
                offsets: stream.clone_dtoh(&all.offsets)?,
                rows: floats(&all.rows)?,
                sums: floats(&all.sums)?,
            });
        }
        ranks.check()?;
        Ok(results)
    }

    fn prepare(&self, ranks: &Communicator) -> Result<(Operator, Operator), Error> {
        let (dispatch, combine) = self.configs();
        let edit = |text: &mut String, edits: &Edits| {
            for (from, to) in edits {
                assert!(text.contains(from.as_str()), "the kernel has no\n{from}");
                *text = text.replace(from.as_str(), to);
            }
        };
        let dispatch_shape = DispatchShape {
            experts: self.experts,
            top_k: self.top_k,
            max_tokens: self.max_tokens,
            hidden: self.hidden,
            intermediate: self.intermediate,
        };
        let combine_shape = CombineShape {
            experts: self.experts,
            top_k: self.top_k,
            max_tokens: self.max_tokens,
            hidden: self.intermediate,
        };
        Ok((
            ranks.prepare_edited(&dispatch, dispatch_shape, |text| {
                edit(text, &self.dispatch_edits);
            })?,
            ranks.prepare_edited(&combine, combine_shape, |text| {
                edit(text, &self.combine_edits);
            })?,
        ))
    }

    fn max_rows(&self) -> usize {
        let most =
            mkernel::spec::config::all_rows(self.world, self.experts, self.top_k, self.max_tokens);
        self.max_rows.map_or(most, |rows| most.min(rows.into())) as usize
    }

    fn weights(&self, rank: usize) -> Vec<bf16> {
        let (hidden, cols) = (self.hidden as usize, self.intermediate as usize);
        let first = rank * self.local();
        let of = |expert: usize, i: usize| match self.nk {
            true => weight_value(expert, i % hidden, i / hidden),
            false => weight_value(expert, i / cols, i % cols),
        };
        (first..first + self.local())
            .flat_map(|expert| (0..hidden * cols).map(move |i| bf16::from_f32(of(expert, i))))
            .collect()
    }

    fn buffers(
        &self,
        stream: &Arc<CudaStream>,
        call: usize,
        tokens: &[Vec<i32>],
        rank: usize,
    ) -> Result<Buffers, mkernel::cudarc::driver::DriverError> {
        let (hidden, max_tokens) = (self.hidden as usize, self.max_tokens as usize);
        let choices = max_tokens * self.top_k as usize;
        let values = (0..max_tokens * hidden).map(|i| match i / hidden < tokens.len() {
            true => bf16::from_f32(token_value(call, rank, i / hidden, i % hidden)),
            false => bf16::NAN, // nobody must look there
        });
        let mut ids: Vec<i32> = tokens.iter().flatten().copied().collect();
        ids.resize(choices, -7);
        let top_k = self.top_k as usize;
        let gates: Vec<f32> = (0..choices)
            .map(|i| gate_value(i / top_k, i % top_k))
            .collect();
        let poison = |elems: u64| stream.clone_htod(&vec![bf16::NAN; elems as usize]);
        Ok(Buffers {
            tokens: stream.clone_htod(&values.collect::<Vec<_>>())?,
            count: stream.clone_htod(&[self.count.unwrap_or(tokens.len() as i32)])?,
            ids: stream.clone_htod(&ids)?,
            gates: stream.clone_htod(&gates)?,
            rows: poison(self.max_rows() as u64 * self.intermediate)?,
            offsets: stream.clone_htod(&vec![-1; self.local() + 1])?,
            places: stream.clone_htod(&vec![-1; choices])?,
            sums: poison(self.max_tokens * self.intermediate)?,
        })
    }

    /// By hand: loops over all tokens.
    fn expected(&self, index: usize, call: &Call, rank: usize) -> Got {
        let (hidden, cols) = (self.hidden as usize, self.intermediate as usize);
        let local = self.local();
        let product = |source: usize, token: usize, expert: usize| -> Vec<f32> {
            let x: Vec<_> = (0..hidden)
                .map(|i| (i, token_value(index, source, token, i)))
                .filter(|(_, x)| *x != 0.0)
                .collect();
            let of = |col| {
                x.iter()
                    .map(|(i, x)| x * weight_value(expert, *i, col))
                    .sum()
            };
            (0..cols).map(of).collect()
        };
        let (mut rows, mut offsets) = (Vec::new(), vec![0]);
        let mut places = vec![-1; (self.max_tokens * self.top_k) as usize];
        for expert in 0..self.experts as usize {
            let is_here = expert / local == rank;
            let before = (expert / local * local..expert)
                .map(|e| count(call, e))
                .sum::<usize>();
            let mut row = before;
            for (source, tokens) in call.iter().enumerate() {
                for (token, choices) in tokens.iter().enumerate() {
                    let Some(choice) = choices.iter().position(|e| *e as usize == expert) else {
                        continue;
                    };
                    if source == rank {
                        let place = expert / local * self.max_rows() + row;
                        places[token * self.top_k as usize + choice] = place as i32;
                    }
                    if is_here {
                        rows.extend(product(source, token, expert));
                    }
                    row += 1;
                }
            }
            if is_here {
                offsets.push(row as i32);
            }
        }
        rows.resize(self.max_rows() * cols, f32::NAN);
        let mut sums = Vec::new();
        for (token, choices) in call[rank].iter().enumerate() {
            let mut sum = vec![0.0; cols];
            for (choice, expert) in choices.iter().enumerate() {
                let row = product(rank, token, *expert as usize);
                for (sum, x) in sum.iter_mut().zip(row) {
                    *sum += gate_value(token, choice) * x;
                }
            }
            sums.extend(sum);
        }
        sums.resize(self.max_tokens as usize * cols, f32::NAN);
        Got {
            places,
            offsets,
            rows,
            sums,
        }
    }
}

fn count(call: &Call, expert: usize) -> usize {
    let all = call.iter().flatten().flatten();
    all.filter(|id| **id as usize == expert).count()
}

/// Equal, or both not written.
fn same(got: &[f32], expected: &[f32]) -> bool {
    got.len() == expected.len()
        && got
            .iter()
            .zip(expected)
            .all(|(got, want)| got == want || got.is_nan() && want.is_nan())
}
