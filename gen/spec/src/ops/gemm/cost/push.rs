//! The time to move a shard of `ag_gemm` to the peers, and the resulting slowdown of the GEMM.

use crate::cost::CostTable;
use crate::device::Device;
use crate::ops::gemm::op_plan::TileOrder;
use crate::roofline::Bound;

/// How a candidate moves a shard to the peers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Push {
    /// There is only one rank.
    None,
    /// `ctas` communication CTAs push, or warps of every CTA if `ctas` is 0, with K in `slices`. Across nodes, `own_bytes` are also
    /// copied to the source of puts. A warp of a compute CTA pushes in `rounds`, and before any product if `first` is true.
    Sm {
        ctas: u32,
        slices: u32,
        own_bytes: u64,
        first: bool,
        rounds: u32,
    },
    /// `copies` copies by the copy engines, over all peers.
    Copies { copies: u32 },
}
impl Push {
    /// The time to send all chunks, µs, from the first arrival to the last.
    pub(super) fn sent_us(self, bound: &Bound, bytes: f64, device: &Device) -> f64 {
        let costs = device.costs();
        match self {
            Self::None => 0.0,
            Self::Sm {
                ctas,
                own_bytes,
                rounds,
                ..
            } => {
                let share = costs.store_share(bound.compute_us, bound.link_us);
                if ctas == 0 {
                    let rate =
                        (share + costs.push.shared_gain).min(costs.push_share) * device.link_gb_s;
                    (bytes / rate / 1e3).max(f64::from(rounds) * costs.push.round_us)
                } else {
                    let crowd = f64::from(ctas.saturating_sub(costs.push.contention_free_ctas));
                    let most = share
                        * device.link_gb_s
                        * (1.0 - costs.push.contention_loss * crowd).max(0.1);
                    let stored =
                        (bytes + own_bytes as f64) / (costs.comm_cta_gb_s * f64::from(ctas));
                    (bytes / most).max(stored) / 1e3
                }
            }
            Self::Copies { copies } => {
                costs.push.copy_request_us - costs.flag_us
                    + f64::from(copies) * costs.push.copy_us
                    + bytes / device.copy_engine_gb_s / 1e3
            }
        }
    }

    /// The time until the first chunk arrives, beside the time to send it, µs.
    pub(super) const fn first_us(self, costs: &CostTable) -> f64 {
        match self {
            Self::Sm { ctas: 1.., .. } => costs.gemm.first_rows_us,
            Self::None | Self::Sm { .. } | Self::Copies { .. } => costs.flag_us,
        }
    }

    /// The time by which sending slows down a GEMM of `compute_us`, µs, if it takes `sent_us` to send all chunks.
    pub(super) fn slows_by_us(
        self,
        sent_us: f64,
        compute_us: f64,
        order: &TileOrder,
        costs: &CostTable,
    ) -> f64 {
        let meanwhile_us = sent_us.min(compute_us);
        match self {
            // The warps that multiply push first, while the stages fill. In a single round, other CTAs wait for these rows anyway.
            Self::Sm {
                ctas: 0,
                first: true,
                ..
            } if order.whole_tiles > 0 => {
                (sent_us - costs.gemm.first_rows_us - costs.flag_us).max(0.0)
            }
            Self::Sm { ctas: 0, .. } => (self.slowdown(costs) - 1.0) * meanwhile_us,
            _ => (self.slowdown(costs) - 1.0) * compute_us,
        }
    }

    /// The factor by which the GEMM is slower while chunks are sent.
    pub(super) const fn slowdown(self, costs: &CostTable) -> f64 {
        match self {
            Self::Sm {
                ctas: 0,
                first: false,
                ..
            } => costs.push.shared_slowdown,
            Self::Sm { ctas: 0, .. } | Self::None | Self::Copies { .. } => 1.0,
            Self::Sm { .. } => costs.push.comm_cta_slowdown,
        }
    }

    pub(super) const fn comm_ctas(self) -> u32 {
        if let Self::Sm { ctas, .. } = self {
            ctas
        } else {
            0
        }
    }

    /// Slices of K for which a tile waits, one after the other.
    pub(super) const fn slices(self) -> u32 {
        if let Self::Sm { slices, .. } = self {
            slices
        } else {
            1
        }
    }
}
