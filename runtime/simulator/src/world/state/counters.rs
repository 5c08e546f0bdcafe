//! Counters of steps that one launch after another uses.
//!
//! Each clock component counts the steps of one object that orders accesses, such as a warp. A launch takes counters
//! when it starts and returns them when it ends. The next launch on the same GPU continues from their last values. The
//! number of components, and thus the length of clocks, therefore does not grow with the number of launches.

use crate::world::clock::Component;

/// A clock component, and the step at which its present user began to count.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepCounter {
    pub component: Component,
    /// The last step of the previous user.
    pub base: u32,
}

impl StepCounter {
    /// Returns the component, and its step for step `step` of the present user.
    #[inline]
    pub fn at(&self, step: u32) -> (Component, u32) {
        (self.component, self.base + step)
    }
}

/// The counters of a CTA's warps and threads.
#[derive(Clone, Debug, Default)]
pub struct CtaCounters {
    /// The component and the last step of each warp.
    pub warps: Vec<(Component, u32)>,
    /// The slot of the first thread. The other threads have the slots after it.
    pub first_slot: u32,
    /// The last solo step of each thread.
    pub solo_steps: Vec<u32>,
}

/// The counters of a GPU that no launch uses now.
#[derive(Debug, Default)]
pub struct FreeCounters {
    pub ctas: Vec<CtaCounters>,
    pub counters: Vec<StepCounter>,
}
