//! The table of all functions. The types are compared with cudarc's declarations when this file is compiled.

use super::context::*;
use super::copy::*;
use super::device::*;
use super::event::*;
use super::function::*;
use super::graph::*;
use super::memory::*;
use super::module::*;
use super::stream::*;
use super::tensor_map::*;
use super::virtual_memory::*;
use crate::driver::result::Code;
use cudarc::driver::sys;
use std::ffi::c_void;

/// A function that cudarc looks up by name.
pub(crate) struct DriverFunction {
    pub name: &'static str,
    pub address: *const c_void,
}

/// Lists functions with their addresses. Compiles only if each function has the type that cudarc declares.
macro_rules! entries {
    ($($same:ident: $($name:ident)*;)*) => {
        vec![$($(DriverFunction { name: stringify!($name), address: $same(sys::$name, $name) },)*)*]
    };
}

macro_rules! same {
    ($($same:ident($($arg:ident)*);)*) => {$(
        fn $same<$($arg),*>(_: unsafe fn($($arg),*) -> Code, implemented: unsafe extern "C" fn($($arg),*) -> Code) -> *const c_void {
            implemented as *const c_void
        }
    )*};
}

same! {
    same0();
    same1(A);
    same2(A B);
    same3(A B C);
    same4(A B C D);
    same5(A B C D E);
    same6(A B C D E F);
    same7(A B C D E F G);
    same11(A B C D E F G H I J K);
    same12(A B C D E F G H I J K L);
}

/// The functions that some part of cudarc calls, and that simulated GPUs do not support.
const UNSUPPORTED: &[&str] = &[
    "cuCtxCreate_v4",
    "cuCtxDestroy_v2",
    "cuCtxEnablePeerAccess",
    "cuCtxGetCacheConfig",
    "cuCtxGetLimit",
    "cuCtxSetCacheConfig",
    "cuCtxSetLimit",
    "cuDestroyExternalMemory",
    "cuDeviceGetDefaultMemPool",
    "cuDeviceGetMemPool",
    "cuDeviceSetMemPool",
    "cuExternalMemoryGetMappedBuffer",
    "cuFuncSetCacheConfig",
    "cuImportExternalMemory",
    "cuLaunchCooperativeKernel",
    "cuMemAdvise_v2",
    "cuMemAllocFromPoolAsync",
    "cuMemAllocManaged",
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolGetAttribute",
    "cuMemPoolSetAttribute",
    "cuMemPoolTrimTo",
    "cuMemPrefetchAsync_v2",
    "cuModuleGetGlobal_v2",
    "cuModuleLoad",
    "cuOccupancyAvailableDynamicSMemPerBlock",
    "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
    "cuOccupancyMaxPotentialBlockSize",
    "cuOccupancyMaxPotentialBlockSizeWithFlags",
    "cuOccupancyMaxPotentialClusterSize",
    "cuProfilerStart",
    "cuProfilerStop",
    "cuStreamAttachMemAsync",
];

/// Returns an error for any unsupported function. The arguments are ignored.
unsafe extern "C" fn unsupported() -> Code {
    Code::CUDA_ERROR_NOT_SUPPORTED
}

/// Returns all functions, including unsupported ones. cudarc panics if a function is missing.
pub(crate) fn functions() -> Vec<DriverFunction> {
    let mut all = entries! {
        same0: cuCtxSynchronize;
        same1: cuInit cuDriverGetVersion cuDeviceGetCount cuDevicePrimaryCtxRelease_v2 cuCtxSetCurrent cuCtxGetCurrent
            cuCtxGetDevice cuCtxSetFlags cuMemFree_v2 cuMemFreeHost cuMemRelease cuStreamDestroy_v2 cuStreamSynchronize
            cuStreamQuery cuThreadExchangeStreamCaptureMode cuEventDestroy_v2 cuEventSynchronize cuEventQuery
            cuGraphExecDestroy cuGraphDestroy cuModuleUnload cuFuncLoad;
        same2: cuDeviceGetUuid_v2 cuGetErrorName cuGetErrorString cuDeviceGet cuDeviceTotalMem_v2
            cuDeviceGetByPCIBusId cuDevicePrimaryCtxRetain cuCtxGetStreamPriorityRange cuMemGetInfo_v2 cuMemAlloc_v2
            cuMemFreeAsync cuMemcpy2DAsync_v2 cuMemAddressFree cuMemUnmap cuStreamCreate cuStreamIsCapturing
            cuStreamBeginCapture_v2 cuStreamEndCapture cuEventCreate cuEventRecord cuGraphLaunch cuGraphUpload
            cuModuleLoadData cuUserObjectRelease;
        same3: cuLaunchHostFunc cuOccupancyMaxActiveClusters cuDeviceGetName cuDeviceGetAttribute cuDeviceGetPCIBusId cuDeviceCanAccessPeer cuMemAllocAsync
            cuMemHostAlloc cuMemHostGetDevicePointer_v2 cuMemcpyHtoD_v2 cuMemcpyDtoH_v2 cuMemcpyDtoD_v2 cuMemcpy
            cuMemsetD8_v2 cuMemGetAllocationGranularity cuMemImportFromShareableHandle cuStreamCreateWithPriority
            cuStreamWaitEvent cuEventElapsedTime_v2 cuGraphInstantiateWithFlags cuModuleGetFunction cuFuncGetAttribute
            cuFuncSetAttribute;
        same4: cuDeviceGetP2PAttribute cuMemcpyHtoDAsync_v2 cuMemcpyDtoHAsync_v2 cuMemcpyDtoDAsync_v2 cuMemcpyAsync cuMemsetD8Async cuMemCreate
            cuMemSetAccess cuMemExportToShareableHandle cuStreamWriteValue32_v2
            cuOccupancyMaxActiveBlocksPerMultiprocessor cuLaunchKernelEx cuGraphRetainUserObject;
        same5: cuMemAddressReserve cuMemMap cuUserObjectCreate cuStreamUpdateCaptureDependencies_v2;
        same6: cuMemcpyPeerAsync;
        same7: cuStreamGetCaptureInfo_v3;
        same11: cuLaunchKernel;
        same12: cuTensorMapEncodeTiled;
    };
    let unsupported_functions = UNSUPPORTED.iter().map(|name| DriverFunction {
        name,
        address: unsupported as *const c_void,
    });
    all.extend(unsupported_functions);
    all
}
