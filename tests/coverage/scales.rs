//! Golden configurations of GEMM operators of e4m3, with scales.

use crate::some;
use mkernel_spec::{Dtype, GemmOp, Scales};
use mkernel_testing::golden::Golden;

/// Each GEMM operator has a golden configuration of e4m3, each kind of scales has one, and each place where scales are applied.
#[test]
fn goldens_cover_e4m3_and_scales() {
    let goldens = Golden::all();
    let gemm = |g: &Golden| g.plan.gemm().cloned();
    for op in GemmOp::ALL {
        some(&goldens, &format!("{op} of e4m3"), |g| {
            gemm(g).is_some_and(|gemm| gemm.config.op == op && gemm.types().a == Dtype::E4m3)
        });
    }
    for scales in [Scales::Tensor, Scales::Row, Scales::Block] {
        some(&goldens, &format!("scales of {scales}"), |g| {
            gemm(g).is_some_and(|gemm| gemm.config.scales == scales)
        });
    }
    for is_cluster in [true, false] {
        some(&goldens, "shared tiles with scales of rows", |g| {
            gemm(g).is_some_and(|gemm| {
                gemm.config.scales == Scales::Row
                    && gemm.cluster.is_some() == is_cluster
                    && (is_cluster || gemm.order.tail_splits > 1)
            })
        });
    }
    some(&goldens, "scales of blocks with rows at run time", |g| {
        gemm(g).is_some_and(|gemm| gemm.config.scales == Scales::Block)
            && g.plan.max_rows().is_some()
    });
}
