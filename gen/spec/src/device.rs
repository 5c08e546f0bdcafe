//! [`Device`]: the figures of a GPU and its links that a plan needs.

use crate::arch::{Arch, Backend};
use crate::config::Dtype;
use serde::{Deserialize, Serialize};

/// Figures of a GPU and of its node. The runtime takes the figures from the driver, the command line from the default
/// or from flags.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Device {
    /// The name in output.
    pub name: String,
    /// The architecture, which kernels are written for.
    pub arch: Arch,
    /// The compiler of kernels, by which simulated GPUs differ from real GPUs.
    pub backend: Backend,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// Shared memory that one CTA can have, bytes.
    pub smem_bytes: u32,
    /// Clusters that run at the same time if each CTA has an SM of its own, by size: from clusters of 2 CTAs to clusters
    /// of [`MAX_CLUSTER_CTAS`](Self::MAX_CLUSTER_CTAS).
    pub resident_clusters: [u32; Self::CLUSTER_SIZES],
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
    /// NVLink, one direction, all ranks sending at once, copies of some MiB by copy engines, GB/s.
    pub copy_engine_gb_s: f64,
    /// The GPU's NICs together, one direction, GB/s.
    pub nic_gb_s: f64,
}

/// The driver's report of a Hopper GPU and its links, from which [`Device::hopper`] derives rates. A figure that the
/// driver does not report is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hardware {
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// The highest clock of the SMs, kHz.
    pub sm_clock_khz: u32,
    /// The highest clock of the memory, kHz. Memory transfers twice per clock.
    pub memory_clock_khz: u32,
    /// Width of the memory bus, bits.
    pub memory_bus_bits: u32,
    /// Active NVLink links.
    pub nvlinks: u32,
    /// Clusters that run at the same time, as in [`Device`]. 0 if the driver cannot say.
    pub resident_clusters: [u32; Device::CLUSTER_SIZES],
}

/// `figure` over `reference`, or 1 if the figure is unknown.
fn ratio(figure: u32, reference: u32) -> f64 {
    match figure {
        0 => 1.0,
        _ => f64::from(figure) / f64::from(reference),
    }
}

/// A figure of a [`Device`] with which no plan can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadFigure {
    /// The field.
    pub name: &'static str,
    /// The value of the field.
    pub value: String,
    /// The possible values.
    pub help: &'static str,
}

impl Device {
    /// The smallest number of SMs that ranks that share a GPU leave free. The driver may copy and clear memory by kernels of
    /// its own. Without free SMs, these kernels would wait for kernels that wait for the driver.
    pub const SHARED_FREE_SMS: u32 = 4;
    /// The largest cluster that every GPU with clusters supports, in CTAs.
    pub const MAX_CLUSTER_CTAS: u32 = 8;
    /// The number of sizes of clusters, from 2 CTAs on.
    pub const CLUSTER_SIZES: usize = Self::MAX_CLUSTER_CTAS as usize - 1;

    /// Returns the number of clusters of `ctas` CTAs that run at the same time; `None` if clusters cannot have `ctas`
    /// CTAs.
    #[must_use]
    pub fn resident_clusters(&self, ctas: u32) -> Option<u32> {
        let size = usize::try_from(ctas.checked_sub(2)?).ok()?;
        self.resident_clusters.get(size).copied()
    }

    /// A Hopper GPU. Its rates are the rates of [`Device::h200`], each scaled by the figures of `hardware` that bound it:
    /// SMs and their clock for tensor cores and L2, clock and bus width for memory, the number of links for NVLink. Rates
    /// of other GPUs than the H200 are therefore estimates.
    #[must_use]
    pub fn hopper(hardware: &Hardware) -> Self {
        let reference = Hardware::H200;
        let sms = ratio(hardware.sm_count, reference.sm_count)
            * ratio(hardware.sm_clock_khz, reference.sm_clock_khz);
        let memory = ratio(hardware.memory_clock_khz, reference.memory_clock_khz)
            * ratio(hardware.memory_bus_bits, reference.memory_bus_bits);
        let links = ratio(hardware.nvlinks, reference.nvlinks);
        let h200 = Self::h200();
        Self {
            sm_count: hardware.sm_count,
            gemm_tflops: h200.gemm_tflops * sms,
            l2_gb_s: h200.l2_gb_s * sms,
            memory_gb_s: h200.memory_gb_s * memory,
            link_gb_s: h200.link_gb_s * links,
            copy_engine_gb_s: h200.copy_engine_gb_s * links,
            resident_clusters: hardware.resident_clusters,
            ..h200
        }
    }

