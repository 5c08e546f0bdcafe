//! [`KernelSpec`]: a configuration that was checked. Its only door is [`KernelSpec::validate`].

use crate::config::{BLayout, Dim, Epilogue, KernelConfig, Op, Tuning};
use crate::violation::{Field, Violations};
use serde::Serialize;

/// Rank counts of one node that kernels support.
pub const WORLDS: [u32; 4] = [1, 2, 4, 8];

/// The largest M, N or K: tensor maps take 32-bit coordinates.
pub const MAX_DIM: u64 = i32::MAX as u64;

/// The most elements of one matrix: half a TiB of bf16, more than a GPU has.
pub const MAX_ELEMS: u64 = 1 << 38;

/// N and K are multiples of this: TMA wants row strides of 16 bytes, that is 8 bf16.
pub const DIM_STEP: u64 = 8;

/// Sizes of the dimensions of a GEMM operator, all known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Shape {
    /// Rows of C, over all ranks.
    pub m: u64,
    /// Columns of this rank's B and C.
    pub n: u64,
    /// The contracted dimension.
    pub k: u64,
}

/// What is computed, checked. Dimensions may still be dynamic.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct KernelSpec {
    config: KernelConfig,
}

impl KernelSpec {
    /// Checks a configuration.
    ///
    /// # Errors
    /// Every mistake in it, at once.
    pub fn validate(config: KernelConfig) -> Result<Self, Violations> {
        let mut found = Violations::default();
        if let Some(name) = &config.name {
            found.require(
                is_identifier(name),
                Field::Name,
                || format!("\"{name}\" is not an identifier of at most 64 characters"),
                "use letters, digits and '_', not a digit first",
            );
        }
        found.require(
            WORLDS.contains(&config.world),
            Field::World,
            || format!("{} ranks per node is not supported", config.world),
            "use 1, 2, 4 or 8",
        );
        for (field, dim, step) in [
            (Field::M, config.m, 1),
            (Field::N, config.n, DIM_STEP),
            (Field::K, config.k, DIM_STEP),
        ] {
            if let Some(size) = dim.fixed() {
                check_size(&mut found, field, size, step);
            }
        }
        check_areas(&mut found, &config);
        check_tuning(&mut found, &config);
        found.into_result(Self { config })
    }

    /// The configuration it was made from.
    #[must_use]
    pub const fn config(&self) -> &KernelConfig {
        &self.config
    }

    /// The operator.
    #[must_use]
    pub const fn op(&self) -> Op {
        self.config.op
    }

    /// Ranks per node.
    #[must_use]
    pub const fn world(&self) -> u32 {
        self.config.world
    }

    /// How B lies in memory.
    #[must_use]
    pub const fn b_layout(&self) -> BLayout {
        self.config.b_layout
    }

    /// What becomes of the sum before it is C.
    #[must_use]
    pub const fn epilogue(&self) -> Epilogue {
        self.config.epilogue
    }

    /// What a person fixed of the plan.
    #[must_use]
    pub const fn tuning(&self) -> &Tuning {
        &self.config.tuning
    }

    /// The shape, if no dimension is dynamic.
    #[must_use]
    pub fn shape(&self) -> Option<Shape> {
        Some(Shape {
            m: self.config.m.fixed()?,
            n: self.config.n.fixed()?,
            k: self.config.k.fixed()?,
        })
    }

    /// The same kernel with every dimension known.
    ///
    /// # Errors
    /// A size that the spec fixes otherwise, or that no kernel takes.
    pub fn specialise(&self, shape: Shape) -> Result<Self, Violations> {
        let mut found = Violations::default();
        for (field, dim, size) in [
            (Field::M, self.config.m, shape.m),
            (Field::N, self.config.n, shape.n),
            (Field::K, self.config.k, shape.k),
        ] {
            if let Some(fixed) = dim.fixed() {
                found.require(
                    fixed == size,
                    field,
                    || format!("{size} was given, but the kernel is declared for {fixed}"),
                    "pass operands of the declared size, or declare the dimension \"dynamic\"",
                );
            }
        }
        found.into_result(())?;
        let mut config = self.config.clone();
        (config.m, config.n, config.k) = (
            Dim::Static(shape.m),
            Dim::Static(shape.n),
            Dim::Static(shape.k),
        );
        Self::validate(config)
    }

    /// Rows of A that every rank but perhaps the last ones hold: ⌈M/W⌉.
    #[must_use]
    pub fn shard_rows(&self, shape: Shape) -> u64 {
        shape.m.div_ceil(u64::from(self.world()))
    }
}

fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
        && name.len() <= 64
}

