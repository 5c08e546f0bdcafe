//! `cargo bench --bench dispatch -- --help`: see [`Flags`]. Needs GPUs.

#[path = "../operators/blocks.rs"]
mod blocks;
#[path = "../operators/edits.rs"]
mod edits;
#[allow(dead_code, reason = "the GPU tests use the rest")]
#[path = "../../tests/gpu/lab.rs"]
mod lab;
mod tokens;

use blocks::{Blocks, MAX_ITERATIONS};
use clap::Parser;
use edits::{Edit, edit};
use lab::{Failure, Finish, Lab, Matrix, Random, TimeLimit, seed_from_clock};
use mkernel::cudarc::driver::{CudaSlice, DevicePtr};
use mkernel::half::bf16;
use mkernel::{
    BLayout, CombineConfig, CombineOp, CombineShape, Communicator, Dim, DispatchConfig, DispatchOp,
    DispatchShape, KernelConfig, KernelPlan, Operator, Problem, RawOperand, Shape,
};
use std::process::ExitCode;
use std::time::Duration;
use tokens::{Taste, Tokens, fraction};

/// Time of a block.
const BLOCK_US: f64 = 20_000.0;
/// Experts of a rank of which every row is checked.
const CHECKED_EXPERTS: u64 = 3;
/// Tokens of a rank whose sums are checked.
const CHECKED_TOKENS: u64 = 5;
const TOKEN_SEED: u64 = 0x746f;
const ROW_SEED: u64 = 0x726f;

/// Times `dispatch_gemm` and `combine` on random data, and checks experts of the one and tokens of the other.
///
/// All ranks run in this process, a thread for each GPU. A time is the median over calls of the slowest rank's. The bound
/// is that of the busiest rank: its rows' products, or what it sends. Beside other work on the same GPUs, or after it,
/// clocks differ: compare within one run.
#[derive(Clone, Debug, Parser)]
struct Flags {
    /// GPUs to use: 1, 2, 4 or 8
    #[arg(long, default_value_t = 1)]
    world: u32,
    /// Nodes into which they are put, with emulated NICs
    #[arg(long, default_value_t = 1)]
    nodes: u32,
    /// Tokens of each rank; several with commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "16,64,1024,2048,4096,8192,16384"
    )]
    tokens: Vec<u64>,
    /// Experts over all ranks [default: 32 for each]
    #[arg(long)]
    experts: Option<u64>,
    #[arg(long, default_value_t = 8)]
    top_k: u64,
    #[arg(long, default_value_t = 7168)]
    hidden: u64,
    #[arg(long, default_value_t = 2048)]
    intermediate: u64,
    /// Weights as [columns, hidden]
    #[arg(long)]
    nk: bool,
    /// How tokens choose experts
    #[arg(long, value_enum, default_value_t = Taste::Even)]
    taste: Taste,
    /// Of the choices [default: the time]
    #[arg(long)]
    seed: Option<u64>,
    /// Fix the rows of a tile
    #[arg(long)]
    tile_m: Option<u32>,
    /// Fix the columns of a tile
    #[arg(long)]
    tile_n: Option<u32>,
    /// Fix the CTAs that only communicate
    #[arg(long)]
    comm_ctas: Option<u32>,
    /// Change the text of `dispatch_gemm`, "if (a)=>if (b)"; what the host does must still fit
    #[arg(long, value_parser = edit)]
    dispatch_edit: Vec<Edit>,
    /// Change the text of `combine`, "kStages = 13=>kStages = 6"; what the host does must still fit
    #[arg(long, value_parser = edit)]
    combine_edit: Vec<Edit>,
    /// Blocks of each size
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// The process ends after so many seconds, whatever happens
    #[arg(long, default_value_t = 300)]
    limit_s: u64,
    /// Cargo passes this.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    match run(&Flags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(flags: &Flags) -> Result<(), Failure> {
    let _limit = TimeLimit::start("the benchmark", Duration::from_secs(flags.limit_s));
    let seed = flags.seed.unwrap_or_else(seed_from_clock);
    println!(
        "{} of {} GPUs, seed {seed}",
        flags.world,
        mkernel::device_count()?
    );
    println!("operator       tokens/rank  rows/rank      µs  bound µs  share     error  plan");
    let gpus: Vec<usize> = (0..flags.world as usize).collect();
    let communicators = Communicator::local(&gpus)?;
    std::thread::scope(|scope| {
        let start = |ranks: Communicator| {
            scope.spawn(move || {
                let rank = ranks.rank();
                one_rank(flags, &ranks, seed).inspect_err(|error| eprintln!("rank {rank}: {error}"))
            })
        };
        let threads: Vec<_> = communicators.into_iter().map(start).collect();
        let results = threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| "a rank panicked")?);
        results.collect::<Vec<_>>().into_iter().collect()
    })
}

