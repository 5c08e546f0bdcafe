//! [`KernelConfig`]: what the user writes, in TOML, in `#[fused_kernel(...)]` or as flags. Nothing in it is checked yet.

mod dim;
mod dtype;
mod field;
mod kernel;
mod markdown;
mod norm;
pub(crate) mod op;
pub(crate) mod option;
pub(crate) mod option_type;
mod problem;
pub(crate) mod value;
pub(crate) mod values;

pub use crate::ops::attention::{
    AttentionConfig, AttentionOp, AttentionShape, AttentionTuning, Layout, Placement, Scale,
};
pub use crate::ops::collective::{
    CollectiveConfig, CollectiveOp, CollectiveShape, Protocol, SumEpilogue,
};
pub use crate::ops::combine::{CombineConfig, CombineOp, CombineShape};
pub use crate::ops::dispatch::{DispatchConfig, DispatchOp, DispatchShape, all_rows};
pub use crate::ops::gemm::{
    Activation, BLayout, Epilogue, GemmConfig, GemmOp, GemmShape, Tile, Transfer, Tuning,
};
pub use dim::Dim;
pub use dtype::{Dtype, DtypeInfo, LINE_BYTES, TmaType};
pub use field::Field;
pub use kernel::KernelConfig;
pub use markdown::OptionTable;
pub use norm::{Eps, Norm};
pub use op::Op;
pub use option::{OptionSpec, Options};
pub use problem::{Problem, Shape};
pub use value::{Value, nearest};
pub use values::{Limits, Values};
