//! The cost model: what a candidate plan should take on a device, and the time that no kernel beats.
//!
//! Constants are measured on H200 (their comments say where they come from); they rank candidates, they don't promise times.

use crate::device::Device;
use crate::plan::{TILE_K, TileOrder, Traffic};
use crate::config::Tile;
use serde::Serialize;

/// Launch of a persistent kernel until its first tile multiplies, µs.
const LAUNCH_US: f64 = 5.0;
/// Conversion and hand-over of a 128×256 tile by the math warpgroups, µs; smaller tiles in proportion.
const EPILOGUE_US: f64 = 1.0;
/// Exchange of fp32 sums between the CTAs that share a tile, µs.
const TAIL_US: f64 = 4.0;
/// A store to a peer until its flag is seen, µs.
const FLAG_US: f64 = 2.5;
/// Doorbell → host thread → first byte of a copy, µs.
const DOORBELL_US: f64 = 10.0;
/// Host time to enqueue one copy and its flag, µs.
const ENQUEUE_US: f64 = 3.5;
/// What one communication CTA's twelve warps push, GB/s (16 SMs: 308 GB/s).
const COMM_CTA_GB_S: f64 = 20.0;
/// Of the link, what one warp in every CTA reaches beside the tensor cores.
const SHARED_PUSH_SHARE: f64 = 0.78;
/// How much such a warp slows the loads of its CTA.
const SHARED_PUSH_SLOWDOWN: f64 = 1.12;
/// How much copies of the copy engines slow a GEMM beside them.
const COPY_SLOWDOWN: f64 = 1.02;

/// The time that no kernel beats: the largest of three.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bound {
    /// Floating-point operations over the sustained rate, µs.
    pub compute_us: f64,
    /// Device-memory bytes over bandwidth, µs.
    pub memory_us: f64,
    /// NVLink bytes over the link rate, µs.
    pub link_us: f64,
}

impl Bound {
    pub(crate) fn new(traffic: &Traffic, device: &Device) -> Self {
        Self {
            compute_us: traffic.flops as f64 / device.gemm_tflops / 1e6,
            memory_us: traffic.memory_bytes as f64 / device.memory_gb_s / 1e3,
            link_us: traffic.link_bytes as f64 / device.link_gb_s / 1e3,
        }
    }

    /// The bound, µs.
    #[must_use]
    pub fn us(&self) -> f64 {
        self.compute_us.max(self.memory_us).max(self.link_us)
    }

    /// What binds: `compute`, `memory` or `link`.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        if self.us() == self.compute_us {
            "compute"
        } else if self.us() == self.link_us {
            "link"
        } else {
            "memory"
        }
    }
}

/// How a candidate moves a shard to the peers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Push {
    /// It doesn't: a world of 1.
    None,
    /// `ctas` communication CTAs, or one warp of every CTA if 0; K in `slices`.
    Sm { ctas: u32, slices: u32 },
    /// `copies` copies by the copy engines, over all peers.
    Copies { copies: u32 },
}

/// Time of one tile's main loop, µs: tensor cores or L2, whichever is slower, with `active` CTAs at work.
fn tile_us(tile: Tile, k: u64, active: u32, device: &Device) -> f64 {
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

/// Expected time of a candidate, µs.
pub(crate) fn estimate_us(
    tile: Tile,
    order: &TileOrder,
    k: u64,
    push: Push,
    traffic: &Traffic,
    device: &Device,
) -> f64 {
    let comm_ctas = if let Push::Sm { ctas, .. } = push { ctas } else { 0 };
    let compute_ctas = device.sm_count - comm_ctas;
    let one = tile_us(tile, k, order.units().min(compute_ctas), device);
    let rounds = f64::from(order.whole_tiles / compute_ctas);
    let tail_us = match (order.tail_tiles(), order.tail_parts) {
        (0, _) => 0.0,
        (_, 1) => one,
        (_, parts) => one / f64::from(parts) + TAIL_US,
    };
    let compute = rounds * one + tail_us;
    let bytes = traffic.link_bytes as f64;
    let (slowdown, arrived, tail) = match push {
        Push::None => (1.0, 0.0, 0.0),
        Push::Sm { ctas, slices } => {
            let (rate, slowdown) = if ctas == 0 {
                (SHARED_PUSH_SHARE * device.link_gb_s, SHARED_PUSH_SLOWDOWN)
            } else {
                (device.link_gb_s.min(COMM_CTA_GB_S * f64::from(ctas)), 1.0)
            };
            (slowdown, FLAG_US + bytes / rate / 1e3, one / f64::from(slices))
        }
        Push::Copies { copies } => {
            let wire = bytes / device.copy_engine_gb_s / 1e3;
            let enqueue = f64::from(copies) * ENQUEUE_US;
            (COPY_SLOWDOWN, DOORBELL_US + wire.max(enqueue), one)
        }
    };
    let memory = traffic.memory_bytes as f64 / device.memory_gb_s / 1e3;
    LAUNCH_US + (compute * slowdown).max(arrived + tail).max(memory)
}
