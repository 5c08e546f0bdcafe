//! [`Function`]: a loaded kernel with its limits and its launch, and the encoding of tensor maps.

use super::call::{bind, check, named, warn};
use crate::error::Error;
use crate::launch::params::TensorMap;
use cudarc::driver::{CudaContext, DriverError, result, sys};
use mkernel_spec::config::TmaType;
use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use sys::CUfunction_attribute as FunctionAttribute;

/// A compiled kernel that is loaded into the context.
pub(crate) struct Function {
    raw: sys::CUfunction,
    module: sys::CUmodule,
    ctx: Arc<CudaContext>,
}

// SAFETY: modules and functions of the driver may be used from any thread.
unsafe impl Send for Function {}
// SAFETY: see above.
unsafe impl Sync for Function {}

impl Function {
    /// Loads the kernel `name` of a CUBIN, or of PTX that ends with a NUL.
    pub fn load(ctx: &Arc<CudaContext>, image: &[u8], name: &str) -> Result<Self, Error> {
        bind(ctx)?;
        let symbol = CString::new(name).unwrap_or_default();
        // SAFETY: the driver reads PTX to its NUL, and a CUBIN as far as its header says. A CUBIN comes from the compiler, or
        // from the store. The store has checked that its tables, sections and segments lie within it, and that only this
        // user and root can have written it.
        let module = named("cuModuleLoadData", unsafe {
            result::module::load_data(image.as_ptr().cast())
        })?;
        let mut function = Self {
            raw: null_mut(),
            module,
            ctx: ctx.clone(),
        };
        // SAFETY: the module is loaded.
        function.raw = named("cuModuleGetFunction", unsafe {
            result::module::get_function(module, symbol)
        })?;
        Ok(function)
    }

    /// Returns the handle of the driver.
    pub fn handle(&self) -> u64 {
        self.raw as u64
    }

    pub fn allow_dynamic_smem(&self, bytes: u32) -> Result<(), Error> {
        let attribute = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        // SAFETY: the function is loaded.
        named("cuFuncSetAttribute", unsafe {
            result::function::set_function_attribute(self.raw, attribute, bytes)
        })
    }

    pub fn registers(&self) -> Result<u32, Error> {
        self.attribute(FunctionAttribute::CU_FUNC_ATTRIBUTE_NUM_REGS)
    }

    pub fn static_smem_bytes(&self) -> Result<u32, Error> {
        self.attribute(FunctionAttribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
    }

    fn attribute(&self, attribute: FunctionAttribute) -> Result<u32, Error> {
        // SAFETY: the function is loaded.
        let value = unsafe { result::function::get_function_attribute(self.raw, attribute) };
        named("cuFuncGetAttribute", value).map(|value| u32::try_from(value).unwrap_or(0))
    }

    /// Returns the number of CTAs with these dimensions that can be resident on an SM.
    pub fn ctas_per_sm(&self, threads: u32, dynamic_smem_bytes: u32) -> Result<u32, Error> {
        let threads = i32::try_from(threads).unwrap_or(i32::MAX);
        // SAFETY: the function is loaded.
        let count = unsafe {
            result::occupancy::max_active_block_per_multiprocessor(
                self.raw,
                threads,
                dynamic_smem_bytes as usize,
            )
        };
        named("cuOccupancyMaxActiveBlocksPerMultiprocessor", count)
            .map(|count| u32::try_from(count).unwrap_or(0))
    }

    /// Returns the number of clusters of such a launch that can be resident on the GPU.
    pub fn resident_clusters(&self, dims: LaunchDims) -> Result<u32, Error> {
        let mut attributes = [dims.cluster_attribute()];
        let config = dims.config(null_mut(), &mut attributes);
        let mut count = 0;
        // SAFETY: the function is loaded. The driver reads the configuration with its attribute, and writes one number.
        let code = unsafe {
            sys::cuOccupancyMaxActiveClusters(&raw mut count, self.raw, &raw const config)
        };
        check("cuOccupancyMaxActiveClusters", code)?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// Enqueues the kernel with one struct parameter, which is copied before this returns.
    ///
    /// [`LaunchMode`] says how the GPU starts the CTAs of the kernel.
    ///
    /// # Safety
    /// `args` must point to the struct that the kernel declares, and everything that it points to must stay alive until
    /// the kernel is done. `stream` must be alive and belong to this context, which must be current.
    pub unsafe fn launch(
        &self,
        stream: sys::CUstream,
        dims: LaunchDims,
        args: *mut c_void,
        mode: LaunchMode,
    ) -> Result<(), Error> {
        let mut params = [args];
        let mut attributes = [mode.attribute(), dims.cluster_attribute()];
        let count = if dims.cluster_ctas > 1 { 2 } else { 1 };
        let config = dims.config(stream, &mut attributes[..count]);
        // SAFETY: guaranteed by the caller. The driver reads the configuration with its attributes, and `args`, before
        // this returns, and does not write to them.
        let code = unsafe {
            sys::cuLaunchKernelEx(&raw const config, self.raw, params.as_mut_ptr(), null_mut())
        };
        check("cuLaunchKernelEx", code)
    }
}

/// The dimensions of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaunchDims {
    pub ctas: u32,
    /// The CTAs of a cluster, which divide `ctas`; 1 if there are no clusters.
    pub cluster_ctas: u32,
    /// The threads of a CTA.
    pub threads: u32,
    /// The dynamic shared memory of a CTA.
    pub smem_bytes: u32,
}

impl LaunchDims {
    /// The configuration of the driver, which points to `attributes`.
    const fn config(
        self,
        stream: sys::CUstream,
        attributes: &mut [sys::CUlaunchAttribute],
    ) -> sys::CUlaunchConfig {
        sys::CUlaunchConfig {
            gridDimX: self.ctas,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: self.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.smem_bytes,
            hStream: stream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        }
    }

