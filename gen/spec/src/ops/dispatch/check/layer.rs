//! The checks of `moe_layer`, and of rows that kernels quantise.

use crate::config::Field;
use crate::diagnostic::Diagnostics;
use crate::ops::dispatch::config::{DispatchConfig, DispatchOp, QUANTISING_TILE};
use crate::ops::gemm::{SCALE_BLOCK, Scales};

/// Records what `moe_layer` does not have.
pub(super) fn check(config: &DispatchConfig, nodes: u32, found: &mut Diagnostics) {
    found.require(
        nodes <= 1,
        Field::NODES,
        || format!("{nodes} nodes; the results of moe_layer travel over NVLink"),
        "use one node, or dispatch_gemm and combine",
    );
    found.require(
        config.swiglu,
        Field::SWIGLU,
        || "without it, the two products of moe_layer are one".to_owned(),
        "set swiglu = true",
    );
    if config.dtype.bytes() == 1 {
        check_quantised_layer(config, found);
    }
    found.require(
        config.split_k.is_none_or(|splits| splits == 1),
        Field::SPLIT_K,
        || "tiles of moe_layer are not divided into slices of K".to_owned(),
        "remove it",
    );
}

/// Records what `moe_layer` of e4m3 does not have.
fn check_quantised_layer(config: &DispatchConfig, found: &mut Diagnostics) {
    found.require(
        config.scales == Scales::Block,
        Field::SCALES,
        || "hidden rows of e4m3 get scales of blocks".to_owned(),
        "use scales = block",
    );
    let tile = QUANTISING_TILE;
    for (field, given, needed) in [
        (Field::TILE_M, config.tile_m, tile.m),
        (Field::TILE_N, config.tile_n, tile.n),
    ] {
        found.require(
            given.is_none_or(|given| given == needed),
            field,
            || format!("moe_layer of e4m3 has tiles of {}x{}", tile.m, tile.n),
            "remove it",
        );
    }
    found.require(
        config
            .intermediate
            .fixed()
            .is_none_or(|cols| cols.is_multiple_of(SCALE_BLOCK)),
        Field::INTERMEDIATE,
        || format!("blocks of {SCALE_BLOCK} columns of a hidden row have a scale"),
        format!("use a multiple of {SCALE_BLOCK}"),
    );
}

/// Checks scales of C, which a warp finds of the columns that it has.
pub(super) fn check_results(config: &DispatchConfig, found: &mut Diagnostics) {
    if !config.quantises_results() {
        return;
    }
    found.require(
        config.op == DispatchOp::DispatchGemm,
        Field::RESULT_SCALES,
        || {
            format!(
                "the results of {} are sums of rows, which are not quantised",
                config.op
            )
        },
        "remove it",
    );
    found.require(
        config.dtype.bytes() == 1
            || config.op.returns()
            || config.split_k.is_none_or(|splits| splits == 1),
        Field::SPLIT_K,
        || {
            format!(
                "sums of {} over slices of K are not quantised",
                config.dtype
            )
        },
        "remove it, or result_scales",
    );
    let cols: u32 = if config.swiglu { 256 } else { 128 };
    for (field, given, least) in [
        (Field::TILE_M, config.tile_m, QUANTISING_TILE.m),
        (Field::TILE_N, config.tile_n, cols),
    ] {
        found.require(
            given.is_none_or(|given| given >= least),
            field,
            || format!("with result_scales, a tile has at least {} rows and {cols} columns of the weight", QUANTISING_TILE.m),
            "remove it",
        );
    }
}
