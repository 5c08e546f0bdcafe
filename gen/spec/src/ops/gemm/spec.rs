//! A spec of a GEMM whose sizes are known.

use super::config::{BLayout, Epilogue, GemmConfig, GemmOp, GemmShape, Tuning};
use crate::spec::KernelSpec;
use crate::topology::Topology;

/// A spec whose sizes are known, as candidates see it.
#[derive(Clone, Copy)]
pub(super) struct GemmSpec<'a> {
    pub kernel: &'a KernelSpec,
    pub config: &'a GemmConfig,
    pub shape: GemmShape,
}

impl GemmSpec<'_> {
    pub const fn op(&self) -> GemmOp {
        self.config.op
    }

    pub const fn world(&self) -> u32 {
        self.kernel.world()
    }

    pub const fn topology(&self) -> Topology {
        self.kernel.topology()
    }

    pub const fn crosses_nodes(&self) -> bool {
        self.topology().nodes > 1
    }

    pub const fn b_layout(&self) -> BLayout {
        self.config.b_layout
    }

    pub const fn epilogue(&self) -> Epilogue {
        self.config.epilogue
    }

    pub const fn tuning(&self) -> &Tuning {
        &self.config.tuning
    }

    /// Rows of a full shard.
    pub const fn shard_rows(&self) -> u64 {
        self.shape.shard_rows(self.world())
    }
}
