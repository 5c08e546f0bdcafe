//! The driver as cudarc uses it, over the fake world.

use super::fake::{self, ADD, AWAIT, FAIL, RING};
use super::*;
use crate::world::Options;
use cudarc::driver::sys::{self, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{
    CudaContext, CudaEvent, CudaSlice, CudaStream, DevicePtr, DriverError, result,
};
use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A claimed host, and contexts on its GPUs.
struct Lab {
    host: SimulatedHost,
    gpus: Vec<Arc<CudaContext>>,
}

impl Lab {
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

    /// What was started, and what it came after.
    fn log(&self) -> Vec<(TaskId, fake::Moment)> {
        self.host
            .inner()
            .ask(|world, _| Ok(world.log.clone()))
            .expect("the log")
    }
}

/// Claims a host; other tests may hold all of them for a while.
fn claim(devices: u32) -> SimulatedHost {
    let options = HostOptions {
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
        patience: Duration::from_millis(60),
    };
    loop {
        match SimulatedHost::claim(options.clone()) {
            Err(ClaimError::NoneFree) => std::thread::sleep(Duration::from_millis(1)),
            claimed => return claimed.expect("a host"),
        }
    }
}

/// The start of an image of this machine: a header, and a table of one section.
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
    // SAFETY: the image is one as far as the driver looks.
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
fn gpus_are_described() {
    let lab = Lab::new(2);
    let gpu = &lab.gpus[1];
    assert_eq!(gpu.name().as_deref(), Ok("simulated GPU with 8 SMs"));
    assert_eq!(gpu.compute_capability(), Ok((9, 0)));
    assert_eq!(CudaContext::device_count(), Ok(64));
    let sms = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
    assert_eq!(gpu.attribute(sms), Ok(8));
    let error = DriverError(Code::CUDA_ERROR_LAUNCH_FAILED);
    assert!(error.to_string().contains("LAUNCH_FAILED"), "{error}");
    let first = lab.host.first_ordinal();
    assert_eq!(
        code(CudaContext::new(first + 2)),
        Code::CUDA_ERROR_DEVICE_UNAVAILABLE
    );
    assert_eq!(code(CudaContext::new(64)), Code::CUDA_ERROR_INVALID_DEVICE);
}

#[test]
fn peers_are_those_of_one_host() {
    let _lab = Lab::new(1);
    let can = |dev, peer| {
        let mut can = -1;
        // SAFETY: the pointer is to a live int.
        let code = unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, dev, peer) };
        assert_eq!(code, Code::CUDA_SUCCESS);
        can == 1
    };
    assert!(can(0, 7) && can(8, 15));
    assert!(!can(7, 8) && !can(3, 3));
    for dev in [0, 13, 63] {
        let (mut text, mut back) = ([0; 32], -1);
        // SAFETY: the pointers are to live values, the buffer is as long as said.
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
fn bytes_go_there_and_back() {
    let lab = Lab::new(2);
    let stream = lab.gpus[0].default_stream();
    let words: Vec<u32> = (0..1000).collect();
    let mut slice = stream.clone_htod(&words).expect("uploaded");
    launch(&stream, [ADD, address(&slice) + 4, 41]).expect("launched");
    let back = stream.clone_dtoh(&slice).expect("downloaded");
    assert_eq!((back[0], back[1], back[999]), (0, 42, 999));
    // To a peer and back.
    let peer = lab.gpus[1].default_stream();
    let copy = peer.clone_dtod(&slice).expect("copied");
    stream.memset_zeros(&mut slice).expect("zeroed");
    assert_eq!(peer.clone_dtoh(&copy).expect("downloaded"), back);
    assert_eq!(
        stream.clone_dtoh(&slice).expect("downloaded"),
        vec![0; 1000]
    );
    let free = lab.gpus[0].mem_get_info().expect("figures").0;
    drop((slice, copy));
    stream.synchronize().expect("synchronized");
    assert_eq!(lab.gpus[0].mem_get_info().expect("figures").0, free + 4000);
}

#[test]
fn rows_are_copied_with_their_pitches() {
    let lab = Lab::new(1);
    let stream = lab.gpus[0].default_stream();
    let from = stream
        .clone_htod(&(0..64u32).collect::<Vec<_>>())
        .expect("uploaded");
    let to = stream.alloc_zeros::<u32>(64).expect("allocated");
    let mut request = sys::CUDA_MEMCPY2D {
        srcXInBytes: 4,
        srcY: 1,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcHost: null_mut(),
        srcDevice: address(&from),
        srcArray: null_mut(),
        srcPitch: 32,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: null_mut(),
        dstDevice: address(&to),
        dstArray: null_mut(),
        dstPitch: 16,
        WidthInBytes: 8,
        Height: 3,
    };
    // SAFETY: the request is alive.
    let mut copy = |height| unsafe {
        request.Height = height;
        sys::cuMemcpy2DAsync_v2(&raw const request, stream.cu_stream())
    };
    assert_eq!(copy(3), Code::CUDA_SUCCESS);
    assert_eq!(copy(0), Code::CUDA_SUCCESS);
    assert_eq!(
        copy(9),
        Code::CUDA_ERROR_INVALID_VALUE,
        "past the source's end"
    );
    let back = stream.clone_dtoh(&to).expect("downloaded");
    assert_eq!(back[..10], [9, 10, 0, 0, 17, 18, 0, 0, 25, 26]);
}

#[test]
fn addresses_are_checked() {
    let lab = Lab::new(1);
    let stream = lab.gpus[0].default_stream();
    let slice = stream.alloc_zeros::<u32>(128).expect("allocated");
    let to = address(&slice);
    // SAFETY: what would be accessed is what is being tested; the driver refuses it.
    let set =
        |to, bytes| unsafe { code(result::memset_d8_async(to, 1, bytes, stream.cu_stream())) };
    assert_eq!(set(to, 512), Code::CUDA_SUCCESS);
    assert_eq!(set(to, 513), Code::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(set(to - 1, 1), Code::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(set(u64::MAX, 16), Code::CUDA_ERROR_INVALID_VALUE);
    // SAFETY: as above.
    let write = |to| unsafe { sys::cuStreamWriteValue32_v2(stream.cu_stream(), to, 7, 0) };
    assert_eq!(write(to + 508), Code::CUDA_SUCCESS);
    assert_eq!(write(to + 2), Code::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(write(to + 512), Code::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(stream.clone_dtoh(&slice).expect("downloaded")[127], 7);
    // SAFETY: as above.
    let free = |address| unsafe { code(result::free_sync(address)) };
    assert_eq!(free(to + 512), Code::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn streams_keep_their_order_and_events_join_them() {
    let lab = Lab::new(1);
    let (one, two) = (lab.stream(0), lab.stream(0));
    let slice = lab.gpus[0]
        .default_stream()
        .alloc_zeros::<u32>(1)
        .expect("allocated");
    lab.gpus[0].synchronize().expect("synchronized");
    let first = lab.log().len();
    let add = |stream: &CudaStream| launch(stream, [ADD, address(&slice), 1]).expect("launched");
    add(&one);
    add(&one);
    let event = one.record_event(None).expect("recorded");
    add(&one);
    add(&two);
    two.wait(&event).expect("enqueued");
    add(&two);
    lab.gpus[0].synchronize().expect("synchronized");

    // The streams start in the order of their handles, and the fake world finishes what was started first.
    let before: Vec<Vec<u64>> = lab.log()[first..]
        .iter()
        .map(|(_, after)| {
            after
                .0
                .iter()
                .filter_map(|task| task.0.checked_sub(first as u64))
                .collect()
        })
        .collect();
    let (one_after_another, behind_the_event) = (vec![0, 2], vec![0, 1, 2]);
    assert_eq!(
        before,
        [vec![], vec![], vec![0], one_after_another, behind_the_event]
    );
}

#[test]
fn blocking_streams_and_the_default_stream_wait_for_each_other() {
    let lab = Lab::new(1);
    let gpu = &lab.gpus[0];
    let slice = gpu
        .default_stream()
        .alloc_zeros::<u32>(2)
        .expect("allocated");
    gpu.synchronize().expect("synchronized");
    let create = |kind| result::stream::create(kind).expect("a stream");
    let blocking = create(result::stream::StreamKind::Default);
    let free = create(result::stream::StreamKind::NonBlocking);
    // SAFETY: the streams are alive, and so is the memory.
    let write = |stream, to| unsafe { sys::cuStreamWriteValue32_v2(stream, to, 1, 0) };
    let first = lab.log().len();
    for stream in [blocking, null_mut(), blocking] {
        assert_eq!(write(stream, address(&slice)), Code::CUDA_SUCCESS);
    }
    assert_eq!(write(free, address(&slice) + 4), Code::CUDA_SUCCESS);
    gpu.synchronize().expect("synchronized");
    let mut counts: Vec<usize> = lab.log()[first..]
        .iter()
        .map(|(_, after)| after.0.iter().filter(|task| task.0 >= first as u64).count())
        .collect();
    counts.sort_unstable();
    assert_eq!(counts, [0, 0, 1, 2]);
}

#[test]
fn questions_are_answered_while_work_goes_on() {
    let lab = Lab::new(1);
    let (one, two) = (lab.stream(0), lab.stream(0));
    let slice = lab.gpus[0]
        .default_stream()
        .alloc_zeros::<u32>(1)
        .expect("allocated");
    lab.gpus[0].synchronize().expect("synchronized");
    launch(&one, [AWAIT, address(&slice), 5]).expect("launched");
    let event = one.record_event(None).expect("recorded");
    assert_eq!(event.try_is_complete(), Ok(false));
    // SAFETY: the stream is alive.
    let query = || unsafe { sys::cuStreamQuery(one.cu_stream()) };
    assert_eq!(query(), Code::CUDA_ERROR_NOT_READY);
    launch(&two, [ADD, address(&slice), 5]).expect("launched");
    let started = Instant::now();
    while !event.is_complete() {
        assert!(started.elapsed() < Duration::from_secs(10));
    }
    assert_eq!(query(), Code::CUDA_SUCCESS);
    let unrecorded: CudaEvent = lab.gpus[0].new_event(None).expect("an event");
    assert!(unrecorded.is_complete());
    assert_eq!(lab.host.findings().len(), 0);
}

#[test]
fn work_comes_after_what_the_program_has_seen() {
    let lab = Lab::new(2);
    let slice = lab.gpus[0]
        .default_stream()
        .alloc_zeros::<u32>(1)
        .expect("allocated");
    let (one, two) = (lab.stream(0), lab.stream(1));
    launch(&one, [ADD, address(&slice), 1]).expect("launched");
    one.synchronize().expect("synchronized");
    let added = lab.log().len() - 1;
    launch(&two, [ADD, address(&slice), 1]).expect("launched");
    two.synchronize().expect("synchronized");
    let after = lab.log().pop().expect("a task").1;
    assert!(after.0.contains(&TaskId(added as u64)), "by waiting");

    // By looking at pinned memory, without any call.
    // SAFETY: a word is valid whatever its bytes.
    let mut pinned = unsafe { lab.gpus[0].alloc_pinned_with_flags::<u32>(1, 3) }.expect("pinned");
    let bell = pinned.as_mut_ptr().expect("an address") as u64;
    launch(&one, [RING, bell, 9]).expect("launched");
    let ringing = lab.log().len() as u64;
    let waits = std::thread::spawn(move || one.synchronize());
    // SAFETY: pinned memory is alive; the fake world uses atomics as well.
    while unsafe { (*(bell as *const AtomicU32)).load(Ordering::Acquire) } != 9 {
        std::thread::yield_now();
    }
    launch(&two, [ADD, address(&slice), 1]).expect("launched");
    two.synchronize().expect("synchronized");
    let after = lab.log().pop().expect("a task").1;
    assert!(after.0.contains(&TaskId(ringing)), "by looking");
    waits.join().expect("no panic").expect("synchronized");
}

#[test]
fn ranks_start_together() {
    let lab = Lab::new(2);
    let slice = lab.gpus[0]
        .default_stream()
        .alloc_zeros::<u32>(1)
        .expect("allocated");
    lab.gpus[0].synchronize().expect("synchronized");
    let first = lab.log().len();
    let streams = [lab.stream(0), lab.stream(1)];
    let at = address(&slice);
    let (fast, slow) = (streams[1].clone(), streams[0].clone());
    launch(&fast, [ADD, at, 1]).expect("launched");
    let waits = std::thread::spawn(move || fast.synchronize());
    std::thread::sleep(Duration::from_millis(5));
    launch(&slow, [AWAIT, at, 1]).expect("launched");
    slow.synchronize().expect("synchronized");
    waits.join().expect("no panic").expect("synchronized");
    // Neither came after the other, and the first GPU's came first: together, in the order of GPUs.
    let log = lab.log();
    assert_eq!(log.len(), first + 2);
    assert!(log[first + 1].1.0.iter().all(|task| task.0 < first as u64));
}

#[test]
fn a_rank_that_does_not_come_is_no_deadlock() {
    let lab = Lab::new(2);
    let slice = lab.gpus[0]
        .default_stream()
        .alloc_zeros::<u32>(1)
        .expect("allocated");
    let stream = lab.stream(0);
    launch(&stream, [AWAIT, address(&slice), 1]).expect("launched");
    let started = Instant::now();
    stream
        .synchronize()
        .expect("the kernel gave up, and said so elsewhere");
    assert!(started.elapsed() >= Duration::from_millis(60), "patience");
    assert_eq!(lab.host.findings().len(), 0);
}

#[test]
fn ranks_that_wait_for_each_other_are_a_deadlock() {
    let lab = Lab::new(2);
    let slice = lab.gpus[0]
        .default_stream()
        .alloc_zeros::<u32>(1)
        .expect("allocated");
    let at = address(&slice);
    let threads = [0, 1].map(|device| {
        let stream = lab.stream(device);
        std::thread::spawn(move || {
            launch(&stream, [AWAIT, at, 1]).expect("launched");
            stream.synchronize().expect("synchronized");
        })
    });
    for thread in threads {
        thread.join().expect("no panic");
    }
    let findings = lab.host.take_findings();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0].kind, "deadlock");
    assert_eq!(lab.host.findings().len(), 0);
}

#[test]
fn after_a_failure_the_gpu_is_out_of_use() {
    let mut lab = Lab::new(2);
    let slice = lab.gpus[0]
        .default_stream()
        .alloc_zeros::<u32>(1)
        .expect("allocated");
    let at = address(&slice);
    let stream = lab.stream(0);
    launch(&stream, [FAIL, 0, 0]).expect("launched");
    launch(&stream, [ADD, at, 1]).expect("launched");
    let failed = Code::CUDA_ERROR_LAUNCH_FAILED;
    assert_eq!(code(stream.synchronize()), failed);
    assert_eq!(code(launch(&stream, [ADD, at, 1])), failed);
    assert_eq!(code(lab.gpus[0].synchronize()), failed);
    assert_eq!(
        code(lab.gpus[0].default_stream().alloc_zeros::<u32>(1)),
        failed
    );
    lab.gpus[1].synchronize().expect("the other GPU works");
    let findings = lab.host.findings();
    assert!(
        findings[0].text.contains("GPU 0 failed: it was told to"),
        "{findings:?}"
    );

    drop((stream, slice));
    let gpu = lab.gpus.remove(0);
    let ordinal = gpu.ordinal();
    drop(gpu);
    let gpu = CudaContext::new(ordinal).expect("a new context");
    gpu.default_stream()
        .alloc_zeros::<u32>(1)
        .expect("which works");
}

#[test]
fn captured_work_is_replayed() {
    let lab = Lab::new(1);
    // SAFETY: there is one stream.
    unsafe { lab.gpus[0].disable_event_tracking() };
    let stream = lab.stream(0);
    let slice = stream.clone_htod(&[0u32]).expect("uploaded");
    stream.synchronize().expect("synchronized");
    let begin = || stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    let flags = CUgraphInstantiate_flags(0);
    begin().expect("capturing");
    assert_eq!(code(begin()), Code::CUDA_ERROR_ILLEGAL_STATE);
    for value in [1, 2] {
        launch(&stream, [ADD, address(&slice), value]).expect("captured");
    }
    let graph = stream
        .end_capture(flags)
        .expect("captured")
        .expect("a graph");
    assert_eq!(
        stream.clone_dtoh(&slice).expect("downloaded"),
        [0],
        "nothing has run"
    );
    for _ in 0..3 {
        graph.launch().expect("launched");
    }
    assert_eq!(stream.clone_dtoh(&slice).expect("downloaded"), [9]);

    begin().expect("capturing");
    assert_eq!(
        code(stream.synchronize()),
        Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    );
    let ended = stream.end_capture(flags);
    assert_eq!(code(ended), Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    stream.synchronize().expect("the stream works");
    assert!(code(stream.end_capture(flags)) == Code::CUDA_ERROR_ILLEGAL_STATE);
    let default = lab.gpus[0].default_stream();
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    assert_eq!(
        code(default.begin_capture(mode)),
        Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    );
}

/// What symmetric memory does: memory of one GPU, at an address of another.
#[test]
fn memory_travels_as_a_descriptor() {
    let lab = Lab::new(2);
    let kind = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let bytes = 2 << 20;
    // SAFETY: plain C data, for which all zeros is a value.
    let mut request: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    request.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    request.location = sys::CUmemLocation {
        type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: lab.gpus[0].cu_device(),
    };
    let good = |code| assert_eq!(code, Code::CUDA_SUCCESS);
    let map = |handle, device: usize| {
        let mut at = 0;
        let access = sys::CUmemAccessDesc {
            location: sys::CUmemLocation {
                id: lab.gpus[device].cu_device(),
                ..request.location
            },
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the pointers are to live values, the range is ours.
        unsafe {
            good(sys::cuMemAddressReserve(&raw mut at, bytes, 0, 0, 0));
            good(sys::cuMemMap(at, bytes, 0, handle, 0));
            assert_eq!(
                sys::cuMemMap(at, bytes, 0, handle, 0),
                Code::CUDA_ERROR_INVALID_VALUE,
                "twice"
            );
            good(sys::cuMemSetAccess(at, bytes, &raw const access, 1));
        }
        at
    };
    lab.gpus[0].bind_to_thread().expect("bound");
    let (mut handle, mut imported, mut fd) = (0, 0, -1);
    // SAFETY: the pointers are to live values, the descriptor is ours.
    unsafe {
        assert_eq!(
            sys::cuMemCreate(&raw mut handle, 4096, &raw const request, 0),
            Code::CUDA_ERROR_INVALID_VALUE,
            "less than a granule"
        );
        good(sys::cuMemCreate(
            &raw mut handle,
            bytes,
            &raw const request,
            0,
        ));
        good(sys::cuMemExportToShareableHandle(
            (&raw mut fd).cast(),
            handle,
            kind,
            0,
        ));
        let fd = OwnedFd::from_raw_fd(fd);
        let import = |to: &mut u64, fd: i32| {
            sys::cuMemImportFromShareableHandle(to, fd as usize as *mut c_void, kind)
        };
        good(import(&mut imported, fd.as_raw_fd()));
        let file = tempfile::tempfile().expect("a file");
        assert_eq!(
            import(&mut 0, file.as_raw_fd()),
            Code::CUDA_ERROR_NOT_SUPPORTED
        );
        assert_eq!(import(&mut 0, -1), Code::CUDA_ERROR_INVALID_VALUE);
    }
    let (own, peers) = (map(handle, 0), map(imported, 1));
    // SAFETY: what is freed is ours, and nothing uses it any more at the end.
    unsafe {
        result::memset_d8_sync(own, 0x5a, bytes).expect("set");
        lab.gpus[0].synchronize().expect("synchronized");
        let mut word = [0u32];
        result::memcpy_dtoh_sync(&mut word, peers + 400).expect("read");
        assert_eq!(word, [0x5a5a_5a5a]);
        let free = lab.gpus[0].mem_get_info().expect("figures").0;
        for (at, handle) in [(own, handle), (peers, imported)] {
            assert_eq!(
                sys::cuMemAddressFree(at, bytes),
                Code::CUDA_ERROR_INVALID_VALUE,
                "mapped"
            );
            good(sys::cuMemUnmap(at, bytes));
            good(sys::cuMemAddressFree(at, bytes));
            good(sys::cuMemRelease(handle));
        }
        assert_eq!(sys::cuMemRelease(handle), Code::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(lab.gpus[0].mem_get_info().expect("figures").0, free + bytes);
    }
}

#[test]
fn a_host_lives_as_long_as_its_contexts() {
    let mut lab = Lab::new(1);
    let ordinal = lab.host.first_ordinal();
    let gpu = lab.gpus.remove(0);
    let slice = gpu.default_stream().clone_htod(&[7u32]).expect("uploaded");
    drop(lab);
    assert_eq!(
        gpu.default_stream().clone_dtoh(&slice).expect("downloaded"),
        [7]
    );
    let stream = gpu.new_stream().expect("a stream");
    let raw = stream.cu_stream();
    drop((slice, stream, gpu));
    // SAFETY: the handle may be stale, which is what is tested.
    let code = unsafe { sys::cuStreamQuery(raw) };
    assert_eq!(code, Code::CUDA_ERROR_INVALID_HANDLE, "of GPU {ordinal}");
}

#[test]
fn kernels_are_checked_before_they_start() {
    let lab = Lab::new(1);
    let function = load(&lab.gpus[0]);
    let mut args = [0u64; 3];
    let mut launch = |grid, block, smem_bytes| {
        let mut params = [(&raw mut args).cast::<c_void>()];
        // SAFETY: the function takes these 24 bytes.
        code(unsafe {
            result::launch_kernel(function, grid, block, smem_bytes, null_mut(), &mut params)
        })
    };
    let bad = Code::CUDA_ERROR_INVALID_VALUE;
    assert_eq!(launch((0, 1, 1), (32, 1, 1), 0), bad);
    assert_eq!(launch((1, 2, 1), (32, 1, 1), 0), bad);
    assert_eq!(launch((1, 1, 1), (1025, 1, 1), 0), bad);
    assert_eq!(
        launch((1, 1, 1), (32, 1, 1), 200 << 10),
        bad,
        "not allowed yet"
    );
    let smem = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    let ctas = |threads, bytes| {
        // SAFETY: the function is loaded.
        unsafe { result::occupancy::max_active_block_per_multiprocessor(function, threads, bytes) }
    };
    assert_eq!(ctas(384, 200 << 10), Ok(0));
    // SAFETY: the function is loaded.
    let allow = |bytes| unsafe {
        code(result::function::set_function_attribute(
            function, smem, bytes,
        ))
    };
    assert_eq!(allow(232_449), bad);
    assert_eq!(allow(200 << 10), Code::CUDA_SUCCESS);
    assert_eq!((ctas(384, 200 << 10), ctas(384, 0)), (Ok(1), Ok(5)));
    // SAFETY: a text ends with a NUL, and the other is long enough for what is looked at.
    let load = |image: &[u8]| unsafe { result::module::load_data(image.as_ptr().cast()).map(drop) };
    assert_eq!(
        code(load(b".version 9.0\0")),
        Code::CUDA_ERROR_INVALID_IMAGE
    );
    let mut of_gpu = image();
    of_gpu[18] = 190;
    assert_eq!(code(load(&of_gpu)), Code::CUDA_ERROR_NO_BINARY_FOR_GPU);
}

#[test]
fn tensor_maps_are_encoded_and_checked() {
    let _lab = Lab::new(1);
    let encode = |address: u64, stride: u64, swizzle| {
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        // SAFETY: the arrays are as long as the rank says.
        let code = unsafe {
            sys::cuTensorMapEncodeTiled(
                &raw mut map,
                sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                2,
                address as *mut c_void,
                [520, 37].as_ptr(),
                [stride].as_ptr(),
                [64, 128].as_ptr(),
                [1, 1].as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        let bytes: Vec<u8> = map
            .opaque
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        (code, <[u8; 128]>::try_from(bytes).expect("128 bytes"))
    };
    use sys::CUtensorMapSwizzle as Swizzle;
    let swizzle = Swizzle::CU_TENSOR_MAP_SWIZZLE_128B;
    let (code, bytes) = encode(0x1000, 1056, swizzle);
    assert_eq!(code, Code::CUDA_SUCCESS);
    let map = crate::tensor_map::TensorMap::from_bytes(&bytes).expect("a map");
    assert_eq!(
        (map.address, map.rank, map.elem_bytes, map.swizzle_bytes),
        (0x1000, 2, 2, 128)
    );
    assert_eq!(
        encode(0x1008, 1056, swizzle).0,
        Code::CUDA_ERROR_INVALID_VALUE
    );
    assert_eq!(
        encode(0x1000, 1040 + 8, swizzle).0,
        Code::CUDA_ERROR_INVALID_VALUE
    );
    let narrow = Swizzle::CU_TENSOR_MAP_SWIZZLE_64B;
    assert_eq!(
        encode(0x1000, 1056, narrow).0,
        Code::CUDA_ERROR_INVALID_VALUE
    );
}

#[test]
fn a_simulator_that_panics_hangs_nobody() {
    let lab = Lab::new(1);
    let stream = lab.stream(0);
    // The fake world knows no such address.
    launch(&stream, [ADD, 1, 1]).expect("launched");
    assert_eq!(code(stream.synchronize()), Code::CUDA_ERROR_UNKNOWN);
    assert_eq!(lab.host.timeline(), "");
    assert_eq!(code(lab.gpus[0].new_stream()), Code::CUDA_ERROR_UNKNOWN);
}

#[test]
fn what_is_not_supported_says_so() {
    let lab = Lab::new(1);
    let gpu = &lab.gpus[0];
    let limit = sys::CUlimit::CU_LIMIT_STACK_SIZE;
    assert_eq!(code(gpu.get_limit(limit)), Code::CUDA_ERROR_NOT_SUPPORTED);
    assert_eq!(
        code(CudaContext::new_non_primary(0, 0)),
        Code::CUDA_ERROR_NOT_SUPPORTED
    );
}
