//! [`KernelError`]: the reason why a kernel cannot run on this GPU, or cannot be used by a handle.

/// The reason why a kernel cannot run on this GPU, or cannot be used by a handle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The CTAs of the kernel cannot all run at the same time.
    #[error(
        "kernel {id} does not fit on this GPU: it uses {registers} registers per thread and {smem_bytes} bytes of shared \
         memory, so {ctas_per_sm} CTAs fit on an SM, but all of its {grid_ctas} CTAs must run at once on {sm_count} SMs. \
         Check whether another context limits this GPU (MPS, MIG)"
    )]
    DoesNotFit {
        /// The id of the kernel.
        id: String,
        /// The registers that each thread uses.
        registers: u32,
        /// The static and dynamic shared memory of a CTA.
        smem_bytes: u32,
        /// The number of CTAs that fit on one SM. At least one must fit.
        ctas_per_sm: u32,
        /// The number of CTAs of a launch. All of them must run at once, since they wait for each other.
        grid_ctas: u32,
        /// The number of SMs of the GPU.
        sm_count: u32,
    },
    /// The clusters of the kernel cannot all run at the same time.
    #[error(
        "kernel {id} does not fit on this GPU: its {clusters} clusters of {cluster_ctas} CTAs must run at once, but this GPU \
         takes {resident}. Write cluster = false"
    )]
    ClustersDoNotFit {
        /// The id of the kernel.
        id: String,
        /// The CTAs of a cluster.
        cluster_ctas: u32,
        /// The clusters of a launch.
        clusters: u32,
        /// The clusters that the GPU runs at the same time.
        resident: u32,
    },
    /// The compiled kernel uses another number of registers than the plan, so its warpgroups could not redistribute them.
    #[error(
        "kernel {id} was compiled to {registers} registers per thread, but its plan needs {planned}. Compile it with NVRTC \
         13.0 (unset MKERNEL_NVRTC_ANY) and an empty cache, or build the bundle again"
    )]
    Registers {
        /// The id of the kernel.
        id: String,
        /// The registers that each thread uses.
        registers: u32,
        /// The registers that the plan needs.
        planned: u32,
    },
    /// An operator differs from the declaration of its handle.
    #[error(
        "{handle} is declared as {declared}, but the operator is {given}. Change only options that leave the operator and the \
         types of its operands as declared, or declare another handle"
    )]
    OtherHandle {
        /// The name of the handle's type.
        handle: String,
        /// The operator and the operands of the declaration.
        declared: String,
        /// The operator and the operands that were prepared.
        given: String,
    },
}
