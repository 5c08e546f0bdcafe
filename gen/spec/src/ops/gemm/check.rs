//! The checks of a GEMM operator's configuration.

mod results;

use super::narrow;
use crate::config::{Activation, Dim, Dtype, Field, GemmConfig, GemmOp, Scales, Transfer, Tuning};
use crate::diagnostic::Diagnostics;
use crate::limits::{MAX_DIM, MAX_ELEMS};
use crate::options::OperatorConfig;
use crate::options::option_type::check_word;

/// Records every mistake.
pub(crate) fn check(config: &GemmConfig, world: u32, nodes: u32, found: &mut Diagnostics) {
    for (field, dim) in config.dims() {
        let cols = match field {
            Field::N => config.epilogue.weight_cols().into(),
            _ => 1,
        };
        let step = match field {
            Field::M => 1,
            Field::K => config.types().a.stride_step(),
            _ => config.types().partial.stride_step(),
        };
        if let Some(size) = dim.fixed() {
            check_size(found, field, size, step, MAX_DIM / cols);
        }
    }
    config.check_limits(found);
    let types = config.types();
    if let Some(output) = config.epilogue.output {
        let results = [types.a.of_results(), Dtype::Fp32].map(Dtype::name);
        check_word(output.name(), &results, Field::OUTPUT, found);
    }
    narrow::check(found, config.dtype, config.scales, config.b_layout);
    check_sent_scales(found, config);
    results::check(found, config, nodes);
    check_swiglu(found, config);
    found.require(
        !config.symmetric_result || config.op == GemmOp::GemmAr,
        Field::SYMMETRIC_RESULT,
        || format!("each rank of {} computes all of its own result", config.op),
        "remove it",
    );
    found.require(
        !config.symmetric_a || config.op == GemmOp::AgGemm,
        Field::SYMMETRIC_A,
        || format!("{} does not send A to other ranks", config.op),
        "remove it",
    );
    check_areas(found, config);
    check_tuning(found, config, world, nodes);
    check_run_time_rows(found, config);
    if nodes > 1 && config.op.communicates() {
        check_across_nodes(found, &config.tuning);
    }
}

/// Checks scales that travel with rows of A.
fn check_sent_scales(found: &mut Diagnostics, config: &GemmConfig) {
    let travel =
        config.op == GemmOp::AgGemm && matches!(config.scales, Scales::Row | Scales::Block);
    found.require(
        !travel || !config.symmetric_a,
        Field::SYMMETRIC_A,
        || "NICs send rows with their scales, which do not lie behind the rows of A".to_owned(),
        "remove it, or use scales = \"tensor\"",
    );
    found.require(
        !travel || config.tuning.transfer != Some(Transfer::CopyEngine),
        Field::TRANSFER,
        || "copy engines do not copy the scales of rows".to_owned(),
        "remove it, or use scales = \"tensor\"",
    );
}

/// Checks SwiGLU, whose gate and up projection are whole sums of the columns of one B.
fn check_swiglu(found: &mut Diagnostics, config: &GemmConfig) {
    let (op, tuning, epilogue) = (config.op, &config.tuning, config.epilogue);
    if !epilogue.swiglu {
        return;
    }
    found.require(
        !op.reduces(),
        Field::SWIGLU,
        || format!("{op} is the second product of a block, and SwiGLU follows the first one"),
        "remove it, or use ag_gemm or gemm",
    );
    found.require(
        epilogue.activation == Activation::None,
        Field::ACTIVATION,
        || "swiglu is the activation: silu(gate) · up".to_owned(),
        "remove it, or swiglu",
    );
    found.require(
        tuning.tile_n != Some(64) && (tuning.tile_m, tuning.tile_n) != (Some(64), Some(128)),
        Field::TILE_N,
        || "64 columns of a warpgroup are no sub-tile each of gate and up".to_owned(),
        "use tile_n = 256, or 128 with tile_m = 128",
    );
}

