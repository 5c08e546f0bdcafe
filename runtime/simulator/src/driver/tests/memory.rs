//! Tests of memory and of copies.

use super::*;

#[test]
fn copies_preserve_the_bytes() {
    let host = TestHost::new(2);
    let stream = host.gpus[0].default_stream();
    let words: Vec<u32> = (0..1000).collect();
    let mut slice = stream.clone_htod(&words).expect("uploaded");
    launch(&stream, [ADD, address(&slice) + 4, 41]).expect("launched");
    let back = stream.clone_dtoh(&slice).expect("downloaded");
    assert_eq!((back[0], back[1], back[999]), (0, 42, 999));
    // Copies to a peer GPU and from there to the program.
    let peer = host.gpus[1].default_stream();
    let copy = peer.clone_dtod(&slice).expect("copied");
    stream.memset_zeros(&mut slice).expect("zeroed");
    assert_eq!(peer.clone_dtoh(&copy).expect("downloaded"), back);
    assert_eq!(
        stream.clone_dtoh(&slice).expect("downloaded"),
        vec![0; 1000]
    );
    let free = host.gpus[0].mem_get_info().expect("figures").0;
    drop((slice, copy));
    stream.synchronize().expect("synchronized");
    assert_eq!(host.gpus[0].mem_get_info().expect("figures").0, free + 4000);
}

#[test]
fn rows_are_copied_with_their_pitches() {
    let host = TestHost::new(1);
    let stream = host.gpus[0].default_stream();
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
    let host = TestHost::new(1);
    let stream = host.gpus[0].default_stream();
    let slice = stream.alloc_zeros::<u32>(128).expect("allocated");
    let to = address(&slice);
    // SAFETY: the driver refuses ranges that are not valid, which this test checks.
    let set =
        |to, bytes| unsafe { code(result::memset_d8_async(to, 1, bytes, stream.cu_stream())) };
    assert_eq!(set(to, 512), Code::CUDA_SUCCESS);
    assert_eq!(set(to, 513), Code::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(set(to - 1, 1), Code::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(set(u64::MAX, 16), Code::CUDA_ERROR_INVALID_VALUE);
    // SAFETY: as for `set`.
    let write = |to| unsafe { sys::cuStreamWriteValue32_v2(stream.cu_stream(), to, 7, 0) };
    assert_eq!(write(to + 508), Code::CUDA_SUCCESS);
    assert_eq!(write(to + 2), Code::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(write(to + 512), Code::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(stream.clone_dtoh(&slice).expect("downloaded")[127], 7);
    // SAFETY: as for `set`.
    let free = |address| unsafe { code(result::free_sync(address)) };
    assert_eq!(free(to + 512), Code::CUDA_ERROR_INVALID_VALUE);
}

fn good(code: Code) {
    assert_eq!(code, Code::CUDA_SUCCESS);
}

/// The request for memory of a GPU.
fn allocation_on(host: &TestHost, gpu: usize) -> sys::CUmemAllocationProp {
    // SAFETY: the struct is plain C data, for which all zeros are valid.
    let mut request: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    request.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    request.location = sys::CUmemLocation {
        type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: host.gpus[gpu].cu_device(),
    };
    request
}

/// Maps all of an allocation of `bytes` bytes for a GPU.
fn map(host: &TestHost, handle: u64, gpu: usize, bytes: usize) -> u64 {
    let mut at = 0;
    let access = sys::CUmemAccessDesc {
        location: sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: host.gpus[gpu].cu_device(),
        },
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: the pointers are to live values, and the range belongs to this test.
    unsafe {
        good(sys::cuMemAddressReserve(&raw mut at, bytes, 0, 0, 0));
        good(sys::cuMemMap(at, bytes, 0, handle, 0));
        assert_eq!(
            sys::cuMemMap(at, bytes, 0, handle, 0),
            Code::CUDA_ERROR_INVALID_VALUE,
            "the range is already mapped"
        );
        good(sys::cuMemSetAccess(at, bytes, &raw const access, 1));
    }
    at
}

/// Maps memory of one GPU for another GPU, as symmetric memory does.
#[test]
fn memory_is_shared_by_a_descriptor() {
    let host = TestHost::new(2);
    let kind = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let bytes = 2 << 20;
    let request = allocation_on(&host, 0);
    host.gpus[0].bind_to_thread().expect("bound");
    let (mut handle, mut imported, mut fd) = (0, 0, -1);
    // SAFETY: the pointers are to live values, and the descriptor belongs to this test.
    unsafe {
        assert_eq!(
            sys::cuMemCreate(&raw mut handle, 4096, &raw const request, 0),
            Code::CUDA_ERROR_INVALID_VALUE,
            "less than the granularity"
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
    let (own, peers) = (map(&host, handle, 0, bytes), map(&host, imported, 1, bytes));
    // SAFETY: the memory belongs to this test, and nothing uses it after it is freed.
    unsafe {
        result::memset_d8_sync(own, 0x5a, bytes).expect("set");
        host.gpus[0].synchronize().expect("synchronized");
        let mut word = [0u32];
        result::memcpy_dtoh_sync(&mut word, peers + 400).expect("read");
        assert_eq!(word, [0x5a5a_5a5a]);
        let free = host.gpus[0].mem_get_info().expect("figures").0;
        for (at, handle) in [(own, handle), (peers, imported)] {
            assert_eq!(
                sys::cuMemAddressFree(at, bytes),
                Code::CUDA_ERROR_INVALID_VALUE,
                "the range is still mapped"
            );
            good(sys::cuMemUnmap(at, bytes));
            good(sys::cuMemAddressFree(at, bytes));
            good(sys::cuMemRelease(handle));
        }
        assert_eq!(sys::cuMemRelease(handle), Code::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(
            host.gpus[0].mem_get_info().expect("figures").0,
            free + bytes
        );
    }
}

#[test]
fn a_host_lives_as_long_as_its_contexts() {
    let mut host = TestHost::new(1);
    let ordinal = host.host.first_ordinal();
    let gpu = host.gpus.remove(0);
    let slice = gpu.default_stream().clone_htod(&[7u32]).expect("uploaded");
    drop(host);
    assert_eq!(
        gpu.default_stream().clone_dtoh(&slice).expect("downloaded"),
        [7]
    );
    let stream = gpu.new_stream().expect("a stream");
    let raw = stream.cu_stream();
    drop((slice, stream, gpu));
    // SAFETY: the driver checks the handle, which is stale.
    let code = unsafe { sys::cuStreamQuery(raw) };
    assert_eq!(code, Code::CUDA_ERROR_INVALID_HANDLE, "of GPU {ordinal}");
}
