//! The checks of norms and scales of results.

use crate::config::{Eps, Field, GemmConfig, GemmOp, Scales};
use crate::diagnostic::Diagnostics;
use crate::ops::gemm::narrow;
use crate::ops::gemm::scales::SCALE_BLOCK;

/// Checks the norm and the scales of C.
pub(super) fn check(found: &mut Diagnostics, config: &GemmConfig, nodes: u32) {
    check_norm(found, config, nodes);
    check_result_scales(found, config);
}

/// Checks the norm, which needs whole rows of sums over the ranks.
fn check_norm(found: &mut Diagnostics, config: &GemmConfig, nodes: u32) {
    let (op, epilogue) = (config.op, config.epilogue);
    epilogue.check_limits(found);
    if !epilogue.normalises() {
        found.require(
            epilogue.eps == Eps::default(),
            Field::EPS,
            || format!("{op} has it only with a norm"),
            "remove it, or add norm = \"rms\"",
        );
        return;
    }
    epilogue.eps.check(found);
    found.require(
        op.reduces(),
        Field::NORM,
        || format!("the rows of {op} are not normalised, only those of gemm_ar and gemm_rs are"),
        "remove it, or use gemm_ar",
    );
    check_limits_of_norms(found, config, nodes);
}

/// Checks scales of C. Without a norm, a CTA finds the scales of the columns that it has, which are no whole row.
fn check_result_scales(found: &mut Diagnostics, config: &GemmConfig) {
    let (op, epilogue, tuning) = (config.op, config.epilogue, &config.tuning);
    if !epilogue.quantises() {
        return;
    }
    let step = config.types().partial.stride_step();
    narrow::check_result_cols(found, config.n.fixed(), step);
    if epilogue.normalises() {
        return;
    }
    found.require(
        !op.reduces(),
        Field::RESULT_SCALES,
        || format!("{op} has it only with a norm"),
        "remove it, or add norm = \"rms\"",
    );
    found.require(
        epilogue.result_scales == Scales::Block || op.reduces(),
        Field::RESULT_SCALES,
        || "a CTA has a part of each row, and a scale of the row needs all of it".to_owned(),
        "use result_scales = \"block\"",
    );
    found.require(
        epilogue.output.is_none(),
        Field::OUTPUT,
        || "with result_scales, C is e4m3".to_owned(),
        "remove it, or result_scales",
    );
    let cols = tuning.tile_n.map(|n| n / epilogue.weight_cols());
    found.require(
        cols.is_none_or(|cols| cols >= SCALE_BLOCK as u32),
        Field::TILE_N,
        || format!("a tile has fewer than the {SCALE_BLOCK} columns of C that share a scale"),
        format!(
            "use tile_n = {}",
            SCALE_BLOCK as u32 * epilogue.weight_cols()
        ),
    );
    found.require(
        tuning.cluster != Some(true),
        Field::CLUSTER,
        || "the CTAs of a cluster complete fewer columns than share a scale".to_owned(),
        "remove it, or result_scales",
    );
}

/// Checks what a norm does not go together with.
fn check_limits_of_norms(found: &mut Diagnostics, config: &GemmConfig, nodes: u32) {
    let tuning = &config.tuning;
    for (field, differs, reason, help) in [
        (
            Field::NODES,
            nodes > 1,
            "rows of products are normalised on one node only",
            "use one node, or leave out the norm and use all_reduce with a norm behind",
        ),
        (
            Field::OUTPUT,
            config.types().c != config.types().addend,
            "what is normalised has the elements of the residual",
            "remove it",
        ),
        (
            Field::SYMMETRIC_RESULT,
            config.symmetric_result,
            "no rank stores to the result of another, since rows are normalised before",
            "remove it, or the norm",
        ),
        (
            Field::SHOTS,
            config.op == GemmOp::GemmRs && tuning.shots == Some(1),
            "one shot adds up parts of a row in different warps, and gemm_rs normalises behind two shots",
            "use shots = 2, or remove it",
        ),
    ] {
        if differs && config.op.reduces() {
            found.push(field, reason, help);
        }
    }
}
