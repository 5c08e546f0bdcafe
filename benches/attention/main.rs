//! `cargo bench --bench attention -- --help`: see [`Flags`]. Needs GPUs.

#[path = "../operators/blocks.rs"]
mod blocks;
mod check;
mod dump;
#[path = "../operators/edits.rs"]
mod edits;
#[allow(dead_code, reason = "the GPU tests use the rest")]
#[path = "../../tests/gpu/lab.rs"]
mod lab;

use blocks::{Blocks, MAX_ITERATIONS};
use check::{Found, Gathered};
use clap::Parser;
use edits::{Edit, edit};
use lab::{Failure, Lab, Matrix, TimeLimit, seed_from_clock};
use mkernel::half::bf16;
use mkernel::spec::abi::Operand;
use mkernel::spec::plan::OpPlan;
use mkernel::spec::roofline::Bound;
use mkernel::{
    AttentionConfig, AttentionOp, AttentionTuning, Communicator, Dim, Dtype, Faults, KernelConfig,
    NicModel, Operator, Placement, RawOperand, Transport,
};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Time of a block.
const BLOCK_US: f64 = 20_000.0;

/// Times `ring_attention` on random data, and checks rows of it against fp64.
///
/// All ranks run in this process, a thread for each GPU. A time is the median over calls of the slowest rank's. TFLOP/s
/// are those of the rank that has most to compute; pairs of a query and a later key don't count under a mask. Beside
/// other work on the same GPUs, or after it, clocks differ: compare within one run.
#[derive(Clone, Debug, Parser)]
struct Flags {
    /// GPUs to use: 1, 2, 4 or 8, over all nodes
    #[arg(long, default_value_t = 1)]
    world: u32,
    /// Nodes into which they are put, with emulated NICs between them
    #[arg(long, default_value_t = 1)]
    nodes: u32,
    /// What an emulated NIC sends in a second, 10^9 bytes
    #[arg(long, default_value_t = 50.0)]
    nic_gb_s: f64,
    /// What a message takes besides its bytes, one way, µs
    #[arg(long, default_value_t = 5)]
    nic_latency_us: u64,
    /// Rows of a sequence on each rank; several with commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "768,1536,3072,6144,12288"
    )]
    seq: Vec<u64>,
    #[arg(long, default_value_t = 4)]
    batch: u64,
    #[arg(long, default_value_t = 16)]
    heads: u64,
    /// Heads of K and V [default: as many]
    #[arg(long)]
    kv_heads: Option<u64>,
    #[arg(long, default_value_t = 128)]
    head_dim: u64,
    /// Attend to no later rows; the sequence is placed as zigzag
    #[arg(long)]
    causal: bool,
    /// Fix the CTAs that send K and V; several with commas, in turns
    #[arg(long, value_delimiter = ',')]
    comm_ctas: Vec<u32>,
    /// Fix the heads of K and V that there is room for
    #[arg(long)]
    kv_slots: Option<u32>,
    /// What queries are multiplied by: with 8, a few keys of a row have most of its weight
    #[arg(long, default_value_t = 1.0)]
    query_scale: f32,
    /// Change the text of kernels, "kForwardLag = 512=>kForwardLag = 256"; what the host does must still fit
    #[arg(long, value_parser = edit)]
    edit: Vec<Edit>,
    /// Write operands and results of the last size to this folder, for benches/accuracy.py
    #[arg(long)]
    dump: Option<PathBuf>,
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
    let seed = seed_from_clock();
    println!(
        "{} of {} GPUs in {} nodes, seed {seed}",
        flags.world,
        mkernel::device_count()?,
        flags.nodes
    );
    println!("  seq/rank      µs  TFLOP/s  bound µs  by       error  push  slots  plan");
    let gpus: Vec<usize> = (0..flags.world as usize).collect();
    let communicators = Communicator::local(&gpus)?;
    let gathered = Gathered::new(flags.world);
    std::thread::scope(|scope| {
        let gathered = &gathered;
        let start = |ranks: Communicator| {
            scope.spawn(move || {
                let rank = ranks.rank();
                one_rank(flags, &ranks, seed, gathered)
                    .inspect_err(|error| eprintln!("rank {rank}: {error}"))
            })
        };
        let threads: Vec<_> = communicators.into_iter().map(start).collect();
        let results = threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| "a rank panicked")?);
        results.collect::<Vec<_>>().into_iter().collect()
    })
}

fn one_rank(
    flags: &Flags,
    ranks: &Communicator,
    seed: u64,
    gathered: &Gathered,
) -> Result<(), Failure> {
    ranks.context().bind_to_thread()?;
    ranks.set_transport(Transport::Emulated {
        nic: NicModel {
            gb_per_s: flags.nic_gb_s,
            latency: Duration::from_micros(flags.nic_latency_us),
            ..NicModel::default()
        },
        faults: Faults::default(),
    });
    let lab = Lab::new(&ranks.context().default_stream())?;
    let blocks = Blocks::new(ranks, &lab)?;
    for seq in &flags.seq {
        one_size(flags, ranks, *seq, seed, gathered, (&lab, &blocks))?;
    }
    Ok(())
}

