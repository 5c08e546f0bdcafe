//! A candidate of an operator that reduces.

use super::super::config::GemmOp;
use super::super::core::CoreLayout;
use super::super::cost::{self, Meeting};
use super::super::op_plan::{OUT_COLS, OUT_ROWS, Reduction, TileOrder};
use super::super::spec::GemmSpec;
use super::traffic::traffic;
use crate::config::LINE_BYTES;
use crate::device::Device;

/// The bytes of an owner's partial sums in a round, if results are sent. With fewer bytes, own tiles wait for partial sums. With
/// more, the link is idle at the end.
pub(super) const ROUND_BYTES_OF_RESULTS: u32 = 1 << 19;

/// One way to reduce. The cost model chooses among all candidates.
pub(super) struct Candidate {
    pub core: CoreLayout,
    pub order: TileOrder,
    pub reduction: Option<Reduction>,
    pub comm_ctas: u32,
    pub estimate_us: f64,
}

/// 16-byte loads in flight of a thread that takes results from slots to C, which registers limit; 0 if no rank has slots of results.
pub(super) fn collect_unroll(spec: GemmSpec<'_>, on_peers: bool) -> u32 {
    match spec.op() {
        _ if on_peers => 0,
        _ if spec.epilogue().normalises() && spec.types().a.bytes() > 1 => 8,
        GemmOp::GemmRs if !spec.epilogue().normalises() => 0,
        _ => 4,
    }
}

/// Sub-tiles of partial sums of each warpgroup in a stage: the most that the larger part of a stage holds, but at most the
/// sub-tiles that a CTA completes of a shared tile.
pub(super) fn partial_subs(spec: GemmSpec<'_>, core: &CoreLayout, order: &TileOrder) -> u32 {
    let sub_bytes = OUT_ROWS * OUT_COLS * spec.types().partial.bytes() as u32;
    let held = core.tile.m.max(core.tile.n) * LINE_BYTES / sub_bytes / core.arch.groups;
    held.min(order.completed_subs(core.group_n() / OUT_COLS, 1))
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
        estimate_us: cost::reduce_us(spec, core.tile, &order, meeting, &traffic, device),
        core: core.clone(),
        order,
        reduction,
        comm_ctas: 0,
    }
}
