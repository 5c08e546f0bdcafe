//! Benchmark of `dispatch_gemm`, `combine` and `moe_layer`. Needs GPUs.
//!
//! `cargo bench --bench dispatch -- --help` lists the options, which are the fields of [`Flags`].

mod combine;
mod dispatch;
mod factor;
mod layer;
mod tokens;

use clap::Parser;
use mkernel::cudarc::driver::{CudaSlice, DevicePtr};
use mkernel::{
    Communicator, KernelConfig, KernelPlan, Operator, Sizes, operands::RawOperand, spec::Problem,
};
use mkernel_testing::blocks::{Blocks, MAX_ITERATIONS, in_turns, median};
use mkernel_testing::edits::{Edit, edit};
use mkernel_testing::lab::{Failure, Lab, TimeLimit, seed_from_clock};
use mkernel_testing::options::Nodes;
use mkernel_testing::ranks::{exit_code, on_gpus};
use std::iter;
use std::process::ExitCode;
use std::time::Duration;
use tokens::{Taste, Tokens};

/// The time of a block of calls.
const BLOCK_US: f64 = 20_000.0;

/// Times `dispatch_gemm` and `combine`, or `moe_layer`, on random data, and checks some experts and tokens.
///
/// All ranks run in this process, with a thread for each GPU. A time is the median over calls of the time of the slowest
/// rank. The bound is the larger of two times of the busiest rank: its products, and the bytes that it sends. GPU clocks
/// change with other work, so compare only times of one run.
#[derive(Clone, Debug, Parser)]
struct Flags {
    /// Number of GPUs: 1, 2, 4 or 8
    #[arg(long, default_value_t = 1)]
    world: u32,
    #[command(flatten)]
    network: Nodes,
    /// Tokens of each rank, separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "16,64,1024,2048,4096,8192,16384"
    )]
    tokens: Vec<u64>,
    /// Measure each size also with operators for at most this number of tokens of each rank; may be repeated
    #[arg(long, value_name = "TOKENS")]
    max_tokens: Vec<u64>,
    /// Experts over all ranks [default: 32 for each rank]
    #[arg(long)]
    experts: Option<u64>,
    #[arg(long, default_value_t = 8)]
    top_k: u64,
    #[arg(long, default_value_t = 7168)]
    hidden: u64,
    #[arg(long, default_value_t = 2048)]
    intermediate: u64,
    /// Store the weights as [columns, hidden]
    #[arg(long)]
    nk: bool,
    /// How tokens choose experts
    #[arg(long, value_enum, default_value_t = Taste::Even)]
    taste: Taste,
    /// Seed of the experts of tokens [default: the time]
    #[arg(long)]
    seed: Option<u64>,
    /// Fix the rows of a tile
    #[arg(long)]
    tile_m: Option<u32>,
    /// Fix the columns of a tile
    #[arg(long)]
    tile_n: Option<u32>,
    /// Measure `dispatch_gemm` also with at most this number of slices of K of a tile; may be repeated
    #[arg(long, value_name = "SLICES")]
    split_k: Vec<u32>,
    /// Measure `moe_layer` instead, with weights as [columns, hidden]
    #[arg(long)]
    layer: bool,
    /// Measure `moe_layer` of e4m3 with scales of blocks instead of bf16
    #[arg(long, requires = "layer")]
    e4m3: bool,
    /// Do not measure `combine`
    #[arg(long)]
    no_combine: bool,
    /// Fix the number of communication CTAs
    #[arg(long)]
    comm_ctas: Option<u32>,
    /// Measure `combine` also with this limit of tokens for sums in packets; may be repeated
    #[arg(long, value_name = "TOKENS")]
    low_latency_tokens: Vec<u32>,
    /// Replace a part of the text of `dispatch_gemm`, such as "if (a)=>if (b)"; the host does not change with it
    #[arg(long, value_parser = edit)]
    dispatch_edit: Vec<Edit>,
    /// Replace a part of the text of `combine`, such as "kStages = 13=>kStages = 6"; the host does not change with it
    #[arg(long, value_parser = edit)]
    combine_edit: Vec<Edit>,
    /// Number of blocks of each size
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Seconds after which the process ends, even if it hangs
    #[arg(long, default_value_t = 300)]
    limit_s: u64,
    /// Ignored. Cargo passes this option.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    exit_code(run(&Flags::parse()))
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
    on_gpus(flags.world, |ranks| one_rank(flags, ranks, seed)).map(drop)
}