/// A size on a rank.
struct Case<'a> {
    flags: &'a Flags,
    ranks: &'a Communicator,
    lab: &'a Lab,
    blocks: &'a Blocks<'a>,
    tokens: &'a Tokens,
    experts: u64,
    max_rows: u64,
    count: CudaSlice<i32>,
    places: CudaSlice<i32>,
}

fn one_rank(flags: &Flags, ranks: &Communicator, seed: u64) -> Result<(), Failure> {
    ranks.context().bind_to_thread()?;
    let lab = Lab::new(&ranks.context().default_stream())?;
    let blocks = Blocks::new(ranks, &lab)?;
    let experts = flags.experts.unwrap_or(32 * u64::from(flags.world));
    for per_rank in &flags.tokens {
        let tokens = Tokens::choose(
            flags.taste,
            flags.world,
            experts,
            flags.top_k,
            *per_rank,
            seed,
        );
        let max_rows = tokens
            .rows()
            .into_iter()
            .max()
            .unwrap_or(0)
            .next_multiple_of(128);
        let case = Case {
            flags,
            ranks,
            lab: &lab,
            blocks: &blocks,
            experts,
            max_rows,
            count: lab.stream.clone_htod(&[*per_rank as i32])?,
            places: lab.stream.clone_htod(&vec![-1; tokens.ids[0].len()])?,
            tokens: &tokens,
        };
        case.dispatch()?;
        case.combine()?;
    }
    Ok(())
}

fn operand<T>(slice: &CudaSlice<T>) -> RawOperand {
    RawOperand {
        ptr: slice.device_ptr(slice.stream()).0,
        row_stride_elems: 1,
    }
}