fn check_size(found: &mut Violations, field: Field, size: u64, step: u64) {
    found.require(
        (1..=MAX_DIM).contains(&size),
        field,
        || format!("{size} is not in 1..={MAX_DIM} (TMA coordinates are 32-bit)"),
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

/// Sizes that are each possible may together be no matrix.
fn check_areas(found: &mut Violations, config: &KernelConfig) {
    let pairs = [
        (Field::M, config.m, Field::K, config.k),
        (Field::K, config.k, Field::N, config.n),
        (Field::M, config.m, Field::N, config.n),
    ];
    for (row_field, rows, col_field, cols) in pairs {
        if let (Some(rows), Some(cols)) = (rows.fixed(), cols.fixed()) {
            found.require(
                rows.saturating_mul(cols) <= MAX_ELEMS,
                row_field,
                || format!("a matrix of {row_field} x {col_field} = {rows} x {cols} has more than {MAX_ELEMS} elements"),
                "split the problem",
            );
        }
    }
}

fn check_tuning(found: &mut Violations, config: &KernelConfig) {
    let tuning = &config.tuning;
    let mut one_of = |field, value: Option<u32>, allowed: &[u32], source: &str| {
        if let Some(value) = value {
            found.require(
                allowed.contains(&value),
                field,
                || format!("{value} is not possible ({source})"),
                format!("use one of {allowed:?}, or leave it to the planner"),
            );
        }
    };
    one_of(
        Field::TileM,
        tuning.tile_m,
        &[64, 128],
        "wgmma works on 64 rows, a CTA has two math warpgroups",
    );
    one_of(
        Field::TileN,
        tuning.tile_n,
        &[64, 128, 256],
        "a wgmma is at most 256 columns wide",
    );
    one_of(
        Field::KSlices,
        tuning.k_slices,
        &[1, 2, 4, 8],
        "slices of K are equal and few",
    );
    one_of(
        Field::Shots,
        tuning.shots,
        &[1, 2],
        "partial sums go to every rank, or to owners and from there to every rank",
    );
    if let (Some(64), Some(64)) = (tuning.tile_m, tuning.tile_n) {
        found.push(
            Field::TileN,
            "64 columns with tile_m = 64 leave half a 128-byte swizzle row to each warpgroup",
            "use tile_n = 128 or 256 with tile_m = 64",
        );
    }
    for (field, value, low, high) in [
        (Field::Stages, tuning.stages, 2, 8),
        (Field::CommCtas, tuning.comm_ctas, 0, 128),
        (Field::GroupM, tuning.group_m, 1, 64),
        (Field::RoundTiles, tuning.round_tiles, 1, 1 << 20),
    ] {
        if let Some(value) = value {
            found.require(
                (low..=high).contains(&value),
                field,
                || format!("{value} is not in {low}..={high}"),
                "use a value in that range, or leave it to the planner",
            );
        }
    }
    if let Some(rows) = tuning.chunk_rows {
        found.require(
            rows > 0 && rows.is_multiple_of(128),
            Field::ChunkRows,
            || format!("{rows} is not a positive multiple of 128, the rows of the largest tile"),
            "use 128, 256, 384, …",
        );
    }
    check_applies(found, config);
    if tuning.transfer == Some(crate::Transfer::CopyEngine) {
        for (field, given) in [
            (Field::CommCtas, tuning.comm_ctas.is_some()),
            (Field::KSlices, tuning.k_slices.is_some()),
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

/// What concerns the way between ranks: some choices are of some operators, none of a world of 1.
fn check_applies(found: &mut Violations, config: &KernelConfig) {
    let (op, tuning) = (config.op, &config.tuning);
    let gathers = op == Op::AgGemm;
    for (field, given, applies) in [
        (Field::Transfer, tuning.transfer.is_some(), gathers),
        (Field::CommCtas, tuning.comm_ctas.is_some(), gathers),
        (Field::KSlices, tuning.k_slices.is_some(), gathers),
        (Field::ChunkRows, tuning.chunk_rows.is_some(), gathers),
        (
            Field::RoundTiles,
            tuning.round_tiles.is_some(),
            op.reduces() && tuning.shots != Some(1),
        ),
        (Field::Shots, tuning.shots.is_some(), op.reduces()),
    ] {
        if !given {
            continue;
        }
        found.require(
            config.world != 1,
            field,
            || "a world of 1 rank transfers nothing".to_owned(),
            "remove it, or use world = 2, 4 or 8",
        );
        found.require(
            config.world == 1 || applies,
            field,
            || match (field, tuning.shots) {
                (Field::RoundTiles, Some(1)) => "one shot has no rounds".to_owned(),
                _ => format!("{op} has no such choice"),
            },
            "remove it",
        );
    }
}
