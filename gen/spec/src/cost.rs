//! The cost model: what all operators have in common of launches, stores to peers and puts.
//!
//! Each kind of operator estimates its candidates in its own `cost.rs`. Constants are measured on H200; their comments say
//! where they come from. They rank candidates and do not promise times.

use crate::roofline::Bound;

/// Launch of a persistent kernel until its first tile multiplies, µs.
pub(crate) const LAUNCH_US: f64 = 5.0;

/// A store to a peer until its flag is seen, µs.
pub(crate) const FLAG_US: f64 = 2.5;

/// What one of a few communication CTAs pushes, GB/s.
pub(crate) const COMM_CTA_GB_S: f64 = 36.0;

/// Of the link, what SMs fill with little to compute …
pub(crate) const PUSH_SHARE: f64 = 0.93;

/// … and how much less beside a GEMM that takes as long as the transfer.
pub(crate) const PUSH_SHARE_LOST: f64 = 0.26;

/// A command to the proxy until the put's arrival is seen by all CTAs, µs: half of a message there and back, and a flag.
pub(crate) const PUT_US: f64 = 16.0;

/// Of two plans that the NIC holds up as long, the one with the faster GEMM is better: it leaves more time for what this
/// model does not see.
pub(crate) const UNSEEN_SHARE: f64 = 0.05;

/// Of a NIC, what puts of 1 MiB fill.
pub(crate) const NIC_SHARE: f64 = 0.95;

/// Of the link, what stores by SMs fill beside a GEMM: incoming bytes and the GEMM's loads meet in L2.
pub(crate) fn store_share(compute_us: f64, link_us: f64) -> f64 {
    PUSH_SHARE - PUSH_SHARE_LOST * (compute_us / link_us).min(1.0)
}

/// When the last put has come and was relayed, µs after the start.
pub(crate) fn put_us(bound: &Bound) -> f64 {
    match bound.nic_us {
        0.0 => 0.0,
        nic_us => PUT_US + nic_us / NIC_SHARE + FLAG_US,
    }
}
