//! Mutations of the main loop of e4m3 and of scales.

use crate::{Kernel, job};
use mkernel::spec::{BLayout, Epilogue, GemmOp, GemmShape, Scales, Tuning};
use mkernel_testing::jobs::{GemmJob, Mutation};

pub const KERNELS: &[Kernel] = &[
    ("blocks", blocks),
    ("rows", rows),
    ("tensors", tensors),
    ("sent by all", sent_by_all),
    ("sent by a CTA", sent_by_a_cta),
];

fn scaled(
    scales: Scales,
    (op, world): (GemmOp, u32),
    shape: GemmShape,
    tile: (u32, u32),
) -> GemmJob {
    let tuning = Tuning {
        tile_m: Some(tile.0),
        tile_n: Some(tile.1),
        split_k: Some(1),
        ..Tuning::default()
    };
    let kernel = (op, Epilogue::default(), tuning);
    job(kernel, world, shape, BLayout::Nk, 4).scaled(scales)
}

/// More stages than a window of scales has, two parts of columns, and rows and columns that end inside a tile.
fn blocks() -> GemmJob {
    let (m, n, k) = (72, 264, 1296);
    scaled(
        Scales::Block,
        (GemmOp::Gemm, 1),
        GemmShape { m, n, k },
        (128, 256),
    )
}

/// Two ranks add up sums that have different scales.
fn rows() -> GemmJob {
    let (m, n, k) = (72, 136, 272);
    scaled(
        Scales::Row,
        (GemmOp::GemmRs, 2),
        GemmShape { m, n, k },
        (64, 128),
    )
}

fn tensors() -> GemmJob {
    let (m, n, k) = (64, 128, 400);
    scaled(
        Scales::Tensor,
        (GemmOp::Gemm, 1),
        GemmShape { m, n, k },
        (64, 128),
    )
}

/// Every CTA sends rows with scales of blocks, in two slices of K. Two CTAs share each tile, and the second one multiplies only
/// elements of the second slice.
fn sent_by_all() -> GemmJob {
    let (m, n, k) = (128, 128, 1024);
    let mut job = scaled(
        Scales::Block,
        (GemmOp::AgGemm, 2),
        GemmShape { m, n, k },
        (64, 128),
    );
    let tuning = &mut job.config.tuning;
    (tuning.comm_ctas, tuning.k_slices, tuning.split_k) = (Some(0), Some(2), Some(2));
    job
}

/// A CTA that only communicates sends rows with a scale each.
fn sent_by_a_cta() -> GemmJob {
    let (m, n, k) = (256, 128, 256);
    let mut job = scaled(
        Scales::Row,
        (GemmOp::AgGemm, 2),
        GemmShape { m, n, k },
        (64, 128),
    );
    let tuning = &mut job.config.tuning;
    (tuning.comm_ctas, tuning.k_slices) = (Some(1), Some(1));
    job
}

pub const MUTATIONS: &[Mutation<GemmJob>] = &[
    (
        "a stage that may not be full",
        blocks,
        &[(
            "@mainloop.promoted-wait",
            "if (!is_full) stages.consumer_wait(); => ",
        )],
    ),
    (
        "no fence before a part",
        blocks,
        &[("@mainloop.promoted-fence", "mma_fence(); => ")],
    ),
    (
        "products added to those of the part before",
        blocks,
        &[("@mainloop.part", "i != 0 => true")],
    ),
    (
        "the columns of the first part for all parts",
        blocks,
        &[("@mainloop.part", "(part * kPartBytes >> 4) => 0")],
    ),
    (
        "the scale of the upper row for both rows",
        blocks,
        &[(
            "@mainloop.scale",
            "scales.of(1, part) => scales.of(0, part)",
        )],
    ),
    (
        "the scales of the first stage for all stages",
        blocks,
        &[("@mainloop.next-scales", "scales.advance(step); => ")],
    ),
    (
        "B of the first stage for all stages",
        blocks,
        &[("@mainloop.next-stage", ", b.advance(wraps) => ")],
    ),
    (
        "products that may not be done",
        blocks,
        &[("@mainloop.promoted-product", "mma_wait<0> => mma_wait<1>")],
    ),
    (
        "a stage that is never released",
        blocks,
        &[(
            "@mainloop.promoted-release",
            "stages.consumer_release_warp() => stages.advance()",
        )],
    ),
    (
        "sums without scales",
        blocks,
        &[("@mainloop.promoted", "scale[half] => 1")],
    ),
    (
        "the scales of rows beyond A",
        blocks,
        &[(
            "@scales.last-row",
            "min(row, CallRows<Config>::all(ctx) - 1) => row",
        )],
    ),
    (
        "the scales of columns beyond B",
        blocks,
        &[(
            "@scales.last-block",
            "min(block + lane_index() / kWindow % 2, kColBlocks - 1) => block + lane_index() / kWindow % 2",
        )],
    ),
    (
        "the scales of the next stage",
        blocks,
        &[("@scales.window", "(step - first) => (step - first + 1)")],
    ),
    (
        "the scale of another stage's holder",
        blocks,
        &[("@scales.holder", "holder) => 0)")],
    ),
    (
        "the scale of the first part for all parts",
        blocks,
        &[("@scales.part", "part * kWindow + at => at")],
    ),
    (
        "a window that begins a stage late",
        blocks,
        &[("@scales.next-window", "load(step + 1) => load(step + 2)")],
    ),
    (
        "the scale of the upper row for the lower row",
        rows,
        &[("@scales.row", "a[half] => a[0]")],
    ),
    (
        "the scales of columns beyond B in a row",
        rows,
        &[("@scales.last-col", "kRaggedCols && => false &&")],
    ),
    (
        "no scale of tensors",
        tensors,
        &[("@scales.tensor", "*= scale => *= 1")],
    ),
    (
        "scales that are not sent",
        sent_by_all,
        &[("@push.scales-of-piece", "")],
    ),
    (
        "scales that a CTA does not send",
        sent_by_a_cta,
        &[("@push.scales", "")],
    ),
    (
        "rows counted before other lanes have stored their scales",
        sent_by_a_cta,
        &[("@push.scales-warp", "")],
    ),
    (
        "the scales of the first row for all rows of a piece",
        sent_by_a_cta,
        &[("@shards.scale", "row_at(i / kScales) => row_at(0)")],
    ),
    (
        "scales stored over those of the first row",
        sent_by_a_cta,
        &[("@shards.scale-slot", "i / kScales * kRowBytes => 0u")],
    ),
    (
        "scales of the other buffer",
        sent_by_all,
        &[("@gathered.scales", "ctx.parity() => (ctx.parity() ^ 1u)")],
    ),
    (
        "the scale of a tile's first own row for all its rows",
        sent_by_a_cta,
        &[("@gathered.own-scales", "+ in_tile => ")],
    ),
    (
        "scales of the first slice not awaited",
        sent_by_all,
        &[("@gathered.wait-scales", "")],
    ),
    (
        "rows and scales of the first stages not awaited",
        sent_by_all,
        &[("@mainloop.first-scales", "")],
    ),
    (
        "scales loaded before the first stage is full",
        sent_by_all,
        &[
            ("@mainloop.scales-arrived", "stages.consumer_wait(); => "),
            ("@mainloop.promoted-wait", "if (!is_full) => "),
        ],
    ),
    (
        "scales brought to L1 before they arrive",
        sent_by_a_cta,
        &[("@scales.prefetch", "!Places::kArrive => true")],
    ),
];
