//! What a candidate of `dispatch_gemm` should take.

use crate::cost::{FLAG_US, LAUNCH_US, PUT_US, put_us, store_share};
use crate::device::Device;
use crate::ops::gemm::Tile;
use crate::ops::gemm::cost::tile_us;
use crate::roofline::Bound;

/// Counts, their exchange and the lists before the first tile multiplies, µs.
const ROUTING_US: f64 = 12.0;

/// The products of a dispatch: how many tiles there will be, on average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DispatchGemm {
    pub tile: Tile,
    pub tiles: f64,
    pub k: u64,
    pub ctas: u32,
}

/// Expected time of `dispatch_gemm`, µs.
pub(crate) fn dispatch_us(gemm: DispatchGemm, bound: &Bound, device: &Device) -> f64 {
    let active = gemm.tiles.min(gemm.ctas.into()) as u32;
    let one = tile_us(gemm.tile, gemm.tile.m.into(), gemm.k, active, device);
    let rounds = gemm.tiles / f64::from(gemm.ctas);
    let compute = one
        * if rounds < 4.0 {
            rounds.ceil()
        } else {
            rounds + 0.5
        };
    let link = match bound.link_us {
        0.0 => 0.0,
        link_us => FLAG_US + link_us / store_share(compute, link_us),
    };
    // Before the first token, its node must know where it goes.
    let nic = match bound.nic_us {
        0.0 => 0.0,
        _ => PUT_US + put_us(bound),
    };
    LAUNCH_US + ROUTING_US + compute.max(link).max(nic).max(bound.memory_us)
}
