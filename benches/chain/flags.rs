//! The command line of the chain benchmark.

use clap::Parser;
use mkernel::spec::{GemmOp, GemmShape};
use mkernel_testing::options::{Nodes, Tune, parse_op, parse_shape};
use std::path::PathBuf;

/// Times GEMM operators in a chain: each call reads the result of the previous call.
///
/// The calls of a chain are in one CUDA graph and take the weights in turn, so that L2 does not hold the weights. A time is
/// the median over replays of the time of the slowest rank, divided by the number of calls. cuBLAS is the local product
/// alone. The rivals are cuBLAS followed by a collective of NCCL, or by PyTorch's one-shot or two-shot all-reduce on
/// symmetric memory, in graphs of equal length (`benches/baselines.py --chain`). The rivals run in separate processes,
/// before and after the plans; the table has the faster run.
///
/// With several nodes, the rival is cuBLAS followed by the transfer of equal bytes over the emulated NICs: the sum of both
/// times, each measured alone. The rival of `gemm` is cuBLAS alone.
#[derive(Clone, Debug, Parser)]
pub struct Flags {
    /// Number of GPUs: 1, 2, 4 or 8
    #[arg(long, default_value_t = 2)]
    pub world: u32,
    #[command(flatten)]
    pub network: Nodes,
    /// Operators: gemm_ar, gemm_rs, ag_gemm, gemm
    #[arg(long, value_delimiter = ',', default_value = "gemm_ar,gemm_rs,ag_gemm,gemm", value_parser = parse_op)]
    pub op: Vec<GemmOp>,
    /// Sizes: M of all ranks, N and K of one rank; may be repeated [default: six numbers of rows]
    #[arg(long = "shape", value_name = "MxNxK", value_parser = parse_shape)]
    pub shapes: Vec<GemmShape>,
    /// Plan to measure, such as `split_k=4` or `auto`; may be repeated [default: auto]
    #[arg(long = "tune", value_name = "KEY=VALUE,...")]
    pub tunings: Vec<Tune>,
    /// Measure each plan also with rows at run time, prepared for at most this number; may be repeated
    #[arg(long, value_name = "ROWS")]
    pub max_rows: Vec<u64>,
    /// Measure each plan also with calls that load weights while the previous call finishes
    #[arg(long)]
    pub overlap: bool,
    /// Measure each plan also with separate launches instead of a graph
    #[arg(long)]
    pub eager: bool,
    /// Number of calls of a graph
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=400))]
    pub calls: u32,
    /// Number of weights that the calls take in turn
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub weights: u32,
    /// Number of blocks of each candidate
    #[arg(long, default_value_t = 5)]
    pub rounds: u32,
    /// Python with PyTorch, for the rivals
    #[arg(long, value_name = "FILE", default_value = "python3")]
    pub python: PathBuf,
    /// Measure no rivals
    #[arg(long)]
    pub no_rivals: bool,
    /// Folder of libcublas.so [default: searched]
    #[arg(long, value_name = "DIR")]
    pub cublas_dir: Option<PathBuf>,
    /// Seconds after which the process ends, even if it hangs
    #[arg(long, default_value_t = 300)]
    pub limit_s: u64,
    /// Ignored. Cargo passes this option.
    #[arg(long, hide = true)]
    pub bench: bool,
}

/// Returns the sizes of a layer in decoding, and of two layers with smaller weights and more rows.
pub fn default_shapes(op: GemmOp) -> Vec<GemmShape> {
    let sizes = [1, 16, 64, 256].map(|m| (m, 8192, 2048));
    let larger = [1024, 4096].map(|m| (m, 4096, 1024));
    let shape = |&(m, long, short): &(u64, u64, u64)| match op.reduces() {
        true => GemmShape {
            m,
            n: long,
            k: short,
        },
        false => GemmShape {
            m,
            n: short,
            k: long,
        },
    };
    sizes.iter().chain(&larger).map(shape).collect()
}
