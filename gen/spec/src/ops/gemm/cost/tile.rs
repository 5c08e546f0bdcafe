//! The expected time of one tile.

use super::{GemmShape, GemmSpec};
use crate::arch::Tile;
use crate::config::{Dtype, LINE_BYTES};
use crate::device::Device;
use crate::ops::gemm::maps::load_rows_a;

const SQUARE: Tile = Tile { m: 128, n: 128 };
/// The fewest rows for which the rate of square tiles was measured.
const MIN_ROWS: u64 = 256;

/// The time of one tile's main loop and epilogue, µs, with `active` CTAs at work: tensor cores or L2, whichever is slower. At most
/// `rows` rows of A, whose elements are `a`, are loaded.
pub(crate) fn tile_us(
    tile: Tile,
    a: Dtype,
    rows: u64,
    k: u64,
    active: u32,
    device: &Device,
) -> f64 {
    tile_us_at(device.l2_gb_s, tile, (a, rows, k), active, device)
}

/// As [`tile_us`], with this rate of L2, GB/s.
fn tile_us_at(
    l2_gb_s: f64,
    tile: Tile,
    (a, rows, k): (Dtype, u64, u64),
    active: u32,
    device: &Device,
) -> f64 {
    let costs = device.costs();
    let steps = k.div_ceil(a.per_line().into()) as f64;
    let flops = 2.0 * f64::from(tile.m * tile.n * a.per_line());
    let bytes = f64::from((load_rows_a(tile, rows) + tile.n) * LINE_BYTES);
    let sms = f64::from(device.sm_count);
    let math = flops / (device.tflops(a) * 1e6 / sms);
    // A lone CTA cannot draw much more than its fair share of L2.
    let share = (sms / f64::from(active.max(1))).min(costs.gemm.max_l2_share);
    let load = bytes / (l2_gb_s * 1e3 / sms * share);
    let epilogue = costs.gemm.epilogue_us * f64::from(tile.m * tile.n) / 32768.0;
    steps * math.max(load) + epilogue
}

/// How the CTAs of a product share L2.
#[derive(Clone, Copy)]
pub(super) struct Sharing {
    /// CTAs at work.
    pub active: u32,
    pub has_clusters: bool,
    /// Whether stores to other ranks crowd out loads.
    pub is_link_bound: bool,
}

/// The time of one tile, µs. Tiles of 128×128 of bf16 and fp16 load faster than other tiles, and multiply a little slower than tiles
/// of 128×256 (`docs/performance.md#square-tiles`). This was not measured for rows at run time, on several
/// nodes, and where links are busy.
pub(super) fn tile_of_spec_us(
    spec: GemmSpec<'_>,
    tile: Tile,
    sharing: Sharing,
    device: &Device,
) -> f64 {
    let costs = &device.costs().gemm;
    let (a, GemmShape { m, k, .. }) = (spec.types().a, spec.shape);
    let us = tile_us(tile, a, m, k, sharing.active, device);
    let is_known = !(spec.takes_rows()
        || spec.crosses_nodes()
        || sharing.has_clusters
        || sharing.is_link_bound);
    if !is_known || m < MIN_ROWS || a.bytes() != 2 || tile != SQUARE {
        return us;
    }
    let l2_gb_s = device.l2_gb_s * costs.square_tiles_l2_gain;
    let fed_us = tile_us_at(l2_gb_s, tile, (a, m, k), sharing.active, device);
    us.min(fed_us * costs.square_tiles_slowdown)
}
