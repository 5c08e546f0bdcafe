//! Hopper, with instructions that later architectures lack.

use super::spec::{ArchSpec, ProducerRegisters, Tile};

pub(super) const SM90A: ArchSpec = ArchSpec {
    name: "sm_90a",
    capability: (9, 0),
    gpus: "H100 or H200",
    smem_bytes: 227 << 10,
    sm_registers: 64 << 10,
    max_registers: 255,
    register_step: 8,
    group_threads: 128,
    groups: 2,
    group_rows: 64,
    producers: ProducerRegisters {
        // 128 accumulators and their addresses need more than an even share; producers need 56 when they also push.
        gemm: 56,
        // Producers compute numbers that are constants in other kernels, and 56 registers are too few.
        gemm_with_rows: 72,
        // A thread that collects rows for a norm has eight vectors in flight.
        gemm_normalising: 88,
        // Consumers have 64 registers of products besides the accumulators.
        gemm_promoting: 40,
        // With 40, NVRTC 13.0 spills 160 to 240 bytes of `ag_gemm`, and with 56 at most 76.
        gemm_promoting_pushed_rows: 56,
        // The scores, sums and weights of a warpgroup's 64x128 tile occupy 160 registers of each thread at the same time, and
        // 24 more are enough for the rest. Producer warps that push and distinguish many cases need more than 56.
        attention: 72,
        // Warps that load and push also compute where chunks begin and end, and compare the rows of ranks while they wait.
        attention_with_rows: 88,
        // Producer warps keep eight addresses of rows and the coordinates of tiles. Threads of consumer warps have 128 sums each.
        dispatch: 104,
        // Consumers need 64 more registers than without promotion. Producer warps read addresses of rows from shared
        // memory again.
        dispatch_promoting: 72,
    },
    // One or two warpgroups of 64 rows, each with at most 256 columns, which wgmma multiplies at a time.
    tiles: &[
        Tile { m: 128, n: 256 },
        Tile { m: 128, n: 128 },
        Tile { m: 64, n: 256 },
        Tile { m: 64, n: 128 },
        Tile { m: 128, n: 64 },
    ],
};
