//! Kernels with a norm, of collectives and of products.

use crate::Kernel;
use mkernel::spec::{Protocol, Scales, Tuning};
use mkernel_testing::jobs::collective::norm::NormJob;
use mkernel_testing::jobs::gemm::norm::GemmNormJob;

pub const KERNELS: &[Kernel<NormJob>] = &[
    ("one_shot", one_shot),
    ("two_shots", two_shots),
    ("rows", rows),
    ("chunks", chunks),
    ("one_rank", one_rank),
    ("normalised_in_place", normalised_in_place),
    ("scaled_rows", scaled_rows),
];

fn packets(world: u32, shots: u32) -> NormJob {
    let job = NormJob::new(world, (7, 1032), 2).biased();
    job.with(|job| job.protocol(Protocol::Ll).shots(shots))
}

fn one_shot() -> NormJob {
    packets(2, 1)
}

fn two_shots() -> NormJob {
    packets(4, 2)
}

/// Calls with fewer rows after calls with more.
fn rows() -> NormJob {
    one_shot().with(|job| job.with_rows(&[7, 2, 7, 1, 7]))
}

fn chunks() -> NormJob {
    let job = NormJob::new(4, (30, 1032), 2).biased();
    job.with(|job| job.protocol(Protocol::Simple))
}

fn one_rank() -> NormJob {
    NormJob::new(1, (30, 1032), 2)
}

fn normalised_in_place() -> NormJob {
    let job = NormJob::new(2, (3, 1032), 2).in_place();
    job.with(|job| job.protocol(Protocol::Ll).shots(1))
}

/// Warps that share a row also exchange its greatest magnitude.
fn scaled_rows() -> NormJob {
    let job = NormJob::new(2, (7, 1040), 2).quantised(Scales::Row);
    job.with(|job| job.protocol(Protocol::Ll).shots(1))
}

pub const OF_PRODUCTS: &[Kernel<GemmNormJob>] = &[
    ("rows_of_products", rows_of_products),
    ("alone", alone),
    ("owners", owners),
    ("rows_of_owners", rows_of_owners),
    ("scattered", scattered),
    ("in_place", in_place),
    ("narrow_tiles", narrow_tiles),
    ("blocks_of_products", blocks_of_products),
    ("rows_of_e4m3_of_owners", rows_of_e4m3_of_owners),
];

fn rows_of_products() -> GemmNormJob {
    GemmNormJob::new(2, (12, 520, 64), 3)
}

/// One rank whose CTAs share tiles and compute several tiles.
fn alone() -> GemmNormJob {
    GemmNormJob::new(1, (12, 520, 64), 3)
}

/// Two shots, with rows of an owner in several groups.
fn owners() -> GemmNormJob {
    GemmNormJob::new(2, (140, 136, 64), 2).in_two_shots(1)
}

/// Two shots with rows at run time, fewer after more.
fn rows_of_owners() -> GemmNormJob {
    owners().with_rows(&[140, 3, 70, 140, 0, 140])
}

/// Rows that stay on their ranks.
fn scattered() -> GemmNormJob {
    owners().scattered()
}

/// Two shots, with the new residual in the place of the residual.
fn in_place() -> GemmNormJob {
    owners().in_place()
}

/// Tiles of one sub-tile in a row, so that a lane adds squares of tiles that other lanes have awaited.
fn narrow_tiles() -> GemmNormJob {
    let tuning = Tuning {
        tile_m: Some(128),
        tile_n: Some(64),
        ..owners().job.config.tuning
    };
    owners().tuned(tuning)
}

/// Blocks of e4m3 whose halves belong to two warpgroups.
fn blocks_of_products() -> GemmNormJob {
    GemmNormJob::new(2, (12, 528, 64), 3).quantised(Scales::Block)
}

/// Rows of e4m3 that a warp reads twice.
fn rows_of_e4m3_of_owners() -> GemmNormJob {
    GemmNormJob::new(2, (140, 144, 64), 2)
        .in_two_shots(1)
        .quantised(Scales::Row)
}
