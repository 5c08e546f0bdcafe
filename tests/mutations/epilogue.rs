//! Mistakes in what becomes of the sum.

use crate::simulated::Job;
use crate::{Kernel, Mutation, job, mutation};
use mkernel::{Activation, BLayout, Dtype, Epilogue, GemmOp, GemmShape, Tuning};

pub const KERNELS: &[Kernel] = &[
    ("finished_by_owners", finished_by_owners),
    ("fp32_to_all", fp32_to_all),
    ("fp32_alone", fp32_alone),
    ("shared_tiles", shared_tiles),
    ("words", words),
];

const ALL: Epilogue = Epilogue {
    bias: true,
    residual: true,
    activation: Activation::Relu,
    output: Dtype::Bf16,
};

fn tuning(tile_n: u32, shots: Option<u32>) -> Tuning {
    Tuning {
        tile_m: Some(64),
        tile_n: Some(tile_n),
        shots,
        round_tiles: shots.filter(|shots| *shots == 2).map(|_| 1),
        ..Tuning::default()
    }
}

/// Owners of 50 rows; the last columns of tiles are beyond C.
fn finished_by_owners() -> Job {
    let (m, n, k) = (100, 520, 128);
    let kernel = (GemmOp::GemmRs, ALL, tuning(256, Some(2)));
    job(kernel, 2, GemmShape { m, n, k }, BLayout::Nk, 6)
}

/// Results travel as fp32.
fn fp32_to_all() -> Job {
    let epilogue = Epilogue {
        residual: true,
        output: Dtype::Fp32,
        ..Epilogue::default()
    };
    let (m, n, k) = (128, 384, 128);
    let kernel = (GemmOp::GemmAr, epilogue, tuning(128, Some(2)));
    job(kernel, 2, GemmShape { m, n, k }, BLayout::Nk, 3)
}

/// One rank, fp32 out.
fn fp32_alone() -> Job {
    let epilogue = Epilogue {
        output: Dtype::Fp32,
        ..ALL
    };
    let (m, n, k) = (150, 264, 128);
    let kernel = (GemmOp::AgGemm, epilogue, tuning(256, None));
    job(kernel, 1, GemmShape { m, n, k }, BLayout::Nk, 2)
}

/// CTAs finish parts of the columns of a tile.
fn shared_tiles() -> Job {
    let (m, n, k) = (128, 256, 512);
    let kernel = (GemmOp::AgGemm, ALL, tuning(256, None));
    job(kernel, 2, GemmShape { m, n, k }, BLayout::Nk, 4)
}

/// In one shot, from registers.
fn words() -> Job {
    let (m, n, k) = (40, 264, 128);
    let kernel = (GemmOp::GemmRs, ALL, tuning(128, Some(1)));
    job(kernel, 2, GemmShape { m, n, k }, BLayout::Nk, 3)
}

const FINISH: &str = "      finish_sub_tile(args, unit, group, sub, sum + sub * 32);\n";
const ADD: &str = "    if (owned) add_partials(watch, smem, unit, group, ring, sum);\n";
const NOT_OWNED: &str = "      if (!owned) {\n        write_fragments(";
const PART: &str = "            d[0] += mk::low_bf16(part.x), d[1] += mk::high_bf16(part.x);\n";

