//! The bytes and operations of a call, and the time that no kernel beats.

use crate::config::Dtype;
use crate::device::Device;
use serde::Serialize;

/// Bytes that one call moves, per rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Bytes sent over NVLink. The same number of bytes is received.
    pub link_bytes: u64,
    /// Bytes sent over the NIC. The same number of bytes is received. 0 on one node.
    pub nic_bytes: u64,
    /// Operands read and results written in device memory, each once.
    pub memory_bytes: u64,
    /// Floating-point operations.
    pub flops: u64,
    /// The type of the operands of these operations.
    pub factors: Dtype,
}

/// The time that no kernel beats: the largest of the four times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bound {
    /// Floating-point operations over the sustained rate, µs.
    pub compute_us: f64,
    /// Device-memory bytes over bandwidth, µs.
    pub memory_us: f64,
    /// NVLink bytes over the link rate, µs.
    pub link_us: f64,
    /// NIC bytes over the NIC's rate, µs.
    pub nic_us: f64,
}

impl Bound {
    pub(crate) fn new(traffic: &Traffic, device: &Device) -> Self {
        Self {
            compute_us: traffic.flops as f64 / device.tflops(traffic.factors) / 1e6,
            memory_us: traffic.memory_bytes as f64 / device.memory_gb_s / 1e3,
            link_us: traffic.link_bytes as f64 / device.link_gb_s / 1e3,
            nic_us: traffic.nic_bytes as f64 / device.nic_gb_s / 1e3,
        }
    }

    /// The bound, µs.
    #[must_use]
    pub fn us(&self) -> f64 {
        self.compute_us
            .max(self.memory_us)
            .max(self.link_us)
            .max(self.nic_us)
    }

    /// The resource that sets the bound: `compute`, `memory`, `link` or `nic`.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        if self.us() == self.compute_us {
            "compute"
        } else if self.us() == self.link_us {
            "link"
        } else if self.us() == self.nic_us {
            "nic"
        } else {
            "memory"
        }
    }
}
