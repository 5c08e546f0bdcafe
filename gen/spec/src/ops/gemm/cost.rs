//! The expected time of a candidate of a GEMM operator.

use super::config::Tile;
use super::op_plan::{TILE_K, TileOrder};
use crate::cost::{
    COMM_CTA_GB_S, FLAG_US, LAUNCH_US, PUSH_SHARE, PUT_US, UNSEEN_SHARE, put_us, store_share,
};
use crate::device::Device;
use crate::roofline::{Bound, Traffic};

/// The time in which the MMA warpgroups convert and store a 128×256 tile, µs. Smaller tiles take proportionally less.
const EPILOGUE_US: f64 = 1.0;

/// The time in which the CTAs that share a tile exchange their fp32 sums, µs.
const TAIL_US: f64 = 4.0;

/// The time from the doorbell over the host thread to the first byte of a copy, µs.
const DOORBELL_US: f64 = 12.0;

/// The time of a copy that does not depend on its size, µs. Three concurrent copies of 2, 4 and 16 MiB reach 174, 216
/// and 348 GB/s together.
const COPY_US: f64 = 6.5;

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

/// The part of its time that a GEMM loses to stores of partial sums that take as long as the GEMM.
const STORE_SLOWDOWN: f64 = 0.1;

/// The time of LL packets from one rank's registers to another's, µs.
const TAGGED_US: f64 = 2.5;

/// The time in which TMA stores the partial sums of a tile to their slot, and the owner loads and adds them, without
/// flags, µs.
const ADD_US: f64 = 5.5;

/// The time in which TMA stores a result to its slot, and a rank copies it to C, without flags, µs.
const RESULT_US: f64 = 12.0;

/// How a candidate moves a shard to the peers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Push {
    /// There is only one rank.
    None,
    /// `ctas` communication CTAs, or one warp of every CTA if 0; K in `slices`. Across nodes, `own_bytes` go to where
    /// puts take them from, too.
    Sm {
        ctas: u32,
        slices: u32,
        own_bytes: u64,
    },
    /// `copies` copies by the copy engines, over all peers.
    Copies { copies: u32 },
}
impl Push {
    /// When the last chunk is there, µs after the start.
    fn arrived_us(self, bound: &Bound, bytes: f64, device: &Device) -> f64 {
        match self {
            Self::None => 0.0,
            Self::Sm {
                ctas, own_bytes, ..
            } => {
                let share = store_share(bound.compute_us, bound.link_us);
                if ctas == 0 {
                    let rate = (share + SHARED_PUSH_GAIN).min(PUSH_SHARE) * device.link_gb_s;
                    FLAG_US + bytes / rate / 1e3
                } else {
                    let crowd = f64::from(ctas.saturating_sub(CALM_COMM_CTAS));
                    let most = share * device.link_gb_s * (1.0 - CROWD_LOSS * crowd).max(0.1);
                    let stored = (bytes + own_bytes as f64) / (COMM_CTA_GB_S * f64::from(ctas));
                    FLAG_US + (bytes / most).max(stored) / 1e3
                }
            }
            Self::Copies { copies } => {
                DOORBELL_US + f64::from(copies) * COPY_US + bytes / device.copy_engine_gb_s / 1e3
            }
        }
    }

    /// How much slower the GEMM runs beside it.
    const fn slowdown(self) -> f64 {
        match self {
            Self::Sm { ctas: 0, .. } => SHARED_PUSH_SLOWDOWN,
            Self::Sm { .. } => COMM_CTA_SLOWDOWN,
            Self::None | Self::Copies { .. } => 1.0,
        }
    }

    const fn comm_ctas(self) -> u32 {
        if let Self::Sm { ctas, .. } = self {
            ctas
        } else {
            0
        }
    }

    /// Parts of K that a tile waits for one after the other.
    const fn slices(self) -> u32 {
        if let Self::Sm { slices, .. } = self {
            slices
        } else {
            1
        }
    }
}

/// Time of one tile's main loop, µs: tensor cores or L2, whichever is slower, with `active` CTAs at work.
pub(crate) fn tile_us(tile: Tile, k: u64, active: u32, device: &Device) -> f64 {
    let steps = k.div_ceil(u64::from(TILE_K)) as f64;
    let flops = 2.0 * f64::from(tile.m * tile.n * TILE_K);
    let bytes = f64::from((tile.m + tile.n) * TILE_K * 2);
    let sms = f64::from(device.sm_count);
    let math = flops / (device.gemm_tflops * 1e6 / sms);
    // A lone CTA cannot draw more than about twice its fair share of L2.
    let share = (sms / f64::from(active.max(1))).min(2.0);
    let load = bytes / (device.l2_gb_s * 1e3 / sms * share);
    let epilogue = EPILOGUE_US * f64::from(tile.m * tile.n) / 32768.0;
    steps * math.max(load) + epilogue
}