    /// Dense rate that a long GEMM sustains with operands of type `factors`, TFLOP/s. MMAs of all types take equal
    /// times and equal numbers of bytes of K.
    #[must_use]
    pub fn tflops(&self, factors: Dtype) -> f64 {
        self.gemm_tflops * Dtype::Bf16.bytes() as f64 / factors.bytes() as f64
    }

    /// The device as seen by a kernel that may use at most `max_sms` SMs. Rates that SMs bound shrink in proportion.
    #[must_use]
    pub fn limited_to(&self, max_sms: Option<u32>) -> Self {
        let sm_count = max_sms.map_or(self.sm_count, |max| self.sm_count.min(max));
        let share = f64::from(sm_count) / f64::from(self.sm_count);
        Self {
            sm_count,
            gemm_tflops: self.gemm_tflops * share,
            l2_gb_s: self.l2_gb_s * share,
            ..self.clone()
        }
    }

    /// The device as seen by one of `parts` ranks that share a GPU equally. The part has no clusters, because ranks do not
    /// keep SMs of one GPC free for each other. `None` if the GPU has too few SMs for `parts` ranks.
    #[must_use]
    pub fn part(&self, parts: u32) -> Option<Self> {
        if parts <= 1 {
            return Some(self.clone());
        }
        let sm_count = self.sm_count.saturating_sub(Self::SHARED_FREE_SMS) / parts;
        let each = f64::from(parts);
        (sm_count > 0).then(|| Self {
            name: format!("1/{parts} of {}", self.name),
            resident_clusters: [0; Self::CLUSTER_SIZES],
            memory_bytes: self.memory_bytes / u64::from(parts),
            l2_bytes: self.l2_bytes / u64::from(parts),
            memory_gb_s: self.memory_gb_s / each,
            link_gb_s: self.link_gb_s / each,
            copy_engine_gb_s: self.copy_engine_gb_s / each,
            ..self.limited_to(Some(sm_count))
        })
    }

    /// The smallest value of each figure among `devices`, the GPUs of all ranks. Every rank must make the same plan, and
    /// the slowest rank determines the time. `None` if `devices` is empty.
    #[must_use]
    pub fn slowest(devices: &[Self]) -> Option<Self> {
        let (first, others) = devices.split_first()?;
        let mut least = first.clone();
        for device in others {
            if !least.name.split(", ").any(|name| name == device.name) {
                least.name = format!("{}, {}", least.name, device.name);
            }
            least.sm_count = least.sm_count.min(device.sm_count);
            least.smem_bytes = least.smem_bytes.min(device.smem_bytes);
            for (least, clusters) in
                (least.resident_clusters.iter_mut()).zip(device.resident_clusters)
            {
                *least = clusters.min(*least);
            }
            least.memory_bytes = least.memory_bytes.min(device.memory_bytes);
            least.l2_bytes = least.l2_bytes.min(device.l2_bytes);
            least.gemm_tflops = least.gemm_tflops.min(device.gemm_tflops);
            least.memory_gb_s = least.memory_gb_s.min(device.memory_gb_s);
            least.l2_gb_s = least.l2_gb_s.min(device.l2_gb_s);
            least.link_gb_s = least.link_gb_s.min(device.link_gb_s);
            least.copy_engine_gb_s = least.copy_engine_gb_s.min(device.copy_engine_gb_s);
            least.nic_gb_s = least.nic_gb_s.min(device.nic_gb_s);
        }
        Some(least)
    }

    /// The figures with which no plan can be made: counts that no GPU has, and rates by which the cost model cannot
    /// divide.
    #[must_use]
    pub fn bad_figures(&self) -> Vec<BadFigure> {
        let mut found = Vec::new();
        if !(1..=1024).contains(&self.sm_count) {
            found.push(BadFigure {
                name: "sm_count",
                value: self.sm_count.to_string(),
                help: "use 1 to 1024",
            });
        }
        for (name, rate) in [
            ("gemm_tflops", self.gemm_tflops),
            ("memory_gb_s", self.memory_gb_s),
            ("l2_gb_s", self.l2_gb_s),
            ("link_gb_s", self.link_gb_s),
            ("copy_engine_gb_s", self.copy_engine_gb_s),
            ("nic_gb_s", self.nic_gb_s),
        ] {
            if !(rate.is_finite() && rate > 0.0) {
                found.push(BadFigure {
                    name,
                    value: rate.to_string(),
                    help: "use a rate above 0",
                });
            }
        }
        found
    }

