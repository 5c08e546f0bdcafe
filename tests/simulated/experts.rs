//! Jobs of `dispatch_gemm`: calls in a row, each with other tokens, compared with loops over all of them.

use super::{Machine, Results, Simulated, Where, apply};
use mkernel::cudarc::driver::{CudaSlice, CudaStream};
use mkernel::half::bf16;
use mkernel::spec::abi::Operand;
use mkernel::spec::config::all_rows;
use mkernel::{
    Communicator, Dim, DispatchConfig, DispatchOp, DispatchShape, Faults, KernelConfig, Nic,
    Operator, Transport,
};
use std::sync::Arc;
use std::time::Duration;

type Failure = Box<dyn std::error::Error>;

/// Experts of each token of each rank, in a call.
pub type Tokens = Vec<Vec<Vec<i32>>>;

/// What is run.
#[derive(Clone, Debug)]
pub struct Experts {
    pub nodes: u32,
    pub local_world: u32,
    pub shape: DispatchShape,
    pub max_rows: Option<u32>,
    pub comm_ctas: Option<u32>,
    pub faults: Faults,
    pub skew: u32,
    pub calls: Vec<Tokens>,
    pub edits: Vec<(String, String)>,
}

/// What a rank gets of a call.
#[derive(Debug, PartialEq)]
struct Got {
    places: Vec<i32>,
    offsets: Vec<i32>,
    rows: Vec<u32>,
}

struct Buffers {
    tokens: CudaSlice<bf16>,
    count: CudaSlice<i32>,
    ids: CudaSlice<i32>,
    rows: CudaSlice<bf16>,
    offsets: CudaSlice<i32>,
    places: CudaSlice<i32>,
}

/// Small whole numbers, few of them not 0: sums stay exact in bf16.
fn token_value(call: usize, rank: usize, token: usize, col: usize) -> f32 {
    let x = (call * 7919 + rank * 104_729 + token * 1299 + col * 31) % 97;
    [1.0, -1.0, 2.0].get(x / 2).copied().unwrap_or(0.0)
}

fn weight_value(expert: usize, row: usize, col: usize) -> f32 {
    ((expert * 31 + row * 17 + col * 7) % 3) as f32 - 1.0
}

/// What nobody writes stays what it was.
fn poison() -> u32 {
    bf16::NAN.to_f32().to_bits()
}

