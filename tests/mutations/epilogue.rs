//! Mutations of epilogues.

use crate::{Kernel, job};
use mkernel::spec::{Activation, BLayout, Dtype, Epilogue, Eps, GemmOp, GemmShape, Norm, Tuning};
use mkernel_testing::jobs::GemmJob;
use mkernel_testing::jobs::Mutation;

pub const KERNELS: &[Kernel] = &[
    ("finished_by_owners", finished_by_owners),
    ("fp32_to_all", fp32_to_all),
    ("fp32_alone", fp32_alone),
    ("shared_tiles", shared_tiles),
    ("packets", packets),
];

const ALL: Epilogue = Epilogue {
    bias: true,
    residual: true,
    activation: Activation::Relu,
    swiglu: false,
    output: None,
    norm: Norm::None,
    eps: Eps::new(1e-6),
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

/// Each rank owns 50 rows. The last columns of tiles are beyond C.
fn finished_by_owners() -> GemmJob {
    let (m, n, k) = (100, 520, 128);
    let kernel = (GemmOp::GemmRs, ALL, tuning(256, Some(2)));
    job(kernel, 2, GemmShape { m, n, k }, BLayout::Nk, 6)
}

/// Owners send their results to all ranks as fp32.
fn fp32_to_all() -> GemmJob {
    let epilogue = Epilogue {
        residual: true,
        output: Some(Dtype::Fp32),
        ..Epilogue::default()
    };
    let (m, n, k) = (128, 384, 128);
    let kernel = (GemmOp::GemmAr, epilogue, tuning(128, Some(2)));
    job(kernel, 2, GemmShape { m, n, k }, BLayout::Nk, 3)
}

/// One rank writes C as fp32.
fn fp32_alone() -> GemmJob {
    let epilogue = Epilogue {
        output: Some(Dtype::Fp32),
        ..ALL
    };
    let (m, n, k) = (150, 264, 128);
    let kernel = (GemmOp::AgGemm, epilogue, tuning(256, None));
    job(kernel, 1, GemmShape { m, n, k }, BLayout::Nk, 2)
}

/// Several CTAs share a tile, and each applies the epilogue to a part of its columns.
fn shared_tiles() -> GemmJob {
    let (m, n, k) = (128, 256, 512);
    let kernel = (GemmOp::AgGemm, ALL, tuning(256, None));
    job(kernel, 2, GemmShape { m, n, k }, BLayout::Nk, 4)
}

/// Ranks exchange partial sums as Lamport packets.
fn packets() -> GemmJob {
    let (m, n, k) = (40, 264, 128);
    let kernel = (GemmOp::GemmRs, ALL, tuning(128, Some(1)));
    job(kernel, 2, GemmShape { m, n, k }, BLayout::Nk, 3)
}

/// The epilogue is applied before the CTAs of a tile exchange their sums.
const FINISHED_EARLY: &[(&str, &str)] = &[
    ("@gemm.epilogue", ""),
    ("@gemm.split-k", ""),
    (
        "@gemm.finish",
        "          [&](const WorkTile& work, typename Shape::Accumulator& sum) {
            for (u32 sub = 0; sub < Shape::kSubTiles; ++sub) {
              epilogue.apply_to_sub_tile(work, group, sub, sum);
            }
            SplitK<Config, Order, Workspace>::reduce(ctx, work, group, sum);",
    ),
];

#[rustfmt::skip]
pub const MUTATIONS: &[Mutation] = &[
    // The epilogue is applied once, to the whole sum.
    ("epilogue applied by every rank", finished_by_owners, &[("@reduce-scatter.write", "Partials::write( => epilogue.apply_to_sub_tile(work, group, sub, sum), Partials::write(")]),
    ("epilogue applied before the peers' parts are added", finished_by_owners, &[("@reduce-scatter.epilogue", ""), ("@reduce-scatter.add", "if (Partials::is_reducer( => for (u32 sub = 0; is_owner && sub < Shape::kSubTiles; ++sub) epilogue.apply_to_sub_tile(work, group, sub, sum); if (Partials::is_reducer(")]),
    ("epilogue not applied", finished_by_owners, &[("@reduce-scatter.epilogue", "")]),
    ("epilogue applied twice", finished_by_owners, &[("@reduce-scatter.epilogue", "epilogue. => epilogue.apply_to_sub_tile(work, group, sub, sum), epilogue.")]),
    ("activation before the bias", finished_by_owners, &[("@epilogue.bias", ""), ("@epilogue.activation", "y = kActivation(y); => y = kActivation(y), add(x, y, bias);")]),
    ("activation after the residual", finished_by_owners, &[("@epilogue.activation", ""), ("@epilogue.residual", "residual); => residual), x = kActivation(x), y = kActivation(y);")]),
    // The elements of the addends.
    ("bias of the next columns", finished_by_owners, &[("@epilogue.bias-columns", "col + j => col + (j ^ 1)")]),
    ("addends of the first sub-tile", finished_by_owners, &[("@epilogue.col", "sub * kSubTile + => ")]),
    ("columns of the other warpgroup", finished_by_owners, &[("@epilogue.group-col", "(group) => (1 - group)")]),
    ("neighbouring elements swapped", finished_by_owners, &[("@epilogue.residual", "add(x, y => add(y, x")]),
    ("residual of the row above", finished_by_owners, &[("@epilogue.addends", "residual[half] => residual[0]")]),
    ("residual at the row of A", finished_by_owners, &[("@epilogue.row", "row_in_c(tile) => row_in_a(tile, ctx)")]),
    ("residual read beyond its rows", finished_by_owners, &[("@epilogue.is-inside", "has_row(tile, half_row) => true")]),
    ("addends read beyond their columns", finished_by_owners, &[("@epilogue.is-beyond", "col >= Config::kN => false")]),
    ("epilogue applied before the other parts of K are added", shared_tiles, FINISHED_EARLY),
    // LL packets.
    ("bias added with every part", packets, &[("@one-shot.add", "Partial::low(packet.first()), d[1] => Partial::low(packet.first()) + Config::ElementAddend::low(addends.bias[p][0]), d[1]")]),
    ("residual of another rank's rows", packets, &[("@one-shot.row-in-c", "row - ctx.rank * Rows::of_shard(ctx) => row")]),
    ("residual of the first vector", packets, &[("@lane-elements.epilogue", "residual[q][1] => residual[0][1]")]),
    // fp32.
    ("no wait for the second output buffer", fp32_alone, &[("@store.second-acquire", "")]),
    ("fp32 not swizzled", fp32_alone, &[("@store.fp32-swizzle", "^ (row % 8)) => )")]),
    ("no proxy fence before fp32 is stored", fp32_alone, &[("@store.proxy-fence", "")]),
    ("warp not synchronised before fp32 is stored", fp32_alone, &[("@pipeline.warp-commit", "")]),
    ("second halves stored over the first", fp32_alone, &[("@store.col", "piece * kPieceCols => piece / 2 * kSubTile")]),
    ("only one of two buffers stored", fp32_alone, &[("@scheduler.pieces", "kSubTiles * pieces_per_sub_tile => kSubTiles")]),
    ("fp32 results overlap", fp32_to_all, &[("@results.slot", "number(tile, ctx) => number(tile, ctx) / 2")]),
    ("pieces of results overlap", fp32_to_all, &[("@results.sent-slot", "group, piece => group, piece / 2")]),
    ("swizzle of fp32 results not undone", fp32_to_all, &[("@results.swizzle", "(first % 8 ^ line % 8) => first % 8")]),
];
