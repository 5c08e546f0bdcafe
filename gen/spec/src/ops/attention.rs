//! Attention operators: `ring_attention`.

pub(crate) mod check;
pub(crate) mod config;
mod cost;
mod layout;
mod memory;
pub(crate) mod op_plan;
mod placement;
pub(crate) mod plan;
mod push;
mod roles;
pub(crate) mod schedule;
mod slots;
mod tile_sequence;
mod work;

pub use config::{
    AttentionConfig, AttentionOp, AttentionShape, AttentionTuning, MAX_CACHED_ROWS, MAX_HEADS,
    MAX_SEQUENCES,
};
pub use memory::{AttentionSmem, AttentionWorkspace};
pub use op_plan::{AttentionPlan, SUB_TILE_BYTES, TILE_ROWS};
pub use placement::{Layout, Placement};
pub use push::PUSH_LEAD;
pub use tile_sequence::{KeyTile, QueryTile};
