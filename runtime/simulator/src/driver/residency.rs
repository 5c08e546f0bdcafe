//! [`Residency`]: which SMs the running kernels hold.

use super::Work;
use std::collections::BTreeMap;

/// The shared memory of a Hopper SM. One CTA can have all of this memory except 1 KiB.
pub(super) const SMEM_PER_SM_BYTES: u32 = 233_472;
/// The shared memory that the system uses for each CTA.
const SYSTEM_SMEM_BYTES: u32 = 1024;
/// The most threads that can be resident on an SM.
pub(super) const THREADS_PER_SM: u32 = 2048;

/// Returns how many CTAs can be resident on an SM. Registers have no limit.
pub(super) fn ctas_per_sm(threads: u32, smem_bytes: u32) -> u32 {
    let by_smem = SMEM_PER_SM_BYTES / smem_bytes.saturating_add(SYSTEM_SMEM_BYTES);
    by_smem.min(THREADS_PER_SM / threads.max(1))
}

/// Returns the SMs that a piece of work holds while it runs.
pub(super) fn sms_of(work: &Work) -> u32 {
    match work {
        Work::Kernel {
            ctas,
            threads,
            smem_bytes,
            ..
        } => ctas.div_ceil(ctas_per_sm(*threads, *smem_bytes).max(1)),
        _ => 0,
    }
}

/// The SMs that running kernels hold, by device.
///
/// A kernel starts when enough SMs are free for all of its CTAs, as a cooperative launch does, and holds them until it
/// ends. Kernels do not share SMs with each other.
#[derive(Debug)]
pub(super) struct Residency {
    sm_count: u32,
    held: BTreeMap<u32, u32>,
    /// Whether a kernel could not start because of the SMs that other kernels hold.
    has_refused: bool,
}

impl Residency {
    pub fn new(sm_count: u32) -> Self {
        Self {
            sm_count,
            held: BTreeMap::new(),
            has_refused: false,
        }
    }

    /// Begins a round, which starts all work that can start.
    pub fn begin(&mut self) {
        self.has_refused = false;
    }

    /// Returns whether a kernel could not start in the last round because of the SMs that other kernels hold.
    pub fn has_refused(&self) -> bool {
        self.has_refused
    }

    /// Takes SMs of a device, if they are free. A kernel with more CTAs than fit gets all SMs, since a GPU would run its
    /// CTAs one after the other.
    pub fn take(&mut self, device: u32, sms: u32) -> bool {
        let held = self.held.entry(device).or_default();
        let fits = *held + sms.min(self.sm_count) <= self.sm_count;
        match fits {
            true => *held += sms.min(self.sm_count),
            false => self.has_refused = true,
        }
        fits
    }

    /// Takes SMs of a device on which CTAs of a kernel already run, whether they are free or not.
    pub fn hold(&mut self, device: u32, sms: u32) {
        *self.held.entry(device).or_default() += sms.min(self.sm_count);
    }

    /// Returns SMs of a device.
    pub fn give_back(&mut self, device: u32, sms: u32) {
        let held = self.held.entry(device).or_default();
        *held = held.saturating_sub(sms.min(self.sm_count));
    }

    /// Forgets the kernels of a device.
    pub fn reset(&mut self, device: u32) {
        self.held.remove(&device);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_waits_for_the_sms_of_others() {
        let mut residency = Residency::new(4);
        assert!(residency.take(0, 3));
        assert!(residency.take(1, 4), "of another device");
        assert!(residency.take(0, 1) && !residency.has_refused());
        assert!(!residency.take(0, 1) && residency.has_refused());
        residency.begin();
        residency.give_back(0, 3);
        assert!(residency.take(0, 2) && !residency.has_refused());
    }

    #[test]
    fn a_kernel_of_more_ctas_than_fit_gets_all_sms() {
        let mut residency = Residency::new(4);
        assert!(residency.take(0, 1) && !residency.take(0, 9));
        residency.give_back(0, 1);
        assert!(residency.take(0, 9) && !residency.take(0, 1));
        residency.give_back(0, 9);
        assert!(residency.take(0, 4));
    }

    #[test]
    fn large_shared_memory_and_many_threads_limit_ctas() {
        assert_eq!(ctas_per_sm(384, 200 << 10), 1);
        assert_eq!(ctas_per_sm(384, 0), 5);
        assert_eq!(ctas_per_sm(32, 100 << 10), 2);
    }
}
