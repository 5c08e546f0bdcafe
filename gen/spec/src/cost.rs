//! The part of the cost model that all operators share: launches, stores to peers and puts.
//!
//! Each kind of operator estimates its candidates in its own `cost.rs`. Constants are measured on H200; their comments say
//! where they come from. They rank candidates and do not promise times.

use crate::roofline::Bound;

/// The time from the launch of a persistent kernel until its first tile multiplies, µs.
pub(crate) const LAUNCH_US: f64 = 5.0;

/// The time from a store to a peer until the peer sees the flag, µs.
pub(crate) const FLAG_US: f64 = 2.5;

/// The rate at which one of a few communication CTAs pushes, GB/s.
pub(crate) const COMM_CTA_GB_S: f64 = 36.0;

/// The part of the link's rate that SMs reach when they have little to compute.
pub(crate) const PUSH_SHARE: f64 = 0.93;

/// The part of the link's rate that is lost beside a GEMM that takes as long as the transfer.
pub(crate) const PUSH_SHARE_LOST: f64 = 0.26;

/// A command to the proxy until the put's arrival is seen by all CTAs, µs: half of a message there and back, and a flag.
pub(crate) const PUT_US: f64 = 16.0;

/// Of two plans that the NIC holds up as long, the one with the faster GEMM is better: it leaves more time for what this
/// model does not see.
pub(crate) const UNSEEN_SHARE: f64 = 0.05;

/// The part of a NIC's rate that puts of 1 MiB reach.
pub(crate) const NIC_SHARE: f64 = 0.95;

/// The part of the link's rate that stores by SMs reach beside a GEMM. Incoming bytes and the GEMM's loads compete for
/// L2.
pub(crate) fn store_share(compute_us: f64, link_us: f64) -> f64 {
    PUSH_SHARE - PUSH_SHARE_LOST * (compute_us / link_us).min(1.0)
}

/// When the last put has come and was forwarded, µs after the start.
pub(crate) fn put_us(bound: &Bound) -> f64 {
    match bound.nic_us {
        0.0 => 0.0,
        nic_us => PUT_US + nic_us / NIC_SHARE + FLAG_US,
    }
}