/// The GEMM alone, µs: all of it, and its last round.
fn gemm_us(
    tile: Tile,
    order: &TileOrder,
    k: u64,
    compute_ctas: u32,
    traffic: &Traffic,
    device: &Device,
) -> (f64, f64) {
    let one = tile_us(tile, k, order.units().min(compute_ctas), device);
    let rounds = f64::from(order.whole_tiles / compute_ctas);
    let tail_us = match (order.tail_tiles(), order.tail_parts) {
        (0, _) => 0.0,
        (_, 1) => one,
        (tiles, parts) if tiles * parts > compute_ctas => one,
        (_, parts) => one / f64::from(parts) + TAIL_US,
    };
    // A long GEMM is limited by power, and power by the SMs at work, whatever the rounds.
    let even = traffic.flops as f64 / device.gemm_tflops / 1e6 * f64::from(device.sm_count)
        / f64::from(compute_ctas);
    let last_us = tail_us.max(one / f64::from(order.tail_parts));
    ((rounds * one + tail_us).max(even), last_us)
}

/// Expected time of a candidate of `ag_gemm`, µs.
pub(crate) fn estimate_us(
    tile: Tile,
    order: &TileOrder,
    k: u64,
    push: Push,
    traffic: &Traffic,
    device: &Device,
) -> f64 {
    let compute_ctas = device.sm_count - push.comm_ctas();
    let (compute, last_us) = gemm_us(tile, order, k, compute_ctas, traffic, device);
    let last_us = last_us / f64::from(push.slices());
    let fed = match push {
        Push::None => 0.0,
        _ => {
            let bound = Bound::new(traffic, device);
            let near = push.arrived_us(&bound, traffic.link_bytes as f64, device);
            near.max(put_us(&bound)) + last_us
        }
    };
    let memory = traffic.memory_bytes as f64 / device.memory_gb_s / 1e3;
    let unseen = if traffic.nic_bytes > 0 {
        UNSEEN_SHARE * compute
    } else {
        0.0
    };
    LAUNCH_US + (compute * push.slowdown()).max(fed).max(memory) + unseen
}

/// How partial sums are exchanged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Meeting {
    /// 1 or 2.
    pub shots: u32,
    /// Ranks that add up tiles.
    pub owners: u32,
    /// Whether own tiles come after all others.
    pub own_last: bool,
    /// Whether owners send results to all.
    pub results: bool,
}

/// Expected time of a candidate of an operator that reduces, µs; `order` has each tile once.
pub(crate) fn reduce_us(
    tile: Tile,
    order: &TileOrder,
    k: u64,
    meeting: Option<Meeting>,
    traffic: &Traffic,
    device: &Device,
) -> f64 {
    let (compute, last_us) = gemm_us(tile, order, k, device.sm_count, traffic, device);
    let memory = traffic.memory_bytes as f64 / device.memory_gb_s / 1e3;
    let Some(meeting) = meeting else {
        return LAUNCH_US + compute.max(memory);
    };
    let link = traffic.link_bytes as f64 / device.link_gb_s / 1e3;
    let link = link / store_share(compute, link);
    // Remote stores and the GEMM's loads meet in L2 and at the SMs' ports.
    let slowdown = 1.0 + STORE_SLOWDOWN * (link / compute).min(1.0);
    let computed = (compute * slowdown).max(memory);
    let first_us = last_us.min(compute);
    let sent = match meeting {
        Meeting {
            shots: 1, results, ..
        } => compute + link + TAGGED_US * if results { 2.0 } else { 1.0 },
        // The link idles while own tiles are computed.
        Meeting {
            own_last: true,
            owners,
            results: false,
            ..
        } => {
            let own_us = compute / f64::from(owners);
            (first_us + link).max(compute - own_us) + own_us + ADD_US
        }
        Meeting { results, .. } => {
            let results_us = if results { FLAG_US + RESULT_US } else { 0.0 };
            first_us + link + FLAG_US + ADD_US + results_us
        }
    };
    // Sums for other nodes are put as the first tiles end; results follow as the sums of other nodes come.
    let bound = Bound::new(traffic, device);
    let results_us = if meeting.results {
        PUT_US + RESULT_US
    } else {
        0.0
    };
    let put = first_us + put_us(&bound) + ADD_US + results_us;
    if bound.nic_us == 0.0 {
        return LAUNCH_US + computed.max(sent);
    }
    LAUNCH_US + computed.max(sent).max(put) + UNSEEN_SHARE * computed
}
