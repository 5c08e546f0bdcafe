//! What a candidate of `dispatch_gemm` should take.

use super::types::DispatchTypes;
use crate::cost::{FLAG_US, LAUNCH_US, PUT_US, put_us, store_share};
use crate::device::Device;
use crate::ops::gemm::Tile;
use crate::ops::gemm::cost::{LOAD_SUMS_US, MEET_US, group_subs, tile_us};
use crate::roofline::Bound;

/// Counts, their exchange and the lists before the first tile multiplies, µs.
const ROUTING_US: f64 = 12.0;

/// The part of the shorter of both times, that of the products and that of memory, by which the longer one is exceeded.
/// Measured on an H100 with 7168 and 2048 columns: 16 tokens of 8 experts take 90 µs with tiles of 128x128 and 102 with those of
/// 128x256, and 256 tokens take 96 and 112, though memory is the bound of all.
const UNSEEN_SHARE: f64 = 0.2;

/// The factor by which a tile of 64x256 takes longer than this model says. Measured on an H100 with 1 to 32 experts and 16 to
/// 1024 tokens, in 24 cases: it was never the fastest of the four tiles, and took up to 35 % more than that one.
const LOW_AND_WIDE: f64 = 1.05;

/// The products of a dispatch: how many tiles there will be, on average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DispatchGemm {
    pub tile: Tile,
    pub tiles: f64,
    pub types: DispatchTypes,
    pub k: u64,
    pub ctas: u32,
    /// The most slices of K into which a tile of the last round is divided.
    pub most_splits: u32,
}

impl DispatchGemm {
    /// The rounds of CTAs for all tiles, and the time in which sums over slices of the last ones are stored and added up, µs.
    fn rounds(&self) -> (f64, f64) {
        let rounds = self.tiles / f64::from(self.ctas);
        if rounds >= 4.0 {
            // How many tiles there are in the last round is chance. If they are not divided, half of the CTAs have none.
            let empty = if self.most_splits == 1 { 0.5 } else { 0.1 };
            return (rounds + empty, 0.0);
        }
        let last_round = ((rounds - rounds.floor()) * f64::from(self.ctas)).ceil() as u32;
        let Some(slices) = self.ctas.checked_div(last_round) else {
            return (rounds, 0.0);
        };
        // As `SplitTiles` in mk/moe/split_k.cuh.
        match slices.min(self.most_splits) {
            1 => (rounds.ceil(), 0.0),
            splits => (
                rounds.floor() + 1.0 / f64::from(splits),
                self.exchange_us(splits),
            ),
        }
    }

    /// The time in which the sums over the slices of a tile are stored and added up, µs.
    fn exchange_us(&self, splits: u32) -> f64 {
        let sub_tiles = group_subs(self.tile);
        // As `kInFlight` in mk/moe/split_k.cuh.
        let in_flight = 4 / sub_tiles;
        MEET_US + f64::from(sub_tiles * splits.div_ceil(in_flight)) * LOAD_SUMS_US
    }
}

/// Expected time of `dispatch_gemm`, µs.
pub(crate) fn dispatch_us(gemm: DispatchGemm, bound: &Bound, device: &Device) -> f64 {
    let active = gemm.tiles.min(gemm.ctas.into()) as u32;
    let one = tile_us(
        gemm.tile,
        gemm.types.tokens,
        gemm.tile.m.into(),
        gemm.k,
        active,
        device,
    );
    let (rounds, exchange) = gemm.rounds();
    let compute = rounds * one;
    let link = match bound.link_us {
        0.0 => 0.0,
        link_us => FLAG_US + link_us / store_share(compute, link_us),
    };
    // Before the first token, its node must know where it goes.
    let nic = match bound.nic_us {
        0.0 => 0.0,
        _ => PUT_US + put_us(bound),
    };
    let unseen = UNSEEN_SHARE * compute.min(bound.memory_us);
    let factor = match gemm.tile {
        Tile { m: 64, n: 256 } => LOW_AND_WIDE,
        _ => 1.0,
    };
    let longest = compute.max(link).max(nic).max(bound.memory_us);
    LAUNCH_US + ROUTING_US + factor * (unseen + exchange + longest)
}