    /// A simulated GPU: an H200 with `sm_count` SMs, all in one GPC, so that any SMs can run the CTAs of a cluster.
    #[must_use]
    pub fn simulated(sm_count: u32) -> Self {
        Self {
            name: format!("simulated GPU with {sm_count} SMs"),
            backend: Backend::HostCxx,
            sm_count,
            resident_clusters: std::array::from_fn(|size| sm_count / (size as u32 + 2)),
            ..Self::h200()
        }
    }
}

impl Default for Device {
    fn default() -> Self {
        Self::h200()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H100_SXM: Hardware = Hardware {
        memory_clock_khz: 2_619_000,
        memory_bus_bits: 5120,
        ..Hardware::H200
    };

    #[test]
    fn an_h200_has_the_rates_that_were_measured_on_it() {
        assert_eq!(Device::hopper(&Hardware::H200), Device::h200());
    }

    #[test]
    fn rates_follow_what_bounds_them() {
        let (h100, h200) = (Device::hopper(&H100_SXM), Device::h200());
        let share = h100.memory_gb_s / h200.memory_gb_s;
        assert!((0.68..0.71).contains(&share), "{share}");
        assert_eq!(h100.gemm_tflops, h200.gemm_tflops);
        assert_eq!(h100.link_gb_s, h200.link_gb_s);
        let h800 = Device::hopper(&Hardware {
            nvlinks: 8,
            ..H100_SXM
        });
        assert!(h800.link_gb_s < 0.45 * h200.link_gb_s);
        assert!(h800.copy_engine_gb_s < 0.45 * h200.copy_engine_gb_s);
        let half = Device::hopper(&Hardware {
            sm_count: 66,
            ..Hardware::H200
        });
        assert_eq!(half.gemm_tflops, h200.gemm_tflops / 2.0);
        assert_eq!(half.sm_count, 66);
    }

    #[test]
    fn figures_that_are_not_reported_are_taken_from_an_h200() {
        let unknown = Hardware {
            sm_count: 132,
            sm_clock_khz: 0,
            memory_clock_khz: 0,
            memory_bus_bits: 0,
            nvlinks: 0,
            resident_clusters: Hardware::H200.resident_clusters,
        };
        assert_eq!(Device::hopper(&unknown), Device::h200());
    }

    #[test]
    fn ranks_plan_for_the_slowest_of_their_gpus() {
        let slow = Device {
            name: "NVIDIA H100".into(),
            memory_gb_s: 3000.0,
            ..Device::h200()
        };
        let few = Device {
            sm_count: 78,
            ..Device::h200()
        };
        let all = [Device::h200(), slow, few];
        let least = Device::slowest(&all).expect("three GPUs");
        assert_eq!((least.sm_count, least.memory_gb_s), (78, 3000.0));
        assert_eq!(least.name, "NVIDIA H200, NVIDIA H100");
        assert_eq!(Device::slowest(&all[..1]), Some(Device::h200()));
        assert_eq!(Device::slowest(&[]), None);
    }

    #[test]
    fn ranks_that_share_a_gpu_leave_sms_free() {
        let whole = Device::h200();
        assert_eq!(whole.part(1), Some(whole.clone()));
        let sms = [2, 4, 8].map(|parts| whole.part(parts).map(|part| part.sm_count));
        assert_eq!(sms, [Some(64), Some(32), Some(16)]);
        let half = whole.part(2).expect("two ranks");
        assert_eq!(half.memory_bytes, whole.memory_bytes / 2);
        assert_eq!(half.bad_figures(), []);
        let small = Device {
            sm_count: 8,
            ..Device::h200()
        };
        assert_eq!(small.part(8), None);
    }

    #[test]
    fn every_figure_that_is_not_possible_is_found() {
        assert_eq!(Device::h200().bad_figures(), []);
        let wrong = Device {
            sm_count: 0,
            link_gb_s: f64::NAN,
            nic_gb_s: -1.0,
            ..Device::h200()
        };
        let names: Vec<_> = (wrong.bad_figures().iter().map(|bad| bad.name)).collect();
        assert_eq!(names, ["sm_count", "link_gb_s", "nic_gb_s"]);
    }
}
