//! A layer of experts: tokens to their experts, and the weighted sums back; several calls in a row, each with other tokens.

mod buffers;

use crate::simulated::attention::Pace;
use crate::simulated::{Machine, Where, apply};
use buffers::{Buffers, Got, Values};
use mkernel::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use mkernel::half::bf16;
use mkernel::{
    BLayout, CombineConfig, CombineOp, CombineShape, Communicator, Dim, DispatchConfig, DispatchOp,
    DispatchShape, Error, KernelConfig, Operator,
};
use std::time::Duration;

/// Tokens of a call, by rank: the experts of each.
pub type Call = Vec<Vec<Vec<i32>>>;

/// Bits of the sums of all calls.
pub type Bits = Vec<u32>;

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
    pub pace: Pace,
    pub calls: Vec<Call>,
    /// What is said of the number of tokens, if not the truth.
    pub count: Option<i32>,
    pub dispatch_edits: Edits,
    pub combine_edits: Edits,
}

/// Small whole numbers, few of them not 0: sums stay exact in bf16.
/// In a long row fewer of a hundred.
fn token_value(call: usize, rank: usize, token: usize, col: usize, hidden: usize) -> f32 {
    let period = 97.max(hidden / 5);
    let x = (call * 7919 + rank * 104_729 + token * 1299 + col * 31) % period;
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
            pace: Pace::BackToBack,
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

    /// With three calls, so that each buffer is used again, with other numbers of tokens.
    pub fn mixed(self, counts: [&[usize]; 3]) -> Self {
        let (experts, top_k) = (self.experts as usize, self.top_k as usize);
        counts
            .into_iter()
            .enumerate()
            .fold(self, |layer, (salt, counts)| {
                layer.call(counts, |rank, token| {
                    let first = (rank * 5 + token * 3 + salt) % experts;
                    (0..top_k)
                        .map(|j| ((first + j * (1 + token % 2)) % experts) as i32)
                        .collect()
                })
            })
    }

    /// With another call whose ids look random; if `skewed`, expert e is chosen as often as 1 / (e + 1) says.
    pub fn random(self, counts: &[usize], skewed: bool) -> Self {
        let (experts, top_k) = (self.experts, self.top_k as usize);
        let salt = self.calls.len();
        self.call(counts, |rank, token| {
            let mut state = (salt << 40 | rank << 32 | token) as u64;
            let mut chosen = Vec::with_capacity(top_k);
            while chosen.len() < top_k {
                let x = fraction(&mut state);
                let expert = match skewed {
                    true => (experts as f64 + 1.0).powf(x) as u64 - 1,
                    false => (x * experts as f64) as u64,
                };
                let expert = expert.min(experts - 1) as i32;
                if !chosen.contains(&expert) {
                    chosen.push(expert);
                }
            }
            chosen
        })
    }

    /// Runs it with `seed`: what each rank says.
    pub fn run(&self, seed: u64) -> Vec<Result<Bits, String>> {
        self.run_on(Where::Simulated { seed })
    }

    /// What each rank says; the bits of its sums, if all is right.
    pub fn run_on(&self, place: Where) -> Vec<Result<Bits, String>> {
        let machine = Machine {
            world: self.world,
            sms: self.sms,
            skew: self.skew,
        };
        let said = machine.each(place, |ranks, _| self.rank(ranks));
        said.expect("GPUs")
    }

    /// The first failure, of whatever rank; a finding before what came of it.
    pub fn failure(&self, seed: u64) -> Option<String> {
        let mut failures: Vec<_> = self.run(seed).into_iter().filter_map(Result::err).collect();
        failures.sort_by_key(|failure| !failure.contains("simulator found"));
        failures.into_iter().next()
    }

    fn rank(&self, ranks: &Communicator) -> Result<Bits, Box<dyn std::error::Error>> {
        let rank = ranks.rank() as usize;
        // Kernels' own deadlines pass in simulated time.
        ranks.set_timeout(match self.pace {
            Pace::Without { .. } => Duration::from_millis(300),
            _ => Duration::from_secs(20),
        });
        let operators = self.prepare(ranks)?;
        let got = match self.pace {
            Pace::Without { rank } if rank == ranks.rank() => return Ok(Vec::new()),
            Pace::Graph => self.replayed(ranks, &operators)?,
            _ => self.launched(ranks, &operators)?,
        };
        for (index, (call, got)) in self.calls.iter().zip(&got).enumerate() {
            let expected = self.expected(index, call, rank);
            for (what, is_right) in [
                ("places", got.places == expected.places),
                ("offsets", got.offsets == expected.offsets),
                ("rows", same(&got.rows, &expected.rows)),
                ("sums", same(&got.sums, &expected.sums)),
            ] {
                if !is_right {
                    return Err(format!("rank {rank}, call {index}: wrong {what}").into());
                }
            }
        }
        let sums = got.iter().flat_map(|got| &got.sums);
        Ok(sums.map(|sum| sum.to_bits()).collect())
    }

    /// All calls without a pause, or each rank when it likes.
    fn launched(
        &self,
        ranks: &Communicator,
        (dispatch, combine): &(Operator, Operator),
    ) -> Result<Vec<Got>, Box<dyn std::error::Error>> {
        let stream = ranks.context().default_stream();
        let rank = ranks.rank();
        let weights = stream.clone_htod(&self.weights(rank as usize))?;
        let mut buffers = Vec::new();
        for index in 0..self.calls.len() {
            buffers.push(Buffers::new(&stream, &self.values(index, rank as usize))?);
        }
        stream.synchronize()?;
        let mut delays = u64::from(rank);
        let mut pause = || {
            if self.pace == Pace::OutOfStep {
                std::thread::sleep(Duration::from_secs_f64(fraction(&mut delays) / 500.0));
            }
        };
        for all in &mut buffers {
            pause();
            all.dispatch(&stream, dispatch, &weights)?;
        }
        // Only now: an operator's calls follow each other, and no other holds ranks together.
        for all in &mut buffers {
            pause();
            all.combine(&stream, combine)?;
        }
        ranks.synchronize(&stream)?;
        let got = buffers.iter().map(|all| all.got(&stream)).collect();
        ranks.check()?;
        got
    }

    /// A graph of one call, replayed for each with other tokens, numbers and experts.
    fn replayed(
        &self,
        ranks: &Communicator,
        (dispatch, combine): &(Operator, Operator),
    ) -> Result<Vec<Got>, Box<dyn std::error::Error>> {
        // SAFETY: all is done on one stream. Slices that track events cannot be captured.
        unsafe { ranks.context().disable_event_tracking() };
        // Nor can the default stream.
        let stream = ranks.context().new_stream()?;
        let rank = ranks.rank() as usize;
        let weights = stream.clone_htod(&self.weights(rank))?;
        let mut all = Buffers::new(&stream, &self.values(0, rank))?;
        stream.synchronize()?;
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        all.dispatch(&stream, dispatch, &weights)?;
        all.combine(&stream, combine)?;
        let graph = stream.end_capture(CUgraphInstantiate_flags(0))?;
        let graph = graph.ok_or("nothing was captured")?;
        let mut got = Vec::new();
        for index in 0..self.calls.len() {
            all.fill(&stream, &self.values(index, rank))?;
            graph.launch()?;
            ranks.synchronize(&stream)?;
            got.push(all.got(&stream)?);
        }
        ranks.check()?;
        // Not before the peers are done: the graph's kernels are theirs too.
        ranks.barrier()?;
        Ok(got)
    }

    fn prepare(&self, ranks: &Communicator) -> Result<(Operator, Operator), Error> {
        let (dispatch, combine) = self.configs();
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
                apply(&self.dispatch_edits, text);
            })?,
            ranks.prepare_edited(&combine, combine_shape, |text| {
                apply(&self.combine_edits, text);
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

    /// What operands hold before call `index`.
    fn values(&self, index: usize, rank: usize) -> Values {
        let tokens = &self.calls[index][rank];
        let (hidden, max_tokens) = (self.hidden as usize, self.max_tokens as usize);
        let choices = max_tokens * self.top_k as usize;
        let values = (0..max_tokens * hidden).map(|i| match i / hidden < tokens.len() {
            true => bf16::from_f32(token_value(index, rank, i / hidden, i % hidden, hidden)),
            false => bf16::NAN, // nobody must look there
        });
        let mut ids: Vec<i32> = tokens.iter().flatten().copied().collect();
        ids.resize(choices, -7);
        let top_k = self.top_k as usize;
        let gates = (0..choices).map(|i| gate_value(i / top_k, i % top_k));
        let cols = self.intermediate as usize;
        Values {
            tokens: values.collect(),
            count: [self.count.unwrap_or(tokens.len() as i32)],
            ids,
            gates: gates.collect(),
            rows: vec![bf16::NAN; self.max_rows() * cols],
            offsets: vec![-1; self.local() + 1],
            places: vec![-1; choices],
            sums: vec![bf16::NAN; max_tokens * cols],
        }
    }

    /// Whether rows, sums, and the parts of sums that travel are numbers of bf16: whole ones up to 256.
    pub fn is_exact(&self) -> bool {
        self.calls.iter().enumerate().all(|(index, call)| {
            let mut tokens = call
                .iter()
                .enumerate()
                .flat_map(|(rank, tokens)| (0..tokens.len()).map(move |token| (rank, token)));
            tokens.all(|(rank, token)| {
                // By rank, and at the end of all.
                let cols = self.intermediate as usize;
                let mut sums = vec![vec![0.0; cols]; self.world as usize + 1];
                let mut is_exact = true;
                for (choice, expert) in call[rank][token].iter().enumerate() {
                    let expert = *expert as usize;
                    let row = self.product(index, (rank, token), expert);
                    for of in [expert / self.local(), self.world as usize] {
                        for (sum, x) in sums[of].iter_mut().zip(&row) {
                            *sum += gate_value(token, choice) * x;
                        }
                    }
                    is_exact &= row.iter().all(|x| x.abs() <= 256.0);
                }
                is_exact && sums.iter().flatten().all(|x: &f32| x.abs() <= 256.0)
            })
        })
    }

    /// A token's row of an expert.
    fn product(&self, index: usize, (rank, token): (usize, usize), expert: usize) -> Vec<f32> {
        let hidden = self.hidden as usize;
        let x: Vec<_> = (0..hidden)
            .map(|i| (i, token_value(index, rank, token, i, hidden)))
            .filter(|(_, x)| *x != 0.0)
            .collect();
        let of = |col| {
            let products = x.iter().map(|(i, x)| x * weight_value(expert, *i, col));
            products.sum()
        };
        (0..self.intermediate as usize).map(of).collect()
    }

    /// What its experts make of a token.
    fn sum(&self, index: usize, (rank, token): (usize, usize)) -> Vec<f32> {
        let mut sum = vec![0.0; self.intermediate as usize];
        for (choice, expert) in self.calls[index][rank][token].iter().enumerate() {
            let row = self.product(index, (rank, token), *expert as usize);
            for (sum, x) in sum.iter_mut().zip(row) {
                *sum += gate_value(token, choice) * x;
            }
        }
        sum
    }

    /// By hand: loops over all tokens.
    fn expected(&self, index: usize, call: &Call, rank: usize) -> Got {
        let (cols, local) = (self.intermediate as usize, self.local());
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
                        rows.extend(self.product(index, (source, token), expert));
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
        for token in 0..call[rank].len() {
            sums.extend(self.sum(index, (rank, token)));
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

/// In 0 .. 1 (splitmix64).
fn fraction(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut x = *state;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// Equal, or both not written.
fn same(got: &[f32], expected: &[f32]) -> bool {
    got.len() == expected.len()
        && got
            .iter()
            .zip(expected)
            .all(|(got, want)| got == want || got.is_nan() && want.is_nan())
}
