//! The limits of operators that route tokens to experts.

mod layer;
mod rows;

use super::config::{DispatchConfig, DispatchOp, all_rows};
use crate::arch::Tile;
use crate::config::{Dim, Dtype, Field};
use crate::diagnostic::Diagnostics;
use crate::limits::{MAX_DIM, MAX_ELEMS};
use crate::ops::gemm::narrow;
use crate::options::OperatorConfig;

/// Experts over all ranks: a kernel's tables of them are in shared memory.
pub const MAX_EXPERTS: u64 = 1024;
/// Experts of a token.
pub const MAX_TOP_K: u64 = 16;

/// Records every mistake.
pub(crate) fn check(config: &DispatchConfig, world: u32, nodes: u32, found: &mut Diagnostics) {
    match config.op {
        DispatchOp::DispatchGemm => {}
        DispatchOp::MoeLayer => layer::check(config, nodes, found),
        DispatchOp::GemmCombine => rows::check(config, world, nodes, found),
    }
    let types = config.types();
    let of_hidden_and_cols = match config.op.dispatches() {
        true => (types.tokens, types.c),
        false => (types.c, types.tokens),
    };
    check_dims(&config.dims(), of_hidden_and_cols, world, found);
    narrow::check(found, config.dtype, config.scales, config.b_layout);
    let sizes = Sizes {
        experts: config.experts,
        top_k: config.top_k,
        max_tokens: config.max_tokens,
        cols: [config.hidden, config.intermediate],
    };
    check_rows(sizes, config.max_rows, world, found);
    check_weights(config, found);
    config.check_limits(found);
    let sizes = [config.experts, config.top_k].map(Dim::fixed);
    config.router.check(sizes, config.dtype.of_results(), found);
    layer::check_results(config, found);
    found.require(
        !config.batch_invariant || config.split_k.is_none_or(|splits| splits == 1),
        Field::SPLIT_K,
        || "the number of slices of a tile depends on all tokens, and batch_invariant results do not".to_owned(),
        "remove it, or batch_invariant",
    );
    if let (Some(2..), Some(m), Some(n)) = (config.split_k, config.tile_m, config.tile_n) {
        found.require(
            config.divides(Tile { m, n }),
            Field::SPLIT_K,
            || {
                format!(
                    "a tile of {m}x{n} with scales of blocks leaves no registers for slices of K"
                )
            },
            "remove it, or use tile_n = 128",
        );
    }
    if let (true, Some(64), Some(128)) = (config.swiglu, config.tile_m, config.tile_n) {
        found.push(
            Field::TILE_N,
            "64 columns of a warpgroup are no sub-tile each of gate and up",
            "use tile_n = 256 with tile_m = 64",
        );
    }
}

/// Checks the number of elements of the weights of all experts.
fn check_weights(config: &DispatchConfig, found: &mut Diagnostics) {
    if let (Some(experts), Some(hidden), Some(cols)) = (
        config.experts.fixed(),
        config.hidden.fixed(),
        config.intermediate.fixed(),
    ) {
        let elems = experts.saturating_mul(hidden).saturating_mul(cols);
        found.require(
            elems <= MAX_ELEMS,
            Field::EXPERTS,
            || {
                format!(
                    "the weights of {experts} experts have {elems} elements, more than {MAX_ELEMS}"
                )
            },
            "spread the experts over more ranks",
        );
    }
}

/// Checks dimensions. Rows of `hidden` elements and rows of `intermediate` elements have elements of these types.
pub(crate) fn check_dims(
    dims: &[(Field, Dim)],
    (of_hidden, of_intermediate): (Dtype, Dtype),
    world: u32,
    found: &mut Diagnostics,
) {
    for &(field, dim) in dims {
        let Some(size) = dim.fixed() else { continue };
        let (most, why) = match field {
            Field::EXPERTS => (MAX_EXPERTS, "tables of experts are in shared memory"),
            Field::TOP_K => (MAX_TOP_K, "each choice is compared with the others"),
            _ => (MAX_DIM, "TMA coordinates are 32-bit"),
        };
        found.require(
            (1..=most).contains(&size),
            field,
            || format!("{size} is not in 1..={most} ({why})"),
            "use a size in that range",
        );
        match field {
            Field::EXPERTS => found.require(
                world == 0 || size.is_multiple_of(world.into()),
                field,
                || format!("{size} experts cannot be divided evenly among {world} ranks"),
                "use a multiple of the ranks",
            ),
            Field::HIDDEN | Field::INTERMEDIATE => {
                let dtype = if field == Field::HIDDEN {
                    of_hidden
                } else {
                    of_intermediate
                };
                let step = dtype.stride_step();
                found.require(
                    size.is_multiple_of(step),
                    field,
                    || format!("{size} is not a multiple of {step} (TMA row strides are multiples of 16 bytes)"),
                    "pad it",
                );
            }
            _ => {}
        }
    }
}