/// The measurement of one size on a rank.
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
    ranks.set_transport(flags.network.transport());
    let lab = Lab::new(&ranks.default_stream())?;
    let blocks = Blocks::new(ranks, &lab.stream)?;
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
            .next_multiple_of(128)
            .min(u64::from(flags.world) * per_rank * flags.top_k);
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
        if flags.layer {
            case.layer()?;
            continue;
        }
        case.dispatch()?;
        if !flags.no_combine {
            case.combine()?;
        }
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

    /// Returns the time of the link in µs for the rows that the busiest rank sends or receives. Across nodes, this is the
    /// time in the plan, which assumes that tokens choose experts evenly.
    fn link_us(&self, plan: &KernelPlan) -> f64 {
        if self.flags.network.nodes > 1 {
            return plan.body().bound.link_us;
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

    fn prepare(
        &self,
        problem: impl Into<Problem>,
        shape: impl Into<Sizes>,
        edits: &[Edit],
    ) -> Result<Operator, Failure> {
        let config = KernelConfig {
            nodes: self.flags.network.nodes,
            ..KernelConfig::new(self.flags.world, problem)
        };
        mkernel_testing::edits::prepare(self.ranks, &config, shape, edits)
    }

    /// Returns the most tokens of each measured operator: first the tokens of the call, then larger numbers of the flags.
    fn most_tokens(&self) -> Vec<u64> {
        let tokens = self.tokens.per_rank;
        let more = self.flags.max_tokens.iter().copied();
        let more = more.filter(|most| *most > tokens);
        iter::once(tokens).chain(more).collect()
    }

    /// Returns every pair of a most number of tokens and a value of an option, `None` if the planner chooses the value.
    fn variants(&self, values: &[u32]) -> Vec<(u64, Option<u32>)> {
        let values: Vec<_> = iter::once(None)
            .chain(values.iter().copied().map(Some))
            .collect();
        let most = self.most_tokens().into_iter();
        most.flat_map(|most| values.iter().map(move |value| (most, *value)))
            .collect()
    }

    /// Returns the times of each operator. Their blocks take turns, in both orders.
    fn times(&self, operators: &[Operator], raw: &[RawOperand]) -> Result<Vec<Vec<f64>>, Failure> {
        let call = |index: usize| {
            // SAFETY: the operands are in the order of the plan, for the tokens of the call, and live until the block has
            // ended.
            Ok(unsafe { operators[index].launch_raw(self.lab.stream.cu_stream(), raw) }?)
        };
        let first = self.blocks.time(2, &|| call(0))?;
        let iterations = (BLOCK_US / median(&first)).clamp(3.0, f64::from(MAX_ITERATIONS)) as u32;
        in_turns(self.flags.rounds, operators.len(), |index| {
            self.blocks.time(iterations, &|| call(index))
        })
    }

    /// Makes one call and waits for it.
    fn call(&self, operator: &Operator, raw: &[RawOperand]) -> Result<(), Failure> {
        // SAFETY: as in `times`; `synchronize` waits for the call.
        unsafe { operator.launch_raw(self.lab.stream.cu_stream(), raw) }?;
        Ok(self.ranks.synchronize(&self.lab.stream)?)
    }

    /// Prints the results. Collective, so that memory is freed only while no kernel of any rank runs.
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
                "{:<14} {:>11} {:>10} {us:>7.1} {bound_us:>9.1}  {:>5.2}  {error:.2e}  {}",
                plan.spec.op().name(),
                self.tokens.per_rank,
                self.tokens.rows().into_iter().max().unwrap_or(0),
                bound_us / us,
                plan.id,
            );
        }
        self.ranks.barrier()?;
        if error.is_nan() || error > mkernel_testing::lab::MAX_RELATIVE_ERROR {
            return Err(format!("relative error {error:.1e}").into());
        }
        Ok(())
    }
}