impl Case<'_> {
    fn rank(&self) -> u64 {
        self.ranks.rank().into()
    }

    fn dispatch(&self) -> Result<(), Failure> {
        let (flags, lab, tokens) = (self.flags, self.lab, self.tokens);
        let shape = DispatchShape {
            experts: self.experts,
            top_k: flags.top_k,
            max_tokens: tokens.per_rank,
            hidden: flags.hidden,
            intermediate: flags.intermediate,
        };
        let config = DispatchConfig {
            experts: Dim::Static(shape.experts),
            top_k: Dim::Static(shape.top_k),
            max_tokens: Dim::Static(shape.max_tokens),
            hidden: Dim::Static(shape.hidden),
            intermediate: Dim::Static(shape.intermediate),
            b_layout: if flags.nk { BLayout::Nk } else { BLayout::Kn },
            max_rows: Some(self.max_rows as u32),
            tile_m: flags.tile_m,
            tile_n: flags.tile_n,
            comm_ctas: flags.comm_ctas,
            ..DispatchConfig::new(DispatchOp::DispatchGemm)
        };
        let operator = self.prepare(config, shape, &flags.dispatch_edit)?;
        let local = tokens.local_experts();
        let (rows, cols) = match flags.nk {
            true => (local * flags.intermediate, flags.hidden),
            false => (local * flags.hidden, flags.intermediate),
        };
        let x = lab.matrix(tokens.per_rank, flags.hidden, 0)?;
        lab.fill(&x, self.rank() * tokens.per_rank, TOKEN_SEED)?;
        let w = lab.matrix(rows, cols, 0)?;
        lab.fill(&w, 0, self.rank() + 1)?;
        let c = lab.matrix(self.max_rows, flags.intermediate, 0)?;
        let ids = lab.stream.clone_htod(&tokens.ids[self.rank() as usize])?;
        let offsets = lab.stream.clone_htod(&vec![-1; local as usize + 1])?;
        let raw = [
            x.operand(),
            operand(&self.count),
            operand(&ids),
            w.operand(),
            c.operand(),
            operand(&offsets),
            operand(&self.places),
        ];
        let times = self.time(&operator, &raw)?;
        let error = self.check_dispatch(&w, &c)?;
        self.print(
            &operator,
            &times,
            error,
            self.dispatch_bound_us(operator.plan()),
        )
    }

    /// The products of experts, row by row.
    fn check_dispatch(&self, w: &Matrix, c: &Matrix) -> Result<f64, Failure> {
        let (flags, lab) = (self.flags, self.lab);
        let local = self.tokens.local_experts();
        let first = self.rank() * local;
        let rows: Vec<_> = (first..first + local)
            .map(|e| self.tokens.rows_of(e))
            .collect();
        let begin = |e: u64| rows[..e as usize].iter().map(Vec::len).sum::<usize>() as u64;
        let verdicts = lab.verdicts(local as usize)?;
        for expert in (0..local).step_by((local / CHECKED_EXPERTS).max(1) as usize) {
            let rows = &rows[expert as usize];
            let a = lab.matrix(rows.len() as u64, flags.hidden, 0)?;
            for (row, token) in (0..).zip(rows) {
                lab.fill(&a.part(row..row + 1, 0..flags.hidden), *token, TOKEN_SEED)?;
            }
            let (per_expert, cols) = match flags.nk {
                true => (flags.intermediate, flags.hidden),
                false => (flags.hidden, flags.intermediate),
            };
            let b = w.part(expert * per_expert..(expert + 1) * per_expert, 0..cols);
            let at = begin(expert);
            let found = c.part(at..at + rows.len() as u64, 0..flags.intermediate);
            let views = (&a.view, &b, &found);
            lab.check(
                views,
                flags.nk,
                (1, 1),
                Finish::default(),
                &verdicts,
                expert as usize,
            )?;
            self.ranks.synchronize(&lab.stream)?;
        }
        let verdicts = lab.read_verdicts(&verdicts)?;
        let wrong: u64 = verdicts.iter().map(|verdict| verdict.wrong).sum();
        if wrong > 0 {
            return Err(format!("{wrong} elements of experts are wrong").into());
        }
        Ok(verdicts
            .iter()
            .map(|verdict| verdict.relative_error)
            .fold(0.0, f64::max))
    }

    /// Of the rank that has most to do: products at the rate of the plan's bound, or tokens over the link.
    fn dispatch_bound_us(&self, plan: &KernelPlan) -> f64 {
        let flags = self.flags;
        let rows = self.tokens.rows().into_iter().max().unwrap_or(0);
        let flops = 2 * rows * flags.hidden * flags.intermediate;
        let compute_us = flops as f64 / plan.device.gemm_tflops / 1e6;
        let moved_us = plan.bound.memory_us.max(plan.bound.nic_us);
        compute_us.max(moved_us).max(self.link_us(plan))
    }

    /// Rows of `hidden` elements that cross to or from the rank that has most; across nodes, if experts are chosen evenly.
    fn link_us(&self, plan: &KernelPlan) -> f64 {
        if self.flags.nodes > 1 {
            return plan.bound.link_us;
        }
        let world = self.ranks.world() as usize;
        let (mut sent, mut received) = (vec![0u64; world], vec![0u64; world]);
        for (source, ids) in self.tokens.ids.iter().enumerate() {
            for choices in ids.chunks(self.flags.top_k as usize) {
                let mut ranks: Vec<_> = choices
                    .iter()
                    .map(|id| (*id as u64 / self.tokens.local_experts()) as usize)
                    .filter(|rank| *rank != source)
                    .collect();
                ranks.sort_unstable();
                ranks.dedup();
                sent[source] += ranks.len() as u64;
                ranks.into_iter().for_each(|rank| received[rank] += 1);
            }
        }
        let most = sent.into_iter().chain(received).max().unwrap_or(0);
        (most * self.flags.hidden * 2) as f64 / plan.device.link_gb_s / 1e3
    }

    fn combine(&self) -> Result<(), Failure> {
        let (flags, lab, tokens) = (self.flags, self.lab, self.tokens);
        let shape = CombineShape {
            experts: self.experts,
            top_k: flags.top_k,
            max_tokens: tokens.per_rank,
            hidden: flags.hidden,
        };
        let config = CombineConfig {
            experts: Dim::Static(shape.experts),
            top_k: Dim::Static(shape.top_k),
            max_tokens: Dim::Static(shape.max_tokens),
            hidden: Dim::Static(shape.hidden),
            max_rows: Some(self.max_rows as u32),
            ..CombineConfig::new(CombineOp::Combine)
        };
        let operator = self.prepare(config, shape, &flags.combine_edit)?;
        let rows = lab.matrix(self.max_rows, flags.hidden, 0)?;
        lab.fill(&rows, self.rank() * self.max_rows, ROW_SEED)?;
        let c = lab.matrix(tokens.per_rank, flags.hidden, 0)?;
        let mut random = Random(self.rank());
        let gates: Vec<f32> = tokens.ids[0]
            .iter()
            .map(|_| fraction(&mut random) as f32)
            .collect();
        let on_gpu = lab.stream.clone_htod(&gates)?;
        let raw = [
            rows.operand(),
            operand(&self.count),
            operand(&self.places),
            operand(&on_gpu),
            c.operand(),
        ];
        let times = self.time(&operator, &raw)?;
        let error = self.check_combine(&gates, &c)?;
        let plan = operator.plan();
        self.print(
            &operator,
            &times,
            error,
            self.link_us(plan)
                .max(plan.bound.memory_us)
                .max(plan.bound.nic_us),
        )
    }

    /// The sums of some tokens, in fp64.
    fn check_combine(&self, gates: &[f32], c: &Matrix) -> Result<f64, Failure> {
        let (lab, hidden, top_k) = (self.lab, self.flags.hidden, self.flags.top_k);
        let places = lab.stream.clone_dtoh(&self.places)?;
        let found = lab.stream.clone_dtoh(&c.memory)?;
        let (mut error2, mut sum2) = (0.0, 0.0);
        let step = (self.tokens.per_rank / CHECKED_TOKENS).max(1) as usize;
        for token in (0..self.tokens.per_rank).step_by(step) {
            let choices = (token * top_k) as usize..((token + 1) * top_k) as usize;
            let mut sums = vec![0.0; hidden as usize];
            for (place, gate) in places[choices.clone()].iter().zip(&gates[choices]) {
                let row = lab.matrix(1, hidden, 0)?;
                lab.fill(&row, *place as u64, ROW_SEED)?;
                let row: Vec<bf16> = lab.stream.clone_dtoh(&row.memory)?;
                for (sum, x) in sums.iter_mut().zip(row) {
                    *sum += f64::from(*gate) * x.to_f64();
                }
            }
            let at = (token * hidden) as usize;
            for (found, sum) in found[at..at + hidden as usize].iter().zip(sums) {
                error2 += (found.to_f64() - sum).powi(2);
                sum2 += sum * sum;
            }
        }
        Ok((error2 / sum2).sqrt())
    }

    fn prepare(
        &self,
        problem: impl Into<Problem>,
        shape: impl Into<Shape>,
        edits: &[Edit],
    ) -> Result<Operator, Failure> {
        let config = KernelConfig {
            nodes: self.flags.nodes,
            ..KernelConfig::new(self.flags.world, problem)
        };
        edits::prepare(self.ranks, &config, shape, edits)
    }

    fn time(&self, operator: &Operator, raw: &[RawOperand]) -> Result<Vec<f64>, Failure> {
        let call = || {
            // SAFETY: the operands are the plan's, in its order, and live until the block is over.
            Ok(unsafe { operator.launch_raw(self.lab.stream.cu_stream(), raw) }?)
        };
        let first = self.blocks.time(2, &call)?;
        let iterations = (BLOCK_US / median(&first)).clamp(3.0, f64::from(MAX_ITERATIONS)) as u32;
        let mut times = Vec::new();
        for _ in 0..self.flags.rounds {
            times.extend(self.blocks.time(iterations, &call)?);
        }
        Ok(times)
    }

    /// Collective: memory is freed while no rank's kernel runs.
    fn print(
        &self,
        operator: &Operator,
        times: &[f64],
        error: f64,
        bound_us: f64,
    ) -> Result<(), Failure> {
        let error = self.blocks.slowest(&[error])?[0];
        let plan = operator.plan();
        if self.rank() == 0 {
            let us = median(times);
            println!(
                "{:<14} {:>11} {:>10} {us:>7.0} {bound_us:>9.0}  {:>5.2}  {error:.2e}  {}",
                plan.spec.op().name(),
                self.tokens.per_rank,
                self.tokens.rows().into_iter().max().unwrap_or(0),
                bound_us / us,
                plan.id,
            );
        }
        self.ranks.barrier()?;
        if error.is_nan() || error > lab::MAX_RELATIVE_ERROR {
            return Err(format!("relative error {error:.1e}").into());
        }
        Ok(())
    }
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