fn check_size(found: &mut Diagnostics, field: Field, size: u64, step: u64, most: u64) {
    found.require(
        (1..=most).contains(&size),
        field,
        || format!("{size} is not in 1..={most} (TMA coordinates are 32-bit)"),
        "use a size in that range",
    );
    let (below, above) = (
        size / step * step,
        size.saturating_add(step - 1) / step * step,
    );
    found.require(
        size.is_multiple_of(step),
        field,
        || {
            format!(
                "{size} is not a multiple of {step} (TMA row strides are multiples of 16 bytes)"
            )
        },
        if below == 0 {
            format!("pad it to {above}")
        } else {
            format!("use {below} or {above}")
        },
    );
}

/// Checks the areas of matrices: two valid sizes can have a product above `MAX_ELEMS`.
fn check_areas(found: &mut Diagnostics, config: &GemmConfig) {
    let pairs = [
        (Field::M, config.m, Field::K, config.k),
        (Field::K, config.k, Field::N, config.n),
        (Field::M, config.m, Field::N, config.n),
    ];
    for (row_field, rows, col_field, cols) in pairs {
        if let (Some(rows), Some(cols)) = (rows.fixed(), cols.fixed()) {
            let rows = match row_field {
                Field::K => rows.saturating_mul(config.epilogue.weight_cols().into()),
                _ => rows,
            };
            found.require(
                rows.saturating_mul(cols) <= MAX_ELEMS,
                row_field,
                || format!("a matrix of {row_field} x {col_field} = {rows} x {cols} has more than {MAX_ELEMS} elements"),
                "split the problem",
            );
        }
    }
}

fn check_tuning(found: &mut Diagnostics, config: &GemmConfig, world: u32, nodes: u32) {
    let tuning = &config.tuning;
    tuning.check_limits(found);
    if let (Some(64), Some(64)) = (tuning.tile_m, tuning.tile_n) {
        found.push(
            Field::TILE_N,
            "64 columns with tile_m = 64 leave half a 128-byte swizzle row to each warpgroup",
            "use tile_n = 128 or 256 with tile_m = 64",
        );
    }
    if let Some(rows) = tuning.chunk_rows {
        found.require(
            rows > 0 && rows.is_multiple_of(128),
            Field::CHUNK_ROWS,
            || format!("{rows} is not a positive multiple of 128, the rows of the largest tile"),
            "use 128, 256, 384, …",
        );
    }
    check_applies(found, config, world, nodes);
    found.require(
        tuning.cluster != Some(true) || !config.op.reduces(),
        Field::CLUSTER,
        || format!("{} has no such choice", config.op),
        "remove it",
    );
    if tuning.transfer == Some(Transfer::CopyEngine) {
        for (field, given) in [
            (Field::COMM_CTAS, tuning.comm_ctas.is_some()),
            (Field::K_SLICES, tuning.k_slices.is_some()),
        ] {
            found.require(
                !given,
                field,
                || "copy engines use no communication CTAs and move whole rows".to_owned(),
                "remove it, or use transfer = \"sm_push\"",
            );
        }
    }
}

/// Checks options that need a number of rows at compile time. Each call gives dynamic rows.
fn check_run_time_rows(found: &mut Diagnostics, config: &GemmConfig) {
    if matches!(config.m, Dim::Static(_)) {
        found.require(
            config.tuning.buckets.is_none(),
            Field::BUCKETS,
            || "a kernel for one number of rows has one plan".to_owned(),
            "write m = \"dynamic\", or remove it",
        );
        return;
    }
    for (field, given, reason) in [
        (
            Field::TRANSFER,
            config.tuning.transfer == Some(Transfer::CopyEngine),
            "copy engines copy a number of rows that the host knows",
        ),
        (
            Field::PACE_STEPS,
            config.tuning.pace_steps.is_some_and(|steps| steps > 0),
            "CTAs keep pace only if the number of tiles is constant",
        ),
        (
            Field::CLUSTER,
            config.tuning.cluster == Some(true),
            "clusters share tiles whose number is constant",
        ),
    ] {
        if given {
            found.push(field, reason, "write m as a number, or remove it");
        }
    }
}

