//! Benchmark of `ring_attention`. Needs GPUs.
//!
//! `cargo bench --bench attention -- --help` lists the options, which are the fields of [`Flags`].

mod check;
mod dump;

use check::{Found, Gathered};
use clap::Parser;
use mkernel::Operand;
use mkernel::half::bf16;
use mkernel::spec::plan::OpPlan;
use mkernel::spec::roofline::Bound;
use mkernel::{
    Communicator, KernelConfig, KernelPlan, Operator,
    operands::{RawOperand, Rows},
    spec::{AttentionConfig, AttentionOp, AttentionShape, AttentionTuning, Dim, Dtype, Placement},
};
use mkernel_testing::blocks::{Blocks, MAX_ITERATIONS, in_turns, median};
use mkernel_testing::edits::{Edit, edit};
use mkernel_testing::lab::{Failure, Lab, Matrix, TimeLimit, seed_from_clock};
use mkernel_testing::options::Nodes;
use mkernel_testing::ranks::{exit_code, on_gpus};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// The time of a block of calls.
const BLOCK_US: f64 = 20_000.0;

/// Times `ring_attention` on random data, and checks sampled rows against fp64.
///
/// All ranks run in this process, with a thread for each GPU. A time is the median over calls of the time of the slowest
/// rank. TFLOP/s count the rank with the most work. Under a mask, pairs of a query and a later key do not count. GPU clocks
/// change with other work, so compare only times of one run.
#[derive(Clone, Debug, Parser)]
struct Flags {
    /// Number of GPUs over all nodes: 1, 2, 4 or 8
    #[arg(long, default_value_t = 1)]
    world: u32,
    #[command(flatten)]
    network: Nodes,
    /// Rows of a sequence on each rank, separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "768,1536,3072,6144,12288"
    )]
    seq: Vec<u64>,
    /// Measure each plan also with a length at run time, prepared for at most this number of rows on each rank; may be
    /// repeated
    #[arg(long, value_name = "ROWS")]
    max_seq: Vec<u64>,
    /// Attend also to this number of cached rows of each sequence on each rank
    #[arg(long, value_name = "ROWS", conflicts_with = "dump")]
    cached: Option<u32>,
    #[arg(long, default_value_t = 4)]
    batch: u64,
    #[arg(long, default_value_t = 16)]
    heads: u64,
    /// Heads of K and V [default: the heads of Q]
    #[arg(long)]
    kv_heads: Option<u64>,
    #[arg(long, default_value_t = 128)]
    head_dim: u64,
    /// Use a causal mask, with the sequence in zigzag placement
    #[arg(long)]
    causal: bool,
    /// Fix the number of CTAs that send K and V; values separated by commas are measured in turns
    #[arg(long, value_delimiter = ',')]
    comm_ctas: Vec<u32>,
    /// Fix the number of heads of K and V that have slots
    #[arg(long)]
    kv_slots: Option<u32>,
    /// Factor of the queries; with 8, a few keys of a row have most of its weight
    #[arg(long, default_value_t = 1.0)]
    query_scale: f32,
    /// Replace a part of the kernels' text, such as "kForwardLag = 512=>kForwardLag = 256"; the host does not change
    /// with it
    #[arg(long, value_parser = edit)]
    edit: Vec<Edit>,
    /// Write the operands and results of the last size to this folder, for benches/accuracy.py
    #[arg(long)]
    dump: Option<PathBuf>,
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
    let seed = seed_from_clock();
    println!(
        "{} of {} GPUs in {} nodes, seed {seed}",
        flags.world,
        mkernel::device_count()?,
        flags.network.nodes
    );
    println!("  seq/rank      µs  TFLOP/s  bound µs  by       error  push  slots  plan");
    let gathered = Gathered::new(flags.world);
    on_gpus(flags.world, |ranks| one_rank(flags, ranks, seed, &gathered)).map(drop)
}

