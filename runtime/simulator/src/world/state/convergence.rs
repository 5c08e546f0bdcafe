//! Warps, and the points at which threads wait for each other.

use crate::world::clock::{Component, Published};

/// The threads of a warp.
pub const WARP: usize = 32;
/// The warps of a warpgroup.
pub const WARPGROUP_WARPS: usize = 4;

/// A point at which threads wait until all threads have arrived: a named barrier of a CTA, a barrier of a cluster, or
/// an operation that all lanes of a warp perform together.
#[derive(Debug, Default)]
pub struct ConvergencePoint {
    /// The threads that have arrived and wait.
    pub arrived: Vec<usize>,
    /// The first thread that arrived.
    pub first: usize,
    /// The instruction of the first thread that arrived.
    pub pc: u64,
    /// The number of threads that the first one waits for.
    pub expected: u32,
    /// The number of threads that arrived without waiting (`bar.arrive`).
    pub arrived_without_wait: u32,
    /// The knowledge of these threads when they arrived.
    pub published: Published,
}

impl ConvergencePoint {
    /// Returns how many threads have arrived.
    pub fn count(&self) -> u32 {
        self.arrived.len() as u32 + self.arrived_without_wait
    }
}

/// A warp: 32 threads that count their steps together.
#[derive(Debug)]
pub struct Warp {
    pub cta: usize,
    /// The clock component that counts the warp's steps.
    pub component: Component,
    /// The current step. It grows whenever all lanes converge, and every access until then belongs to it.
    pub step: u32,
    pub first_thread: usize,
    /// A bit for each lane that can run.
    pub ready: u32,
    pub convergence: ConvergencePoint,
}
