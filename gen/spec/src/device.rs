//! [`Device`]: the figures of a GPU and its links that a plan needs.

use serde::{Deserialize, Serialize};

/// Figures of a GPU and of its node. The runtime fills it from the driver; the command line takes the default or flags.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Device {
    /// Name, for people.
    pub name: String,
    /// What its kernels are compiled to.
    pub target: Target,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// Shared memory that one CTA can have, bytes.
    pub smem_bytes: u32,
    /// Device memory, bytes.
    pub memory_bytes: u64,
    /// L2 cache, bytes.
    pub l2_bytes: u64,
    /// Dense bf16 rate that a long GEMM on random data sustains, TFLOP/s.
    pub gemm_tflops: f64,
    /// Device-memory bandwidth, read plus write, GB/s.
    pub memory_gb_s: f64,
    /// L2 to all SMs, GB/s.
    pub l2_gb_s: f64,
    /// NVLink, one direction, all ranks sending at once, stores by SMs, GB/s.
    pub link_gb_s: f64,
    /// The same by copy engines with copies of some MiB, GB/s.
    pub copy_engine_gb_s: f64,
    /// The GPU's NICs together, one direction, GB/s.
    pub nic_gb_s: f64,
}

impl Device {
    /// NVIDIA H200 on an NVLink host. Rates were measured with 8 GPUs busy at once: GEMM on random data
    /// (cuBLAS, mid sizes; the largest are power-limited to 650-690), 16-byte and TMA stores to 7 peers, copy-engine pushes of 16 MiB on 3 streams.
    /// The NIC is one of 400 Gbit/s.
    #[must_use]
    pub fn h200() -> Self {
        Self {
            name: "NVIDIA H200".into(),
            target: Target::Sm90a,
            sm_count: 132,
            smem_bytes: 232_448,
            memory_bytes: 140 << 30,
            l2_bytes: 60 << 20,
            gemm_tflops: 740.0,
            memory_gb_s: 4300.0,
            l2_gb_s: 9500.0,
            link_gb_s: 344.0,
            copy_engine_gb_s: 350.0,
            nic_gb_s: 50.0,
        }
    }

    /// A simulated GPU: an H200 with `sm_count` SMs.
    #[must_use]
    pub fn simulated(sm_count: u32) -> Self {
        Self {
            name: format!("simulated GPU with {sm_count} SMs"),
            target: Target::Simulator,
            sm_count,
            ..Self::h200()
        }
    }
}

/// What kernels are compiled to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// Machine code of Hopper GPUs, by NVRTC.
    #[default]
    Sm90a,
    /// Code of this host for simulated GPUs, by the host's C++ compiler.
    Simulator,
}

impl Target {
    /// `sm_90a` or `simulator`
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sm90a => "sm_90a",
            Self::Simulator => "simulator",
        }
    }
}

impl Default for Device {
    fn default() -> Self {
        Self::h200()
    }
}