    const fn cluster_attribute(self) -> sys::CUlaunchAttribute {
        let size = sys::CUlaunchAttributeValue_union__bindgen_ty_1 {
            x: self.cluster_ctas,
            y: 1,
            z: 1,
        };
        sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { clusterDim: size },
        }
    }
}

/// The way in which the GPU starts the CTAs of a launch, which wait for each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LaunchMode {
    /// The GPU starts all CTAs at once. A launch that cannot be resident fails. A launch that shares the GPU with other
    /// kernels waits until enough SMs are free, so that two launches never hold a part of the SMs each and wait for the
    /// rest.
    #[default]
    Cooperative,
    /// The GPU starts each CTA as soon as the preceding kernel on the stream leaves an SM to the CTA. The two kernels
    /// never wait for each other's SMs, since all CTAs of the preceding kernel run by then. Other kernels may wait.
    Overlapping,
}

impl LaunchMode {
    fn attribute(self) -> sys::CUlaunchAttribute {
        let (id, value) = match self {
            Self::Cooperative => (
                sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
                sys::CUlaunchAttributeValue { cooperative: 1 },
            ),
            Self::Overlapping => (
                sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                sys::CUlaunchAttributeValue {
                    programmaticStreamSerializationAllowed: 1,
                },
            ),
        };
        sys::CUlaunchAttribute {
            id,
            pad: [0; 4],
            value,
        }
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        warn(bind(&self.ctx));
        // SAFETY: this value owns the module. Its owner has waited for the kernel.
        warn(named("cuModuleUnload", unsafe {
            result::module::unload(self.module)
        }));
    }
}

/// Encodes a tensor map into the 128 bytes that TMA instructions take.
pub(crate) fn encode_tensor_map(map: &TensorMap) -> Result<[u8; 128], Error> {
    let rank = map.dims.len();
    let consistent = (1..=5).contains(&rank)
        && map.strides_bytes.len() + 1 == rank
        && map.box_elems.len() == rank;
    if !consistent {
        return named(
            "cuTensorMapEncodeTiled",
            Err(DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE)),
        );
    }
    let data_type = match map.dtype.info().tma {
        TmaType::Uint8 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
        TmaType::Int32 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_INT32,
        TmaType::Float16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        TmaType::Float32 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        TmaType::Bfloat16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    };
    let mut encoded = sys::CUtensorMap { opaque: [0; 16] };
    let element_strides = [1u32; 5];
    // SAFETY: the arrays have the lengths that `rank` implies (one fewer for the strides), which is checked above.
    // `encoded` is aligned by its type.
    let code = unsafe {
        sys::cuTensorMapEncodeTiled(
            &raw mut encoded,
            data_type,
            rank as u32,
            map.address as *mut c_void,
            map.dims.as_ptr(),
            map.strides_bytes.as_ptr(),
            map.box_elems.as_ptr(),
            element_strides.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    check("cuTensorMapEncodeTiled", code)?;
    let mut bytes = [0; 128];
    for (to, word) in bytes.chunks_exact_mut(8).zip(encoded.opaque) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    Ok(bytes)
}