/// Times all candidates for a size in turns, and checks each.
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
        operators.push(prepare(flags, ranks, seq, tuning)?);
    }
    let operands = operands(flags, &operators[0], ranks.rank(), lab, seed)?;
    let raw: Vec<RawOperand> = operands.iter().map(|(_, m)| m.operand()).collect();
    let call = |operator: &Operator| {
        // SAFETY: the operands are the plan's, in its order, and live until the block is over.
        Ok(unsafe { operator.launch_raw(lab.stream.cu_stream(), &raw) }?)
    };
    let first = blocks.time(2, &|| call(&operators[0]))?;
    let iterations = (BLOCK_US / median(&first)).clamp(3.0, f64::from(MAX_ITERATIONS)) as u32;
    let mut times = vec![Vec::new(); operators.len()];
    for round in 0..flags.rounds {
        // A block starts with the clocks that the one before it has left: each comes after both neighbours.
        for turn in 0..operators.len() {
            let index = match round % 2 {
                0 => turn,
                _ => operators.len() - 1 - turn,
            };
            times[index].extend(blocks.time(iterations, &|| call(&operators[index]))?);
        }
    }
    for (operator, times) in operators.iter().zip(&times) {
        blocks.time(1, &|| call(operator))?;
        let plan = operator.plan();
        let found = Found::download(plan, &operands, lab)?;
        let errors = gathered.check(plan, ranks.rank(), found)?;
        let error = blocks.slowest(&[errors])?[0];
        if ranks.rank() == 0 {
            let us = median(times);
            // The plan's is for the NICs of its device.
            let bound = Bound {
                nic_us: plan.traffic.nic_bytes as f64 / flags.nic_gb_s / 1e3,
                ..plan.bound
            };
            let OpPlan::Attention(op_plan) = &plan.op_plan else {
                return Err("a plan of another problem".into());
            };
            println!(
                "{seq:>10} {us:>7.0} {:>8.0} {:>9.0}  {:<7} {error:.1e} {:>5} {:>6}  {}",
                plan.traffic.flops as f64 / us / 1e6,
                bound.us(),
                bound.reason(),
                op_plan.push_ctas,
                op_plan.kv_slots,
                plan.id,
            );
        }
        if let (Some(to), OpPlan::Attention(op_plan)) = (&flags.dump, &plan.op_plan) {
            dump::dump(to, plan, op_plan, ranks.rank(), &operands, lab)?;
        }
        if error.is_nan() || error > check::MAX_RELATIVE_ERROR {
            return Err(format!("relative error {error:.1e}").into());
        }
    }
    // Memory is freed while no rank's kernel runs.
    Ok(ranks.barrier()?)
}

/// The operator, its text changed as was asked for. Collective.
fn prepare(
    flags: &Flags,
    ranks: &Communicator,
    seq: u64,
    tuning: AttentionTuning,
) -> Result<Operator, Failure> {
    let config = config(flags, seq, tuning);
    edits::prepare(ranks, &config, shape(flags, seq), &flags.edit)
}

/// The planner's choice, or those that were asked for.
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

fn config(flags: &Flags, seq: u64, tuning: AttentionTuning) -> KernelConfig {
    let sizes = shape(flags, seq);
    let attention = AttentionConfig {
        batch: Dim::Static(sizes.batch),
        seq: Dim::Static(sizes.seq),
        heads: Dim::Static(sizes.heads),
        kv_heads: Dim::Static(sizes.kv_heads),
        head_dim: Dim::Static(sizes.head_dim),
        causal: flags.causal,
        placement: match flags.causal && flags.world > 1 {
            true => Placement::Zigzag,
            false => Placement::Contiguous,
        },
        tuning,
        ..AttentionConfig::new(AttentionOp::RingAttention)
    };
    KernelConfig {
        nodes: flags.nodes,
        ..KernelConfig::new(flags.world, attention)
    }
}

fn shape(flags: &Flags, seq: u64) -> mkernel::AttentionShape {
    mkernel::AttentionShape {
        batch: flags.batch,
        seq: seq * u64::from(flags.world),
        heads: flags.heads,
        kv_heads: flags.kv_heads.unwrap_or(flags.heads),
        head_dim: flags.head_dim,
    }
}

/// Random inputs and poisoned results of a rank.
fn operands(
    flags: &Flags,
    operator: &Operator,
    rank: u32,
    lab: &Lab,
    seed: u64,
) -> Result<Vec<(Operand, Matrix)>, Failure> {
    let specs = operator.plan().operands.iter();
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
            Ok((spec.operand, matrix))
        })
        .collect()
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
