//! The command line of the benchmark of GEMM operators.

use clap::Parser;
use mkernel::Operand;
use mkernel::spec::spec::WORLDS;
use mkernel::spec::{BLayout, Epilogue, GemmOp, GemmShape};
use mkernel_testing::options::{Nodes, Tune, parse_epilogue, parse_layout, parse_op, parse_shape};
use std::path::PathBuf;

/// Times GEMM operators and cuBLAS, and checks their results.
///
/// All ranks run in this process, with a thread for each GPU. For each shape, short blocks of cuBLAS alone, of the GEMM
/// core alone (a world of one rank) and of every plan take turns. A time is the median over calls of the time of the
/// slowest rank.
///
/// With several nodes, a second line shows the unfused time: the time of the NICs plus the time of a node. For the NICs,
/// this run times the fabric's put kernel alone, with equal bytes and message sizes over the emulated NICs. For the node, it
/// takes the fastest baseline with the ranks of one node (`torchrun --nproc-per-node 4 benches/baselines.py --shape MxNxK
/// ...` for 4 GPUs per node), scaled to the clocks of this run by the times of cuBLAS. If a node has one GPU, its time is
/// cuBLAS alone. Without a baseline it is also cuBLAS alone, and the total is a lower bound. Adding up the sums of nodes
/// is not included.
#[derive(Clone, Debug, Parser)]
pub struct Flags {
    /// Number of GPUs: 1, 2, 4 or 8 [default: all]
    #[arg(long)]
    pub world: Option<u32>,
    #[command(flatten)]
    pub network: Nodes,
    /// Operators: ag_gemm, gemm_rs, gemm_ar, gemm
    #[arg(long, value_delimiter = ',', default_value = "ag_gemm", value_parser = parse_op)]
    pub op: Vec<GemmOp>,
    /// Sizes: M of all ranks, N and K of one rank; may be repeated [default: shapes of layers of models]
    #[arg(long = "shape", value_name = "MxNxK", value_parser = parse_shape)]
    pub shapes: Vec<GemmShape>,
    /// Layouts of B: kn, nk or both
    #[arg(long, value_delimiter = ',', default_value = "kn", value_parser = parse_layout)]
    pub b_layout: Vec<BLayout>,
    /// Plan to measure, such as `transfer=sm_push,comm_ctas=8` or `auto`; may be repeated [default: auto]
    #[arg(long = "tune", value_name = "KEY=VALUE,...")]
    pub tunings: Vec<Tune>,
    /// Epilogue, such as `bias=true,activation=gelu,output=fp32` or, of gemm_ar, `residual=true,norm=rms`; each plan is
    /// measured with and without the epilogue; with `swiglu=true`, C has half of the N columns; may be repeated
    #[arg(long = "epilogue", value_name = "KEY=VALUE,...", value_parser = parse_epilogue)]
    pub epilogues: Vec<Epilogue>,
    /// Measure each plan also with `batch_invariant`
    #[arg(long)]
    pub batch_invariant: bool,
    /// Measure each plan also on at most this number of SMs; may be repeated
    #[arg(long, value_name = "SMS")]
    pub max_sms: Vec<u32>,
    /// Measure each plan also with rows at run time, prepared for at most this number; may be repeated
    #[arg(long, value_name = "ROWS")]
    pub max_rows: Vec<u64>,
    /// Measure each plan of gemm_ar also with C in symmetric memory, and of ag_gemm with A
    #[arg(long)]
    pub symmetric: bool,
    /// Number of blocks of each candidate
    #[arg(long, default_value_t = 6)]
    pub rounds: u32,
    /// Calls of a block [default: calls of about 20 ms]
    #[arg(long)]
    pub iterations: Option<u32>,
    /// Append a line of JSON for each plan to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Output of benches/baselines.py on this machine, for a comparison
    #[arg(long, value_name = "FILE")]
    pub baselines: Option<PathBuf>,
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

/// Returns the largest possible number of ranks on `gpus` GPUs.
pub fn largest_world(gpus: usize) -> Option<u32> {
    let mut worlds = WORLDS.into_iter().rev();
    worlds.find(|world| *world as usize <= gpus)
}

/// Returns the shapes of layers of models. N, or K for operators that reduce, is divided over the ranks. A single rank has
/// shapes of plain GEMMs.
pub fn default_shapes(op: GemmOp, world: u64) -> Vec<GemmShape> {
    const ALONE: [(u64, u64, u64); 5] = [
        (4096, 4096, 4096),
        (8192, 8192, 8192),
        (8192, 7168, 8192),
        (16384, 2048, 16384),
        (4096, 512, 4096),
    ];
    const GATHERED: [(u64, u64, u64); 7] = [
        (1024, 4096, 4096),
        (4096, 4096, 4096),
        (8192, 8192, 8192),
        (16384, 16384, 16384),
        (32768, 32768, 32768),
        (8192, 57344, 8192),
        (16384, 106_496, 16384),
    ];
    const SUMMED: [(u64, u64, u64); 6] = [
        (4096, 4096, 4096),
        (8192, 8192, 8192),
        (16384, 16384, 16384),
        (32768, 32768, 32768),
        (8192, 8192, 28672),
        (16384, 16384, 53248),
    ];
    /// The numbers of rows in decoding.
    const FEW: [u64; 4] = [1, 16, 64, 256];
    let whole = |&(m, n, k): &(u64, u64, u64)| GemmShape { m, n, k };
    match (world, op) {
        (1, _) => ALONE.iter().map(whole).collect(),
        (_, GemmOp::GemmRs | GemmOp::GemmAr) => {
            let few = FEW.map(|m| (m, 8192, 8192));
            let of_rank = |s: GemmShape| GemmShape {
                k: s.k / world,
                ..s
            };
            few.iter().chain(&SUMMED).map(whole).map(of_rank).collect()
        }
        _ => {
            let of_rank = |s: GemmShape| GemmShape {
                n: s.n / world,
                ..s
            };
            GATHERED.iter().map(whole).map(of_rank).collect()
        }
    }
}

impl Flags {
    /// The operand of `op` for which plans are also measured in symmetric memory.
    pub fn in_symmetric_memory(&self, op: GemmOp) -> Option<Operand> {
        match op {
            GemmOp::GemmAr => self.symmetric.then_some(Operand::C),
            GemmOp::AgGemm => self.symmetric.then_some(Operand::A),
            GemmOp::GemmRs | GemmOp::Gemm => None,
        }
    }
}
