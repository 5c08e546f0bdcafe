//! How long it takes to move a shard of `ag_gemm` to the peers, and what that costs the GEMM.

use crate::cost::{COMM_CTA_GB_S, FLAG_US, PUSH_SHARE, store_share};
use crate::device::Device;
use crate::roofline::Bound;

/// The time from the doorbell over the host thread to the first byte of a copy, µs.
const DOORBELL_US: f64 = 12.0;

/// The time of a copy that does not depend on its size, µs. Three concurrent copies of 2, 4 and 16 MiB reach 174, 216
/// and 348 GB/s together.
const COPY_US: f64 = 6.5;

/// The time in which a warp that pushes through registers loads what it has in flight and stores it, µs. Measured on 2×H100: 0.4
/// to 0.6 with 64 columns of B in a stage, and up to 1.2 with 128, whose loads come before those of the warp.
const PUSH_ROUND_US: f64 = 1.3;

/// The part of the transfer time that a pushing warp in every CTA saves over a few communication CTAs.
const SHARED_PUSH_GAIN: f64 = 0.06;

/// The factor by which a pushing warp slows down the loads of its CTA.
const SHARED_PUSH_SLOWDOWN: f64 = 1.12;

/// The factor by which stores of communication CTAs slow down the other CTAs. Copies slow them down by nothing that
/// could be measured.
const COMM_CTA_SLOWDOWN: f64 = 1.02;

/// The most communication CTAs that do not slow down each other.
const CALM_COMM_CTAS: u32 = 8;

/// The part of the rate that each communication CTA beyond these costs.
const CROWD_LOSS: f64 = 0.012;

/// How a candidate moves a shard to the peers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Push {
    /// There is only one rank.
    None,
    /// `ctas` communication CTAs, or warps of every CTA if 0; K in `slices`. Across nodes, `own_bytes` go to where puts
    /// take them from, too. A warp of a CTA that computes pushes in `rounds`, perhaps `first`, before anything is multiplied.
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
    /// How long it takes to send all chunks, µs: the last one is there as long after the first one.
    pub(super) fn sent_us(self, bound: &Bound, bytes: f64, device: &Device) -> f64 {
        match self {
            Self::None => 0.0,
            Self::Sm {
                ctas,
                own_bytes,
                rounds,
                ..
            } => {
                let share = store_share(bound.compute_us, bound.link_us);
                if ctas == 0 {
                    let rate = (share + SHARED_PUSH_GAIN).min(PUSH_SHARE) * device.link_gb_s;
                    (bytes / rate / 1e3).max(f64::from(rounds) * PUSH_ROUND_US)
                } else {
                    let crowd = f64::from(ctas.saturating_sub(CALM_COMM_CTAS));
                    let most = share * device.link_gb_s * (1.0 - CROWD_LOSS * crowd).max(0.1);
                    let stored = (bytes + own_bytes as f64) / (COMM_CTA_GB_S * f64::from(ctas));
                    (bytes / most).max(stored) / 1e3
                }
            }
            Self::Copies { copies } => {
                DOORBELL_US - FLAG_US
                    + f64::from(copies) * COPY_US
                    + bytes / device.copy_engine_gb_s / 1e3
            }
        }
    }

    /// How much slower the GEMM runs beside it.
    pub(super) const fn slowdown(self) -> f64 {
        match self {
            Self::Sm {
                ctas: 0,
                first: false,
                ..
            } => SHARED_PUSH_SLOWDOWN,
            Self::Sm { ctas: 0, .. } | Self::None | Self::Copies { .. } => 1.0,
            Self::Sm { .. } => COMM_CTA_SLOWDOWN,
        }
    }

    pub(super) const fn comm_ctas(self) -> u32 {
        if let Self::Sm { ctas, .. } = self {
            ctas
        } else {
            0
        }
    }

    /// Slices of K that a tile waits for one after the other.
    pub(super) const fn slices(self) -> u32 {
        if let Self::Sm { slices, .. } = self {
            slices
        } else {
            1
        }
    }
}
