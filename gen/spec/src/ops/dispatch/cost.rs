//! The expected time of a candidate of an operator with products of experts.

use super::types::DispatchTypes;
use crate::arch::Tile;
use crate::cost::CostTable;
use crate::device::Device;
use crate::ops::gemm::cost::{group_subs, tile_us};
use crate::roofline::Bound;

/// The products of experts: the average number of tiles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DispatchGemm {
    pub tile: Tile,
    pub tiles: f64,
    /// The rows of a tile that warpgroups multiply, without the rows of a warpgroup that has none.
    pub tile_rows: u32,
    /// Whether tokens are routed to their experts first.
    pub routes: bool,
    /// The tiles of the down projection behind another product, and its K.
    pub down: (f64, u64),
    pub types: DispatchTypes,
    pub k: u64,
    pub ctas: u32,
    /// The most slices of K into which a tile of the last round is divided.
    pub most_splits: u32,
}

impl DispatchGemm {
    /// The rounds of CTAs for all tiles, and the time in which the sums over slices of the last tiles are stored and added up, µs.
    fn rounds(&self, costs: &CostTable) -> (f64, f64) {
        let rounds = self.tiles / f64::from(self.ctas);
        if rounds >= 4.0 {
            // The number of tiles in the last round is random. If these tiles are not divided, half of the CTAs have no tile on
            // average.
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
                self.exchange_us(splits, costs),
            ),
        }
    }

    /// Whether CTAs have several tiles, between which loads pause.
    fn has_rounds(&self) -> bool {
        self.tiles > f64::from(self.ctas)
    }

    /// The slowdown of memory by narrow tiles.
    fn memory_slowdown(&self, costs: &CostTable) -> f64 {
        match self.tile.n {
            128 if self.has_rounds() => costs.dispatch.narrow_slowdown,
            _ => 1.0,
        }
    }

    /// The slowdown of the shape of tiles.
    fn shape_slowdown(&self, costs: &CostTable) -> f64 {
        let costs = &costs.dispatch;
        let is_of_bytes = self.types.tokens.bytes() == 1;
        let of_shape = match self.tile {
            Tile { m: 64, n: 256 } if !(is_of_bytes && self.has_rounds()) => {
                costs.low_and_wide_slowdown
            }
            Tile { n: 128, .. } if is_of_bytes && self.has_rounds() => costs.narrow_bytes_slowdown,
            _ => 1.0,
        };
        match self.tile_rows < self.tile.m {
            true => of_shape * costs.half_empty_slowdown,
            false => of_shape,
        }
    }

    /// The time in which the sums over the slices of a tile are stored and added up, µs.
    fn exchange_us(&self, splits: u32, costs: &CostTable) -> f64 {
        let sub_tiles = group_subs(self.tile);
        // As `kInFlight` in mk/moe/split_k.cuh.
        let in_flight = 4 / sub_tiles;
        costs.gemm.split_k_sync_us
            + f64::from(sub_tiles * splits.div_ceil(in_flight)) * costs.gemm.load_sums_us
    }
}

/// The products of a dispatch without communication, µs.
struct Products {
    /// The time of all tiles.
    compute: f64,
    /// The time in which memory is read and written.
    memory: f64,
    /// The time that is added to the longest of the times of tiles, memory and transfers.
    added: f64,
    /// The slowdown of the shape of tiles.
    factor: f64,
}

fn products(gemm: DispatchGemm, bound: &Bound, device: &Device) -> Products {
    let costs = device.costs();
    let active = gemm.tiles.min(gemm.ctas.into()) as u32;
    let one = |k| {
        let (m, n) = (gemm.tile_rows, gemm.tile.n);
        tile_us(
            Tile { m, n },
            gemm.types.tokens,
            m.into(),
            k,
            active,
            device,
        )
    };
    let (rounds, exchange) = gemm.rounds(costs);
    let (down_tiles, down_k) = gemm.down;
    let compute = rounds * one(gemm.k) + down_tiles / f64::from(gemm.ctas) * one(down_k);
    let memory = bound.memory_us * gemm.memory_slowdown(costs);
    let unseen = costs.dispatch.overlap_loss * compute.min(memory);
    Products {
        compute,
        memory,
        added: unseen + exchange,
        factor: gemm.shape_slowdown(costs),
    }
}

/// The time of the products beside memory, without communication, µs.
pub(super) fn products_us(gemm: DispatchGemm, bound: &Bound, device: &Device) -> f64 {
    let products = products(gemm, bound, device);
    products.factor * (products.added + products.compute.max(products.memory))
}

/// Expected time, µs.
pub(crate) fn dispatch_us(gemm: DispatchGemm, bound: &Bound, device: &Device) -> f64 {
    let costs = device.costs();
    let products = products(gemm, bound, device);
    let link = match bound.link_us {
        0.0 => 0.0,
        link_us => costs.flag_us + link_us / costs.store_share(products.compute, link_us),
    };
    // Before the first token arrives, its node must know the token's destination.
    let nic = match bound.nic_us {
        0.0 => 0.0,
        _ => costs.put_latency_us + costs.put_us(bound),
    };
    let longest = products.compute.max(link).max(nic).max(products.memory);
    let routing = if gemm.routes {
        costs.dispatch.routing_us
    } else {
        0.0
    };
    costs.launch_us + routing + products.factor * (products.added + longest)
}