/// The dimensions that decide the number and the size of rows.
pub(crate) struct Sizes {
    pub experts: Dim,
    pub top_k: Dim,
    pub max_tokens: Dim,
    /// Columns of matrices of rows.
    pub cols: [Dim; 2],
}

pub(crate) fn check_rows(sizes: Sizes, max_rows: Option<u32>, world: u32, found: &mut Diagnostics) {
    found.require(
        max_rows != Some(0),
        Field::MAX_ROWS,
        || "no rows at all are not possible".to_owned(),
        "leave it out, or use a number of rows",
    );
    let (Some(experts), Some(top_k)) = (sizes.experts.fixed(), sizes.top_k.fixed()) else {
        return;
    };
    found.require(
        top_k <= experts,
        Field::TOP_K,
        || format!("a token cannot have {top_k} of {experts} experts"),
        "use at most the number of experts",
    );
    let Some(tokens) = sizes.max_tokens.fixed() else {
        return;
    };
    let choices = tokens.saturating_mul(top_k);
    found.require(
        choices <= u32::MAX.into(),
        Field::MAX_TOKENS,
        || format!("{tokens} tokens of {top_k} choices are {choices} choices, more than {} (choices are numbered in 32 bits)", u32::MAX),
        format!("use at most {} tokens, in several calls", u64::from(u32::MAX) / top_k.max(1)),
    );
    let most = all_rows(world.max(1), experts, top_k, tokens);
    let rows = max_rows.map_or(most, |rows| most.min(rows.into()));
    let limit = u64::from(i32::MAX as u32) / u64::from(world.max(1));
    found.require(
        rows <= limit,
        Field::MAX_TOKENS,
        || format!("{rows} rows on each of {world} ranks are more than {limit} (rows are numbered in 31 bits)"),
        "set max_rows to what a rank can have, or use fewer tokens",
    );
    let cols = sizes.cols.into_iter().filter_map(Dim::fixed).max();
    if let Some(cols) = cols {
        found.require(
            rows.saturating_mul(cols) <= MAX_ELEMS,
            Field::MAX_TOKENS,
            || format!("{rows} rows of {cols} columns are more than {MAX_ELEMS} elements"),
            "set max_rows to what a rank can have, or use fewer tokens",
        );
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{
        BLayout, CombineConfig, CombineOp, Dim, DispatchConfig, DispatchOp, DispatchShape, Dtype,
        KernelConfig, Problem, Scales,
    };
    use crate::device::Device;
    use crate::plan::{KernelPlan, OpPlan};
    use crate::spec::{KernelSpec, SizedSpec};

    fn mistakes(world: u32, problem: impl Into<Problem>) -> Vec<&'static str> {
        let found = KernelSpec::validate(KernelConfig::new(world, problem)).expect_err("mistakes");
        found.iter().map(|v| v.field.name()).collect()
    }

    #[test]
    fn every_mistake_is_said_at_once() {
        let config = DispatchConfig {
            experts: Dim::Static(100),
            top_k: Dim::Static(17),
            max_tokens: Dim::Static(0),
            hidden: Dim::Static(100),
            intermediate: Dim::Static(12),
            tile_m: Some(32),
            max_rows: Some(0),
            comm_ctas: Some(0),
            ..DispatchConfig::new(DispatchOp::DispatchGemm)
        };
        let fields = [
            "experts",
            "top_k",
            "max_tokens",
            "hidden",
            "intermediate",
            "max_rows",
            "tile_m",
            "comm_ctas",
        ];
        assert_eq!(mistakes(8, config), fields);
    }

    #[test]
    fn scales_need_elements_of_one_byte_whose_k_is_contiguous() {
        let config = |dtype, scales, b_layout| DispatchConfig {
            dtype,
            scales,
            b_layout,
            ..DispatchConfig::new(DispatchOp::DispatchGemm)
        };
        let wide = config(Dtype::Bf16, Scales::Row, BLayout::Kn);
        assert_eq!(mistakes(2, wide), ["scales"]);
        let narrow = config(Dtype::E4m3, Scales::Block, BLayout::Kn);
        assert_eq!(mistakes(2, narrow), ["b_layout"]);
        let mut right = config(Dtype::E4m3, Scales::Block, BLayout::Nk);
        right.intermediate = Dim::Static(8);
        assert!(KernelSpec::validate(KernelConfig::new(2, right)).is_ok());
        right.hidden = Dim::Static(8);
        assert_eq!(mistakes(2, right), ["hidden"]);
    }

    /// A tile of 128x256 with scales of blocks has no registers for slices. If only the slices are given, another tile is taken.
    #[test]
    fn some_tiles_of_e4m3_have_no_slices() {
        let mut config = DispatchConfig {
            dtype: Dtype::E4m3,
            scales: Scales::Block,
            b_layout: BLayout::Nk,
            tile_m: Some(128),
            tile_n: Some(256),
            split_k: Some(2),
            ..DispatchConfig::new(DispatchOp::DispatchGemm)
        };
        assert_eq!(mistakes(2, config), ["split_k"]);
        config.tile_n = None;
        let shape = DispatchShape {
            experts: 16,
            top_k: 2,
            max_tokens: 4096,
            hidden: 4096,
            intermediate: 2048,
        };
        let spec = SizedSpec::for_sizes(KernelConfig::new(2, config), shape).expect("possible");
        let plan = KernelPlan::new(&spec, &Device::h200()).expect("a plan");
        let OpPlan::Dispatch(plan) = &plan.body().op_plan else {
            panic!("a plan of dispatch_gemm");
        };
        assert_eq!((plan.tile.n, plan.most_splits), (128, 2));
    }

    #[test]
    fn layers_of_e4m3_need_scales_of_blocks_that_a_warp_has() {
        let mut config = DispatchConfig {
            dtype: Dtype::E4m3,
            scales: Scales::Row,
            b_layout: BLayout::Nk,
            swiglu: true,
            tile_m: Some(64),
            intermediate: Dim::Static(192),
            ..DispatchConfig::new(DispatchOp::MoeLayer)
        };
        let fields = ["scales", "tile_m", "intermediate"];
        assert_eq!(mistakes(2, config), fields);
        (config.scales, config.tile_m) = (Scales::Block, None);
        config.intermediate = Dim::Static(256);
        assert!(KernelSpec::validate(KernelConfig::new(2, config)).is_ok());
    }

    #[test]
    fn more_choices_than_numbers_are_refused_though_rows_are_bounded() {
        let with = |tokens| CombineConfig {
            experts: Dim::Static(64),
            top_k: Dim::Static(8),
            max_tokens: Dim::Static(tokens),
            hidden: Dim::Static(64),
            max_rows: Some(1000),
            ..CombineConfig::new(CombineOp::Combine)
        };
        assert_eq!(mistakes(8, with(1 << 29)), ["max_tokens"]);
        let largest = KernelConfig::new(8, with((1 << 29) - 1));
        assert!(KernelSpec::validate(largest).is_ok());
    }

    #[test]
    fn more_rows_than_numbers_are_refused_unless_bounded() {
        let mut config = CombineConfig {
            experts: Dim::Static(256),
            top_k: Dim::Static(8),
            max_tokens: Dim::Static(1 << 26),
            hidden: Dim::Static(64),
            ..CombineConfig::new(CombineOp::Combine)
        };
        assert_eq!(mistakes(8, config), ["max_tokens"]);
        config.max_rows = Some(1 << 20);
        assert!(KernelSpec::validate(KernelConfig::new(8, config)).is_ok());
        config.top_k = Dim::Static(8);
        config.experts = Dim::Static(4);
        assert_eq!(mistakes(4, config), ["top_k"]);
    }
}