/// Runs the benchmark on one rank.
fn one_rank(
    flags: &Flags,
    ranks: &Communicator,
    seed: u64,
    gathered: &Gathered,
) -> Result<(), Failure> {
    ranks.set_transport(flags.network.transport());
    let lab = Lab::new(&ranks.default_stream())?;
    let blocks = Blocks::new(ranks, &lab.stream)?;
    for seq in &flags.seq {
        one_size(flags, ranks, *seq, seed, gathered, (&lab, &blocks))?;
    }
    Ok(())
}

/// Times all candidates for a size in turns, and checks the result of each.
fn one_size(
    flags: &Flags,
    ranks: &Communicator,
    seq: u64,
    seed: u64,
    gathered: &Gathered,
    (lab, blocks): (&Lab, &Blocks),
) -> Result<(), Failure> {
    let mut operators = Vec::new();
    for tuning in tunings(flags) {
        // With cached rows, the length is given at run time.
        let dim = |seq| match flags.cached {
            Some(_) => Dim::UpTo(seq),
            None => Dim::Static(seq),
        };
        operators.push(prepare(flags, ranks, (dim, seq), tuning)?);
        for most in flags.max_seq.iter().filter(|most| **most >= seq) {
            operators.push(prepare(flags, ranks, (|_| Dim::Dynamic, *most), tuning)?);
        }
    }
    // The plan of exactly this size. All operators take operands of this layout.
    let sized = operators[0].plan();
    let operands = operands(flags, &operators[0], ranks.rank(), lab, seed)?;
    let raw: Vec<RawOperand> = operands.iter().map(|(_, m)| m.operand()).collect();
    let call = |operator: &Operator| {
        let rows = match operator.plan().max_rows() {
            Some(_) => Rows::Count(seq * u64::from(flags.world)),
            None => Rows::Most,
        };
        // SAFETY: the operands are those of the plan in its order, for the rows of the call, and live until the block
        // has ended.
        Ok(unsafe { operator.launch_raw_rows(lab.stream.cu_stream(), &raw, rows) }?)
    };
    let first = blocks.time(2, &|| call(&operators[0]))?;
    let iterations = (BLOCK_US / median(&first)).clamp(3.0, f64::from(MAX_ITERATIONS)) as u32;
    let times = in_turns(flags.rounds, operators.len(), |index| {
        blocks.time(iterations, &|| call(&operators[index]))
    })?;
    for (operator, times) in operators.iter().zip(&times) {
        blocks.time(1, &|| call(operator))?;
        let found = Found::download(sized, &operands, lab)?;
        let errors = gathered.check(sized, ranks.rank(), found)?;
        let error = blocks.slowest(&[errors])?[0];
        if ranks.rank() == 0 {
            print(flags, seq, (operator.plan(), sized), median(times), error)?;
        }
        if let (Some(to), OpPlan::Attention(op_plan)) = (&flags.dump, &sized.body().op_plan) {
            dump::dump(to, sized, op_plan, ranks.rank(), &operands, lab)?;
        }
        if error.is_nan() || error > check::MAX_RELATIVE_ERROR {
            return Err(format!("relative error {error:.1e}").into());
        }
    }
    // Memory may be freed only while no kernel of any rank runs.
    Ok(ranks.barrier()?)
}

/// Prints the time of a plan for the rows of the plan `sized`.
fn print(
    flags: &Flags,
    seq: u64,
    (plan, sized): (&KernelPlan, &KernelPlan),
    us: f64,
    error: f64,
) -> Result<(), Failure> {
    // The bound of the plan assumes the NICs of its device, not the emulated NICs.
    let bound = Bound {
        nic_us: flags.network.nic_us(sized.body().traffic.nic_bytes),
        ..sized.body().bound
    };
    let OpPlan::Attention(op_plan) = &plan.body().op_plan else {
        return Err("the plan is not one of attention".into());
    };
    println!(
        "{seq:>10} {us:>7.1} {:>8.0} {:>9.0}  {:<7} {error:.1e} {:>5} {:>6}  {}",
        sized.body().traffic.flops as f64 / us / 1e6,
        bound.us(),
        bound.reason(),
        op_plan.push_ctas,
        op_plan.kv_slots,
        plan.id,
    );
    Ok(())
}