/// Checks that the operator has the given choices about the exchange between ranks. In a world of 1 these choices have no effect,
/// so that a program for several ranks, on one node or several nodes, also runs on one rank.
fn check_applies(found: &mut Diagnostics, config: &GemmConfig, world: u32, nodes: u32) {
    let (op, tuning) = (config.op, &config.tuning);
    let gathers = op == GemmOp::AgGemm;
    for (field, given, applies) in [
        (Field::TRANSFER, tuning.transfer.is_some(), gathers),
        (
            Field::COMM_CTAS,
            tuning.comm_ctas.is_some(),
            gathers || op.reduces() && (nodes > 1 || world == 1),
        ),
        (Field::K_SLICES, tuning.k_slices.is_some(), gathers),
        (Field::CHUNK_ROWS, tuning.chunk_rows.is_some(), gathers),
        (
            Field::ROUND_TILES,
            tuning.round_tiles.is_some(),
            op.reduces() && tuning.shots != Some(1),
        ),
        (Field::SHOTS, tuning.shots.is_some(), op.reduces()),
    ] {
        found.require(
            !given || applies,
            field,
            || match (field, tuning.shots) {
                (Field::ROUND_TILES, Some(1)) => "one shot has no rounds".to_owned(),
                _ => format!("{op} has no such choice"),
            },
            "remove it",
        );
    }
}

/// Refuses choices that only kernels of one node have.
fn check_across_nodes(found: &mut Diagnostics, tuning: &Tuning) {
    for (field, differs, reason, help) in [
        (
            Field::TRANSFER,
            tuning.transfer == Some(Transfer::CopyEngine),
            "across nodes, SMs pass on what other nodes send",
            "use transfer = \"sm_push\", or remove it",
        ),
        (
            Field::COMM_CTAS,
            tuning.comm_ctas == Some(0),
            "CTAs that only communicate make the puts to other nodes",
            "use 1 or more, or remove it",
        ),
        (
            Field::K_SLICES,
            tuning.k_slices.is_some_and(|slices| slices > 1),
            "across nodes, whole rows travel",
            "remove it",
        ),
        (
            Field::SHOTS,
            tuning.shots == Some(1),
            "one shot is for ranks that reach each other's memory",
            "use shots = 2, or remove it",
        ),
    ] {
        if differs {
            found.push(field, reason, help);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Epilogue, KernelConfig};
    fn mistakes(config: GemmConfig) -> Vec<&'static str> {
        let found =
            crate::spec::KernelSpec::validate(KernelConfig::new(2, config)).expect_err("mistakes");
        found.iter().map(|v| v.field.name()).collect()
    }

    #[test]
    fn swiglu_has_no_other_activation_and_needs_whole_sums() {
        let swiglu = |op| GemmConfig {
            epilogue: Epilogue {
                swiglu: true,
                activation: Activation::Silu,
                ..Epilogue::default()
            },
            ..GemmConfig::new(op)
        };
        assert_eq!(mistakes(swiglu(GemmOp::GemmAr)), ["swiglu", "activation"]);
        let mut config = swiglu(GemmOp::Gemm);
        config.n = Dim::Static((MAX_DIM / 2).next_multiple_of(8) + 8);
        assert_eq!(mistakes(config), ["n", "activation"]);
        for tile in [(None, Some(64)), (Some(64), Some(128))] {
            (config.n, config.epilogue.activation) = (Dim::Static(8), Activation::None);
            (config.tuning.tile_m, config.tuning.tile_n) = tile;
            assert_eq!(mistakes(config), ["tile_n"]);
        }
    }
}
