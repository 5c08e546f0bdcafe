//! GEMM operators: `ag_gemm`, `gemm_rs`, `gemm_ar` and `gemm`.

mod ag_gemm;
pub(crate) mod check;
pub(crate) mod config;
mod core;
pub(crate) mod cost;
mod exchange;
mod granules;
mod maps;
mod memory;
pub(crate) mod narrow;
pub(crate) mod op_plan;
pub(crate) mod operands;
pub(crate) mod plan;
mod reduce;
mod roles;
pub(crate) mod scales;
pub(crate) mod schedule;
mod smem;
mod spec;
mod tile_sequence;
pub(crate) mod types;

pub use self::core::CoreLayout;
pub use config::{Activation, BLayout, Epilogue, GemmConfig, GemmOp, GemmShape, Transfer, Tuning};
pub use memory::GemmWorkspace;
pub use op_plan::{Chunks, Cluster, GemmPlan, Reduction, SLOT_BYTES, Split, TileOrder};
pub use scales::{SCALE_BLOCK, Scales};
pub use smem::{CommSmem, GemmSmem};
pub use tile_sequence::{PlacedTile, ShardChunk};
pub use types::GemmTypes;
