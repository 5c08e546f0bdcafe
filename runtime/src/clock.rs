//! [`Communicator::sm_clock_mhz`]: the clock of a GPU.

use crate::communicator::Communicator;
use crate::driver;

impl Communicator {
    /// Returns the clock of the SMs of this rank's GPU in MHz, which power and heat change. Returns `None` for simulated GPUs, and
    /// if NVML is not available.
    #[must_use]
    pub fn sm_clock_mhz(&self) -> Option<u32> {
        if self.is_simulated() {
            return None;
        }
        let bus_id = driver::bus_id(self.context().cu_device()).ok()?;
        driver::sm_clock_mhz(&bus_id)
    }
}
