//! Hopper, with the instructions that later architectures lack.

use super::spec::{ArchSpec, Tile};

pub(super) const SM90A: ArchSpec = ArchSpec {
    name: "sm_90a",
    capability: (9, 0),
    gpus: "H100 or H200",
    smem_bytes: 227 << 10,
    sm_registers: 64 << 10,
    max_registers: 255,
    // One or two warpgroups of 64 rows, each with at most 256 columns, which wgmma multiplies at a time.
    tiles: &[
        Tile { m: 128, n: 256 },
        Tile { m: 128, n: 128 },
        Tile { m: 64, n: 256 },
        Tile { m: 64, n: 128 },
        Tile { m: 128, n: 64 },
    ],
};
