//! Golden configurations of GEMM operators of e4m3, with scales, and of GEMM operators with SwiGLU.

use crate::some;
use mkernel_spec::plan::OpPlan;
use mkernel_spec::{BLayout, Dtype, GemmOp, Scales};
use mkernel_testing::golden::Golden;

/// Each GEMM operator, each kind of scales and each place where scales are applied has a golden configuration of e4m3.
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
    for crosses_nodes in [true, false] {
        some(&goldens, "scales that travel with rows", |g| {
            gemm(g).is_some_and(|gemm| {
                gemm.config.op == GemmOp::AgGemm
                    && matches!(gemm.config.scales, Scales::Row | Scales::Block)
            }) && (g.plan.spec.topology().nodes > 1) == crosses_nodes
        });
    }
    some(&goldens, "scales of blocks with rows at run time", |g| {
        gemm(g).is_some_and(|gemm| gemm.config.scales == Scales::Block)
            && g.plan.max_rows().is_some()
    });
}

/// `dispatch_gemm` has golden configurations with scales of tokens on a node and between nodes, and with tiles of e4m3 that are
/// divided into slices or have a gate.
#[test]
fn goldens_cover_scales_of_tokens() {
    let goldens = Golden::all();
    let dispatch = |g: &Golden| match &g.plan.body().op_plan {
        OpPlan::Dispatch(op_plan) => Some(op_plan.clone()),
        _ => None,
    };
    for scales in [Scales::Row, Scales::Block] {
        some(&goldens, &format!("tokens with scales of {scales}"), |g| {
            dispatch(g).is_some_and(|dispatch| dispatch.config.scales == scales)
        });
    }
    for crosses_nodes in [true, false] {
        some(&goldens, "scales that travel with tokens", |g| {
            dispatch(g).is_some_and(|dispatch| dispatch.token_scales() > 0)
                && (g.plan.spec.topology().nodes > 1) == crosses_nodes
        });
    }
    let narrow = |g: &Golden| dispatch(g).filter(|dispatch| dispatch.types().tokens == Dtype::E4m3);
    some(&goldens, "slices of e4m3", |g| {
        narrow(g).is_some_and(|dispatch| dispatch.divides_tiles())
    });
    some(&goldens, "SwiGLU of e4m3", |g| {
        narrow(g).is_some_and(|dispatch| dispatch.config.swiglu)
    });
}

/// SwiGLU changes the columns of B of a load, of a scale, of a bias and of a shared tile.
#[test]
fn goldens_cover_swiglu() {
    let mut goldens = Golden::all();
    goldens.retain(|golden| {
        golden
            .plan
            .gemm()
            .is_some_and(|gemm| gemm.config.epilogue.swiglu)
    });
    let gemm = |g: &Golden| g.plan.gemm().cloned().expect("a GEMM");
    for op in [GemmOp::AgGemm, GemmOp::Gemm] {
        some(&goldens, op.op().name(), |g| gemm(g).config.op == op);
    }
    for layout in BLayout::ALL {
        some(&goldens, layout.name(), |g| {
            gemm(g).config.b_layout == layout
        });
    }
    for scales in [Scales::None, Scales::Row, Scales::Block] {
        some(&goldens, scales.name(), |g| gemm(g).config.scales == scales);
    }
    some(&goldens, "a bias", |g| gemm(g).config.epilogue.bias);
    some(&goldens, "a cluster", |g| gemm(g).cluster.is_some());
    some(&goldens, "shared tiles", |g| {
        gemm(g).cluster.is_none() && gemm(g).order.tail_splits > 1
    });
    some(&goldens, "rows at run time", |g| {
        g.plan.max_rows().is_some()
    });
}
