//! Tests of the driver through cudarc, with the fake world.

mod callbacks;
mod graphs;
mod kernels;
mod memory;
mod progress;
mod streams;

use super::fake::{self, ADD, AWAIT, AWAIT_HOST, FAIL, RING};
use super::result::Code;
use super::*;
use crate::world::Options;
use cudarc::driver::sys::{self, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{
    CudaContext, CudaEvent, CudaSlice, CudaStream, DevicePtr, DriverError, result,
};
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A claimed host, and contexts on its GPUs.
struct TestHost {
    host: SimulatedHost,
    gpus: Vec<Arc<CudaContext>>,
}

impl TestHost {
    fn new(devices: u32) -> Self {
        activate().expect("activated");
        let host = claim(devices);
        let first = host.first_ordinal();
        let gpus = (0..devices as usize)
            .map(|device| CudaContext::new(first + device).expect("a context"))
            .collect();
        Self { host, gpus }
    }

    fn stream(&self, device: usize) -> Arc<CudaStream> {
        self.gpus[device].new_stream().expect("a stream")
    }

    /// Returns the started tasks, each with the moment that it was ordered after.
    fn log(&self) -> Vec<(TaskId, fake::Moment)> {
        self.host
            .inner()
            .run_on_engine(|world, _| Ok(world.log.clone()))
            .expect("the log")
    }
}

pub(super) fn options(devices: u32) -> HostOptions {
    HostOptions {
        world: Options {
            devices,
            seed: 0,
            skew: 0,
            timeline: false,
        },
        name: "simulated GPU with 8 SMs".into(),
        sm_count: 8,
        smem_bytes: 232_448,
        l2_bytes: 60 << 20,
    }
}

/// Claims a host. Waits while other tests hold all hosts.
fn claim(devices: u32) -> SimulatedHost {
    loop {
        match SimulatedHost::claim(options(devices)) {
            Err(ClaimError::NoneFree) => std::thread::sleep(Duration::from_millis(1)),
            claimed => return claimed.expect("a host"),
        }
    }
}

/// Returns the start of an image for this machine: a header, and a table of one section.
fn image() -> Vec<u8> {
    let mut image = vec![0; 128];
    image[..5].copy_from_slice(b"\x7fELF\x02");
    image[18] = if cfg!(target_arch = "aarch64") {
        183
    } else {
        62
    };
    (image[40], image[58], image[60]) = (64, 64, 1);
    image
}

fn load(gpu: &CudaContext) -> sys::CUfunction {
    gpu.bind_to_thread().expect("bound");
    // SAFETY: the driver reads only the header and the table of sections, which are valid.
    unsafe {
        let module = result::module::load_data(image().as_ptr().cast()).expect("a module");
        result::module::get_function(module, c"any".into()).expect("a function")
    }
}

/// Enqueues one of the fake world's kernels.
fn launch(stream: &CudaStream, args: [u64; 3]) -> std::result::Result<(), DriverError> {
    let function = load(stream.context());
    let mut args = args;
    let mut params = [(&raw mut args).cast::<c_void>()];
    // SAFETY: the function takes these 24 bytes.
    unsafe {
        result::launch_kernel(
            function,
            (4, 1, 1),
            (384, 1, 1),
            1024,
            stream.cu_stream(),
            &mut params,
        )
    }
}

fn address(slice: &CudaSlice<u32>) -> u64 {
    slice.device_ptr(slice.stream()).0
}

fn code<T>(result: std::result::Result<T, DriverError>) -> Code {
    result.err().map_or(Code::CUDA_SUCCESS, |error| error.0)
}

#[test]
fn gpus_have_their_properties() {
    let host = TestHost::new(2);
    let gpu = &host.gpus[1];
    assert_eq!(gpu.name().as_deref(), Ok("simulated GPU with 8 SMs"));
    assert_eq!(gpu.compute_capability(), Ok((9, 0)));
    assert_eq!(CudaContext::device_count(), Ok(64));
    let sms = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
    assert_eq!(gpu.attribute(sms), Ok(8));
    let error = DriverError(Code::CUDA_ERROR_LAUNCH_FAILED);
    assert!(error.to_string().contains("LAUNCH_FAILED"), "{error}");
    let first = host.host.first_ordinal();
    assert_eq!(
        code(CudaContext::new(first + 2)),
        Code::CUDA_ERROR_DEVICE_UNAVAILABLE
    );
    assert_eq!(code(CudaContext::new(64)), Code::CUDA_ERROR_INVALID_DEVICE);
}

#[test]
fn gpus_of_one_host_are_peers() {
    let _lab = TestHost::new(1);
    let can = |dev, peer| {
        let mut can = -1;
        // SAFETY: the pointer is to a live int.
        let code = unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, dev, peer) };
        assert_eq!(code, Code::CUDA_SUCCESS);
        let mut has = -1;
        let atomics = sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
        // SAFETY: the pointer is to a live int.
        let code = unsafe { sys::cuDeviceGetP2PAttribute(&raw mut has, atomics, dev, peer) };
        assert_eq!((code, has), (Code::CUDA_SUCCESS, can));
        can == 1
    };
    assert!(can(0, 7) && can(8, 15));
    assert!(!can(7, 8) && !can(3, 3));
    for dev in [0, 13, 63] {
        let (mut text, mut back) = ([0; 32], -1);
        // SAFETY: the pointers refer to live values, and the buffer has the passed length.
        unsafe {
            assert_eq!(
                sys::cuDeviceGetPCIBusId(text.as_mut_ptr(), 32, dev),
                Code::CUDA_SUCCESS
            );
            assert_eq!(
                sys::cuDeviceGetByPCIBusId(&raw mut back, text.as_ptr()),
                Code::CUDA_SUCCESS
            );
        }
        assert_eq!(back, dev);
    }
}

#[test]
fn unsupported_functions_return_an_error() {
    let host = TestHost::new(1);
    let gpu = &host.gpus[0];
    let limit = sys::CUlimit::CU_LIMIT_STACK_SIZE;
    assert_eq!(code(gpu.get_limit(limit)), Code::CUDA_ERROR_NOT_SUPPORTED);
    assert_eq!(
        code(CudaContext::new_non_primary(0, 0)),
        Code::CUDA_ERROR_NOT_SUPPORTED
    );
}