#[rustfmt::skip]
pub const MUTATIONS: &[Mutation] = &[
    // Once, and of the whole sum.
    mutation("finished by every rank", finished_by_owners, &[(NOT_OWNED, "      if (!owned) {\n        finish_sub_tile(args, unit, group, sub, sum + sub * 32);\n        write_fragments(")]),
    mutation("finished before the peers' parts are added", finished_by_owners, &[(FINISH, ""), (ADD, "    for (u32 sub = 0; owned && sub < kSubTiles; ++sub) {\n      finish_sub_tile(args, unit, group, sub, sum + sub * 32);\n    }\n    if (owned) add_partials(watch, smem, unit, group, ring, sum);\n")]),
    mutation("not finished", finished_by_owners, &[(FINISH, "")]),
    mutation("finished twice", finished_by_owners, &[(FINISH, "      finish_sub_tile(args, unit, group, sub, sum + sub * 32);\n      finish_sub_tile(args, unit, group, sub, sum + sub * 32);\n")]),
    mutation("activation before the bias", finished_by_owners, &[("  x += mk::low_bf16(bias), y += mk::high_bf16(bias);\n  x = mk::relu(x), y = mk::relu(y);\n", "  x = mk::relu(x), y = mk::relu(y);\n  x += mk::low_bf16(bias), y += mk::high_bf16(bias);\n")]),
    mutation("activation behind the residual", finished_by_owners, &[("  x = mk::relu(x), y = mk::relu(y);\n  x += mk::low_bf16(residual), y += mk::high_bf16(residual);\n", "  x += mk::low_bf16(residual), y += mk::high_bf16(residual);\n  x = mk::relu(x), y = mk::relu(y);\n")]),
    // The right elements of the addends.
    mutation("bias of the next columns", finished_by_owners, &[("bias_at(args, col + j * 8)", "bias_at(args, col + (j ^ 1) * 8)")]),
    mutation("addends of the first sub-tile", finished_by_owners, &[("first_col(unit, group) + sub * 64 + lane", "first_col(unit, group) + lane")]),
    mutation("columns of the other warpgroup", finished_by_owners, &[("unit.tile.col * cfg::kTileN + group * cfg::kGroupN", "unit.tile.col * cfg::kTileN + (1 - group) * cfg::kGroupN")]),
    mutation("neighbours swapped", finished_by_owners, &[("  x += mk::low_bf16(residual), y += mk::high_bf16(residual);\n", "  x += mk::high_bf16(residual), y += mk::low_bf16(residual);\n")]),
    mutation("residual of the row above", finished_by_owners, &[("residual[1][j]);", "residual[0][j]);")]),
    mutation("residual at the row of A", finished_by_owners, &[("  return row_in_c(unit.tile);\n}\n\n// A thread of", "  return row_in_a(unit.tile);\n}\n\n// A thread of")]),
    mutation("residual read beyond its rows", finished_by_owners, &[("!inside ? 0 : ", "")]),
    mutation("addends read beyond their columns", finished_by_owners, &[("  if (col >= cfg::kN) return 0;\n", "")]),
    mutation("finished before the other parts of K are added", shared_tiles, &[(FINISH, ""), ("    if (unit.part != kWhole) share_sum", "    for (u32 sub = 0; sub < kSubTiles; ++sub) {\n      finish_sub_tile(args, unit, group, sub, sum + sub * 32);\n    }\n    if (unit.part != kWhole) share_sum")]),
    // Words.
    mutation("bias added with every part", words, &[(PART, "            d[0] += mk::low_bf16(part.x) + mk::low_bf16(bias[v][0]), d[1] += mk::high_bf16(part.x);\n")]),
    mutation("residual of another rank's rows", words, &[("const u32 row_here = row + half * 8 - watch.rank * cfg::kShardRows;", "const u32 row_here = row + half * 8;")]),
    mutation("residual of the first vector", words, &[("residual[v][1]", "residual[0][1]")]),
    // fp32.
    mutation("no wait for the second output buffer", fp32_alone, &[("        if (half == 1) {\n", "        if (false) {\n")]),
    mutation("fp32 not swizzled", fp32_alone, &[("((lane % 4 / 2 + 2 * j) ^ (row % 8)) * 16", "(lane % 4 / 2 + 2 * j) * 16")]),
    mutation("no proxy fence before fp32 is stored", fp32_alone, &[("        mk::fence_proxy_async_shared();\n", "")]),
    mutation("warp not together before fp32 is stored", fp32_alone, &[("        mk::fence_proxy_async_shared();\n        __syncwarp();\n", "        mk::fence_proxy_async_shared();\n")]),
    mutation("second halves stored over the first", fp32_alone, &[("col + piece * 32, row", "col + piece / 2 * 64, row")]),
    mutation("one buffer of two stored", fp32_alone, &[("constexpr u32 per_sub = 2;", "constexpr u32 per_sub = 1;")]),
    mutation("fp32 results overlap", fp32_to_all, &[("* cfg::kResultBytes;", "* cfg::kResultBytes / 2;")]),
    mutation("pieces of results overlap", fp32_to_all, &[("result_at(watch.epoch, tile) + (group * kPieces + piece) * cfg::kOutBytes;\n  for", "result_at(watch.epoch, tile) + (group * kPieces + piece / 2) * cfg::kOutBytes;\n  for")]),
    mutation("fp32 results not taken out of the swizzle", fp32_to_all, &[("(first % 8 ^ line % 8) * 4", "first % 8 * 4")]),
];
