//! Tests of `gemm_ar` and `gemm_rs` with a norm on simulated GPUs.

use mkernel::spec::Tuning;
use mkernel_testing::jobs::gemm::norm::{GemmNormJob, normalised, normalised_by_owners};
use mkernel_testing::jobs::{
    Mutation, all_are_right, all_are_right_now_or_after_many_calls, all_mutations_are_found,
};

/// The number of seeds with which a mutation must be found.
const MUTATION_SEEDS: u64 = 40;

#[test]
fn norms_of_products_are_right() {
    let worlds = [1, 2, 4].into_iter();
    all_are_right_now_or_after_many_calls(&worlds.flat_map(normalised).collect::<Vec<_>>());
}

#[test]
fn norms_of_relayed_sums_are_right() {
    let relayed = relayed();
    let rows = relayed.clone().with_rows(&[64, 3, 0, 17]);
    let jobs = [
        ("relayed in place", relayed.in_place().activated()),
        ("relayed rows at run time", rows),
    ];
    all_are_right(&jobs, 1);
}

#[test]
fn norms_behind_two_shots_are_right() {
    let worlds = [1, 2, 4].into_iter();
    let jobs: Vec<_> = worlds.flat_map(normalised_by_owners).collect();
    all_are_right_now_or_after_many_calls(&jobs);
}

fn rows() -> GemmNormJob {
    GemmNormJob::new(2, (12, 520, 64), 3)
}

/// One rank, whose CTAs share tiles and have several.
fn alone() -> GemmNormJob {
    GemmNormJob::new(1, (12, 520, 64), 3)
}

/// Ranks add up rows of their own and relay the sums.
fn relayed() -> GemmNormJob {
    GemmNormJob::new(8, (64, 1536, 64), 4)
}

/// Owners of tiles, whose rows are in several groups.
fn owners() -> GemmNormJob {
    GemmNormJob::new(2, (140, 136, 64), 2).in_two_shots(1)
}

/// The same with rows at run time, fewer after more.
fn rows_of_owners() -> GemmNormJob {
    owners().with_rows(&[140, 3, 70, 140, 0, 140])
}

/// Rows that stay on their ranks.
fn scattered() -> GemmNormJob {
    owners().scattered()
}

/// The same rows of owners, whose new residual takes the place of the residual.
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

#[rustfmt::skip]
const MUTATIONS: &[Mutation<GemmNormJob>] = &[
    ("the total of an earlier call", rows, &[("@row-norm.total", "mark == ctx.mark() => mark != 0")]),
    ("a total that is not sent", rows, &[("@row-norm.send-total", "")]),
    ("squares of the call before the previous one", rows, &[("@row-norm.arrived", "packet.words.y == mark => packet.words.y != 0")]),
    ("squares of one lane of a row", rows, &[("@fragment.quad-sum", "+ exchange(value, 2) => ")]),
    ("squares of a warp that are not sent", rows, &[("@row-norm.send", "")]),
    ("no squares of relayed sums", relayed, &[("@one-shot.relayed-squares", "")]),
    ("no squares", rows, &[("@one-shot.squares", "")]),
    ("no squares on one rank", alone, &[("@gemm-norm.squares", "")]),
    ("rows that C does not have on one rank", alone, &[("@gemm-norm.rows", "row < Elements::Rows::all(own.ctx) => true")]),
    ("the epilogue of half of the columns on one rank", alone, &[("@lane-elements.epilogue", "")]),
    ("rows of owners not awaited", owners, &[("@norm-results.wait", "wait_flag( => if (false) wait_flag(")]),
    ("rows of owners not awaited, in place", in_place, &[("@norm-results.wait", "wait_flag( => if (false) wait_flag(")]),
    ("own rows not awaited", scattered, &[("@norm-results.wait", "wait_flag( => if (false) wait_flag(")]),
    ("a warp not synchronised after the flags of a row", narrow_tiles, &[("@norm-results.warp", "")]),
    ("squares of owners that are not sent", owners, &[("@norm-results.squares", "")]),
    ("squares of the other half of the rows", owners, &[("@norm-results.squares", "half == 0 ? => half != 0 ?")]),
    ("squares of own rows that are not sent", scattered, &[("@norm-results.squares", "")]),
    ("slots of the call before", owners, &[("@norm-results.sent-slot", "ctx.parity() => ctx.parity() ^ 1")]),
    ("rows of slots in TMA's swizzle", owners, &[("@norm-results.swizzle", " ^ in_piece % kLineVecs => ")]),
    ("unused rows of owners not counted", rows_of_owners, &[("@norm-results.unused", "")]),
    ("rows taken in the call before the last one", owners, &[("@norm-results.reset", "")]),
    ("the total of an earlier call on one rank", alone, &[("@row-norm.total", "mark == ctx.mark() => mark != 0")]),
];

#[test]
fn every_mutation_of_norms_of_products_is_found() {
    all_mutations_are_found(MUTATIONS, MUTATION_SEEDS);
}
