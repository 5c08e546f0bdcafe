//! One way to reduce; the cost model chooses among them.

use super::super::config::GemmOp;
use super::super::core::CoreLayout;
use super::super::cost::{self, Meeting};
use super::super::op_plan::{Reduction, TILE_K, TileOrder};
use super::super::spec::GemmSpec;
use super::traffic::traffic;
use crate::device::Device;

/// Bytes of a sub-tile of 64 x 64.
const SUB_BYTES: u32 = 8192;
/// Partial sums of an owner's tiles in a round where results follow: with fewer, own tiles wait; with more, the link does
/// at the end.
pub(super) const ROUND_BYTES_OF_RESULTS: u32 = 1 << 19;

/// One way to do it; the cost model chooses among them.
pub(super) struct Candidate {
    pub core: CoreLayout,
    pub order: TileOrder,
    pub reduction: Option<Reduction>,
    pub comm_ctas: u32,
    pub estimate_us: f64,
}

/// 16-byte loads in flight of a thread that collects results: registers bound them.
pub(super) const fn collect_unroll(spec: GemmSpec<'_>, on_peers: bool) -> u32 {
    match spec.op() {
        GemmOp::GemmAr if !on_peers => 4,
        _ => 0,
    }
}

/// As many sub-tiles of each warpgroup as the larger part of a stage holds, and as a CTA completes of a shared tile.
pub(super) fn partial_subs(core: &CoreLayout, order: &TileOrder) -> u32 {
    let held = core.tile.m.max(core.tile.n) * TILE_K * 2 / SUB_BYTES / 2;
    held.min(order.completed_subs(core.group_n() / 64))
}

pub(super) fn candidate(
    spec: GemmSpec<'_>,
    device: &Device,
    core: &CoreLayout,
    order: TileOrder,
    reduction: Option<Reduction>,
) -> Candidate {
    let meeting = reduction.as_ref().map(|r| Meeting {
        shots: r.shots,
        owners: r.owners,
        own_last: r.round_tiles == r.owner_tiles,
        results: r.results,
    });
    let traffic = traffic(spec, meeting.is_none_or(|meeting| meeting.results));
    Candidate {
        estimate_us: cost::reduce_us(core.tile, &order, spec.shape, meeting, &traffic, device),
        core: core.clone(),
        order,
        reduction,
        comm_ctas: 0,
    }
}