impl Experts {
    /// The kernel as it is rendered, without calls.
    pub fn new(
        (nodes, local_world): (u32, u32),
        (experts, top_k, max_tokens): (u64, u64, u64),
    ) -> Self {
        Self {
            nodes,
            local_world,
            shape: DispatchShape {
                experts,
                top_k,
                max_tokens,
                hidden: 200,
                intermediate: 72,
            },
            max_rows: None,
            comm_ctas: None,
            faults: Faults::default(),
            skew: 60,
            calls: Vec::new(),
            edits: Vec::new(),
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

    /// What each rank says, if none is stopped by another's failure.
    pub fn failures(&self, seed: u64) -> Result<Vec<Option<String>>, String> {
        self.on_ranks(seed, |ranks| {
            Ok(self.rank(ranks).err().map(|error| error.to_string()))
        })
    }

    /// What each rank says of the second call, which rank `absent` does not make.
    pub fn failures_without(
        &self,
        absent: u32,
        deadline: Duration,
        seed: u64,
    ) -> Result<Vec<Option<String>>, String> {
        self.on_ranks(seed, |ranks| {
            let operator = self.prepare(ranks)?;
            let stream = ranks.context().default_stream();
            let rank = ranks.rank() as usize;
            let weights = stream.clone_htod(&self.weights(rank))?;
            let mut all = self.buffers(&stream, 0, &self.calls[0][rank], rank)?;
            all.launch(&operator, &stream, &weights)?;
            ranks.synchronize(&stream)?;
            ranks.barrier()?;
            if ranks.rank() == absent {
                ranks.barrier()?;
                return Ok(None);
            }
            ranks.set_timeout(deadline);
            all.launch(&operator, &stream, &weights)?;
            let told = ranks.synchronize(&stream).err();
            let findings = ranks.findings();
            ranks.barrier()?;
            if !findings.is_empty() {
                return Err(format!("{findings:?}").into());
            }
            Ok(told.map(|error| error.to_string()))
        })
    }

    fn on_ranks<T: Send>(
        &self,
        seed: u64,
        body: impl Fn(&Communicator) -> Result<T, Failure> + Sync,
    ) -> Result<Vec<T>, String> {
        let machine = Machine {
            world: self.world(),
            sms: 5,
            skew: self.skew,
        };
        let faults = Faults {
            seed,
            ..self.faults.clone()
        };
        machine.run(Where::Simulated { seed }, |ranks| {
            ranks.set_transport(Transport::Emulated {
                nic: Nic::default(),
                faults: faults.clone(),
            });
            body(ranks)
        })
    }

    fn world(&self) -> u32 {
        self.nodes * self.local_world
    }

    fn local(&self) -> usize {
        self.shape.experts as usize / self.world() as usize
    }

    fn room(&self) -> usize {
        let DispatchShape {
            experts,
            top_k,
            max_tokens,
            ..
        } = self.shape;
        let most = all_rows(self.world(), experts, top_k, max_tokens);
        self.max_rows.map_or(most, |rows| most.min(rows.into())) as usize
    }

    fn prepare(&self, ranks: &Communicator) -> Result<Operator, mkernel::Error> {
        let dispatch = DispatchConfig {
            experts: Dim::Static(self.shape.experts),
            top_k: Dim::Static(self.shape.top_k),
            max_rows: self.max_rows,
            tile_m: Some(64),
            tile_n: Some(128),
            comm_ctas: self.comm_ctas,
            ..DispatchConfig::new(DispatchOp::DispatchGemm)
        };
        let config = KernelConfig {
            nodes: self.nodes,
            ..KernelConfig::new(self.world(), dispatch)
        };
        ranks.prepare_edited(&config, self.shape, |text| apply(&self.edits, text))
    }

    fn rank(&self, ranks: &Communicator) -> Result<Vec<Vec<u32>>, Failure> {
        // The kernel's own deadlines pass in simulated time.
        ranks.set_timeout(std::time::Duration::from_secs(20));
        let operator = self.prepare(ranks)?;
        let stream = ranks.context().default_stream();
        let rank = ranks.rank() as usize;
        let weights = stream.clone_htod(&self.weights(rank))?;
        let mut buffers = Vec::new();
        for (index, call) in self.calls.iter().enumerate() {
            buffers.push(self.buffers(&stream, index, &call[rank], rank)?);
        }
        stream.synchronize()?;
        for all in &mut buffers {
            all.launch(&operator, &stream, &weights)?;
        }
        ranks.synchronize(&stream)?;
        let mut results = Vec::new();
        for (index, all) in buffers.iter().enumerate() {
            let rows = stream.clone_dtoh(&all.rows)?.into_iter();
            let got = Got {
                places: stream.clone_dtoh(&all.places)?,
                offsets: stream.clone_dtoh(&all.offsets)?,
                rows: rows.map(|x| x.to_f32().to_bits()).collect(),
            };
            ranks.check()?;
            let expected = self.expected(index, rank);
            for (what, is_right) in [
                ("places", got.places == expected.places),
                ("offsets", got.offsets == expected.offsets),
                ("rows", got.rows == expected.rows),
            ] {
                if !is_right {
                    return Err(format!("rank {rank}, call {index}: wrong {what}").into());
                }
            }
            results.push(got.rows);
        }
        Ok(results)
    }

    fn weights(&self, rank: usize) -> Vec<bf16> {
        let cols = self.shape.intermediate as usize;
        let elems = self.shape.hidden as usize * cols;
        let first = rank * self.local();
        let of = |expert: usize, i: usize| bf16::from_f32(weight_value(expert, i / cols, i % cols));
        (first..first + self.local())
            .flat_map(|expert| (0..elems).map(move |i| of(expert, i)))
            .collect()
    }

    fn buffers(
        &self,
        stream: &Arc<CudaStream>,
        call: usize,
        tokens: &[Vec<i32>],
        rank: usize,
    ) -> Result<Buffers, Failure> {
        let (hidden, max_tokens) = (self.shape.hidden as usize, self.shape.max_tokens as usize);
        let choices = max_tokens * self.shape.top_k as usize;
        let values = (0..max_tokens * hidden).map(|i| match i / hidden < tokens.len() {
            true => bf16::from_f32(token_value(call, rank, i / hidden, i % hidden)),
            false => bf16::NAN, // nobody must look there
        });
        let mut ids: Vec<i32> = tokens.iter().flatten().copied().collect();
        ids.resize(choices, -7);
        let rows = self.room() * self.shape.intermediate as usize;
        Ok(Buffers {
            tokens: stream.clone_htod(&values.collect::<Vec<_>>())?,
            count: stream.clone_htod(&[tokens.len() as i32])?,
            ids: stream.clone_htod(&ids)?,
            rows: stream.clone_htod(&vec![bf16::NAN; rows])?,
            offsets: stream.clone_htod(&vec![-1; self.local() + 1])?,
            places: stream.clone_htod(&vec![-1; choices])?,
        })
    }

    fn expected(&self, index: usize, rank: usize) -> Got {
        let (call, top_k) = (&self.calls[index], self.shape.top_k as usize);
        let mut places = vec![-1; self.shape.max_tokens as usize * top_k];
        let (mut rows, mut offsets) = (Vec::new(), vec![0]);
        let mut row = 0;
        for expert in 0..self.shape.experts as usize {
            let (owner, first) = (expert / self.local(), expert.is_multiple_of(self.local()));
            row = if first { 0 } else { row };
            for (source, tokens) in call.iter().enumerate() {
                for (token, choices) in tokens.iter().enumerate() {
                    let Some(choice) = choices.iter().position(|e| *e as usize == expert) else {
                        continue;
                    };
                    if source == rank {
                        places[token * top_k + choice] = (owner * self.room() + row) as i32;
                    }
                    if owner == rank {
                        rows.extend(self.product(index, source, token, expert));
                    }
                    row += 1;
                }
            }
            if owner == rank {
                offsets.push(row as i32);
            }
        }
        rows.resize(self.room() * self.shape.intermediate as usize, poison());
        Got {
            places,
            offsets,
            rows,
        }
    }

    fn product(&self, call: usize, source: usize, token: usize, expert: usize) -> Vec<u32> {
        let x: Vec<_> = (0..self.shape.hidden as usize)
            .map(|i| (i, token_value(call, source, token, i)))
            .filter(|(_, x)| *x != 0.0)
            .collect();
        let of = |col| -> f32 {
            x.iter()
                .map(|(i, x)| x * weight_value(expert, *i, col))
                .sum()
        };
        // Not -0.
        (0..self.shape.intermediate as usize)
            .map(|col| (of(col) + 0.0).to_bits())
            .collect()
    }
}

impl Buffers {
    fn launch(
        &mut self,
        operator: &Operator,
        stream: &Arc<CudaStream>,
        weights: &CudaSlice<bf16>,
    ) -> Result<(), mkernel::Error> {
        operator
            .call(stream)
            .read(Operand::Tokens, &self.tokens)
            .read(Operand::Count, &self.count)
            .read(Operand::Ids, &self.ids)
            .read(Operand::B, weights)
            .write(Operand::C, &mut self.rows)
            .write(Operand::Offsets, &mut self.offsets)
            .write(Operand::Places, &mut self.places)
            .launch()
    }
}

impl Simulated for Experts {
    fn run(&self, seed: u64) -> Result<Results, String> {
        self.on_ranks(seed, |ranks| self.rank(ranks))
    }

    fn edit(&mut self, edits: Vec<(String, String)>) {
        self.edits = edits;
    }
}
