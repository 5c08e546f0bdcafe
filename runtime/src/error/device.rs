//! [`DeviceError`]: the reason why the GPUs of this process cannot be used.

use super::causes::with_causes;
use super::display::Version;
use mkernel_spec::Arch;
use std::sync::Arc;

/// The reason why the GPUs of this process cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The CUDA driver library cannot be loaded.
    #[error(
        "there is no CUDA driver: libcuda.so.1 cannot be loaded ({}). Install the NVIDIA driver (580 or newer), run on a host \
         with GPUs, or use simulated GPUs (MKERNEL_DEVICE=sim, or MKERNEL_DEVICE=auto to use them only where there is no GPU)",
        with_causes(&**.0)
    )]
    DriverMissing(Arc<libloading::Error>),
    /// The CUDA driver is too old for the compiled kernels.
    #[error(
        "the CUDA driver supports CUDA {}, but kernels need CUDA {}. Update the NVIDIA driver to version 580 or newer",
        Version(*.found), Version(*.needed)
    )]
    DriverTooOld {
        /// The version that `cuDriverGetVersion` returned: 1000 · major + 10 · minor.
        found: i32,
        /// The lowest version that works: 1000 · major + 10 · minor.
        needed: i32,
    },
    /// The symmetric memory cannot grow any more.
    #[error(
        "the symmetric memory has {extents} extents, which is the limit. Drop operators and tensors, or create the largest \
         ones first"
    )]
    HeapExtents {
        /// The number of extents.
        extents: usize,
    },
    /// The GPU has no memory left for the symmetric memory.
    #[error(
        "the GPU has no memory for {bytes} bytes beside the {heap_bytes} bytes of symmetric memory that there are. Drop \
         operators and tensors, or make them smaller"
    )]
    HeapMemory {
        /// The bytes that were to be added.
        bytes: u64,
        /// The bytes of symmetric memory that were allocated before.
        heap_bytes: u64,
    },
    /// There is no GPU with the requested ordinal.
    #[error(
        "there is no GPU {ordinal}: this process sees {count} GPUs. Check LOCAL_RANK and CUDA_VISIBLE_DEVICES"
    )]
    NoDevice {
        /// The ordinal of the requested GPU.
        ordinal: usize,
        /// The number of GPUs that this process sees.
        count: usize,
    },
    /// The GPU cannot run code of any [`Arch`].
    #[error(
        "GPU {ordinal} ({name}) has compute capability {}, but kernels need {}. Use an {}",
        dotted(*capability), any_arch(|arch| dotted(arch.capability())), any_arch(|arch| arch.gpus().to_owned())
    )]
    UnsupportedDevice {
        /// The ordinal of the GPU.
        ordinal: usize,
        /// The name of the GPU.
        name: String,
        /// The compute capability of the GPU: major and minor.
        capability: (i32, i32),
    },
    /// Two GPUs of a host cannot access each other's memory.
    #[error(
        "the GPU of rank {rank} cannot access the GPU of rank {peer}. Choose GPUs that are connected by NVLink"
    )]
    NoPeerAccess {
        /// This rank.
        rank: u32,
        /// The other rank.
        peer: u32,
    },
    /// Two GPUs of a host are connected by PCIe alone.
    #[error(
        "the GPUs of ranks {rank} and {peer} are connected by PCIe alone, which does not support the atomic instructions \
         that kernels use on each other's memory. Choose GPUs that are connected by NVLink (`mkernel-gen topology` shows \
         them)"
    )]
    NoNvLink {
        /// This rank.
        rank: u32,
        /// The other rank.
        peer: u32,
    },
    /// Two ranks use the same GPU.
    #[error(
        "ranks {first} and {second} use the same GPU ({bus_id}). Give each rank its own GPU by LOCAL_RANK or \
         CUDA_VISIBLE_DEVICES. Only ranks of one process can share a GPU (Communicator::local), and not a simulated one"
    )]
    SameDevice {
        /// The lower of the two ranks.
        first: u32,
        /// The higher of the two ranks.
        second: u32,
        /// The PCI bus id of the GPU.
        bus_id: String,
    },
    /// More ranks share a GPU than the GPU has SMs for.
    #[error("{ranks} ranks share GPU {ordinal}, which has {sm_count} SMs. Use fewer ranks")]
    TooManyRanks {
        /// The number of the GPU in this process.
        ordinal: usize,
        /// The number of ranks.
        ranks: u32,
        /// The number of SMs.
        sm_count: u32,
    },
    /// One process cannot use simulated and real GPUs.
    #[error(
        "this process uses {chosen}, so it cannot use {wanted}: a process uses one kind of GPUs for all of its life. Use \
         another process, or set MKERNEL_DEVICE before this one starts"
    )]
    BackendConflict {
        /// The kind of GPUs that was requested now.
        wanted: &'static str,
        /// The kind of GPUs that was requested first.
        chosen: &'static str,
    },
}

fn dotted((major, minor): (i32, i32)) -> String {
    format!("{major}.{minor}")
}

/// Joins the texts that `of` returns for the architectures that have kernels.
fn any_arch(of: impl FnMut(Arch) -> String) -> String {
    Arch::ALL.map(of).join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_driver_error_mentions_simulated_gpus() {
        // SAFETY: there is no such library, so no initialiser runs.
        let missing = unsafe { libloading::Library::new("libmkernel-none.so.1") };
        let missing = missing.expect_err("no such library");
        let text = DeviceError::DriverMissing(Arc::new(missing)).to_string();
        for way in ["MKERNEL_DEVICE=auto", "MKERNEL_DEVICE=sim"] {
            assert!(text.contains(way), "{way:?} in {text:?}");
        }
    }

    #[test]
    fn the_error_for_an_unsupported_gpu_names_supported_gpus() {
        let unsupported = DeviceError::UnsupportedDevice {
            ordinal: 1,
            name: "NVIDIA A100".to_owned(),
            capability: (8, 0),
        };
        assert_eq!(
            unsupported.to_string(),
            "GPU 1 (NVIDIA A100) has compute capability 8.0, but kernels need 9.0. Use an H100 or H200"
        );
    }
}