/// Prepares the operator for `most` rows on each rank, with the edits of its text. All ranks must call this function.
fn prepare(
    flags: &Flags,
    ranks: &Communicator,
    (seq, most): (impl Fn(u64) -> Dim, u64),
    tuning: AttentionTuning,
) -> Result<Operator, Failure> {
    let shape = shape(flags, most);
    let config = config(flags, seq(shape.seq), shape, tuning);
    mkernel_testing::edits::prepare(ranks, &config, shape, &flags.edit)
}

/// Returns the tunings of the flags, or the automatic tuning if the flags have none.
fn tunings(flags: &Flags) -> Vec<AttentionTuning> {
    let planned = AttentionTuning {
        kv_slots: flags.kv_slots,
        ..AttentionTuning::default()
    };
    let fixed = flags.comm_ctas.iter().map(|ctas| AttentionTuning {
        comm_ctas: Some(*ctas),
        ..planned
    });
    match flags.comm_ctas.is_empty() {
        true => vec![planned],
        false => fixed.collect(),
    }
}

fn config(flags: &Flags, seq: Dim, sizes: AttentionShape, tuning: AttentionTuning) -> KernelConfig {
    let attention = AttentionConfig {
        batch: Dim::Static(sizes.batch),
        seq,
        heads: Dim::Static(sizes.heads),
        kv_heads: Dim::Static(sizes.kv_heads),
        head_dim: Dim::Static(sizes.head_dim),
        causal: flags.causal,
        placement: match flags.causal && flags.world > 1 {
            true => Placement::Zigzag,
            false => Placement::Contiguous,
        },
        cached: flags.cached,
        tuning,
        ..AttentionConfig::new(AttentionOp::RingAttention)
    };
    KernelConfig {
        nodes: flags.network.nodes,
        ..KernelConfig::new(flags.world, attention)
    }
}

fn shape(flags: &Flags, seq: u64) -> AttentionShape {
    AttentionShape {
        batch: flags.batch,
        seq: seq * u64::from(flags.world),
        heads: flags.heads,
        kv_heads: flags.kv_heads.unwrap_or(flags.heads),
        head_dim: flags.head_dim,
    }
}

/// Creates random inputs of a rank, and results that are filled with NaN.
fn operands(
    flags: &Flags,
    operator: &Operator,
    rank: u32,
    lab: &Lab,
    seed: u64,
) -> Result<Vec<(Operand, Matrix)>, Failure> {
    let specs = operator.plan().operands().iter();
    specs
        .enumerate()
        .map(|(index, spec)| {
            let mut matrix = lab.matrix_of(spec.dtype, spec.rows.on(rank), spec.cols, 0)?;
            if !spec.written && spec.dtype == Dtype::Bf16 {
                let stream = (index as u64) << 32 | u64::from(rank);
                lab.fill(
                    &matrix,
                    0,
                    seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                )?;
            }
            if spec.operand == Operand::Q && flags.query_scale != 1.0 {
                let mut elems = lab.stream.clone_dtoh(&matrix.memory)?;
                for elem in &mut elems {
                    *elem = bf16::from_f32(elem.to_f32() * flags.query_scale);
                }
                lab.stream.memcpy_htod(&elems, &mut matrix.memory)?;
            }
            if let (Operand::CachedRows, Some(rows)) = (spec.operand, flags.cached) {
                let halves = [rows as u16, (rows >> 16) as u16].map(bf16::from_bits);
                let counts = halves.repeat(spec.rows.on(rank) as usize);
                lab.stream.memcpy_htod(&counts, &mut matrix.memory)?;
            }
            Ok((spec.operand, matrix))
        })
        .collect()
}
