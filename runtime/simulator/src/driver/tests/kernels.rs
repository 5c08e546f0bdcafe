//! Tests of kernels: their arguments, limits and failures.

use super::*;

#[test]
fn after_a_failure_the_gpu_cannot_be_used() {
    let mut host = TestHost::new(2);
    let slice = host.gpus[0]
        .default_stream()
        .alloc_zeros::<u32>(1)
        .expect("allocated");
    let at = address(&slice);
    let stream = host.stream(0);
    launch(&stream, [FAIL, 0, 0]).expect("launched");
    launch(&stream, [ADD, at, 1]).expect("launched");
    let failed = Code::CUDA_ERROR_LAUNCH_FAILED;
    assert_eq!(code(stream.synchronize()), failed);
    assert_eq!(code(launch(&stream, [ADD, at, 1])), failed);
    assert_eq!(code(host.gpus[0].synchronize()), failed);
    assert_eq!(
        code(host.gpus[0].default_stream().alloc_zeros::<u32>(1)),
        failed
    );
    host.gpus[1].synchronize().expect("the other GPU works");
    let findings = host.host.findings();
    assert!(
        findings[0].text.contains("GPU 0 failed: on request"),
        "{findings:?}"
    );

    drop((stream, slice));
    let gpu = host.gpus.remove(0);
    let ordinal = gpu.ordinal();
    drop(gpu);
    let gpu = CudaContext::new(ordinal).expect("a new context");
    gpu.default_stream()
        .alloc_zeros::<u32>(1)
        .expect("the new context works");
}

#[test]
fn kernels_are_checked_before_they_start() {
    let host = TestHost::new(1);
    let function = load(&host.gpus[0]);
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
        "more than the limit before it is raised"
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
    // SAFETY: the text ends with a NUL, and the image has its header and its table of sections.
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
fn clusters_are_checked_before_they_start() {
    let host = TestHost::new(1);
    let function = load(&host.gpus[0]);
    let word = host.gpus[0].default_stream().alloc_zeros::<u32>(1);
    let mut args = [ADD, address(&word.expect("allocated")), 1];
    let mut launch = |ctas, x, y| {
        // SAFETY: all zeros are a valid attribute.
        let mut cluster: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
        cluster.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        cluster.value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z: 1 };
        let config = sys::CUlaunchConfig {
            gridDimX: ctas,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 32,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: null_mut(),
            attrs: &raw mut cluster,
            numAttrs: 1,
        };
        let mut params = [(&raw mut args).cast::<c_void>()];
        // SAFETY: the function takes these 24 bytes.
        unsafe {
            sys::cuLaunchKernelEx(&raw const config, function, params.as_mut_ptr(), null_mut())
        }
    };
    assert_eq!(launch(4, 2, 1), Code::CUDA_SUCCESS);
    for (ctas, x, y) in [(3, 2, 1), (4, 2, 2), (16, 16, 1), (4, 0, 1)] {
        let refused = launch(ctas, x, y);
        assert_eq!(
            refused,
            Code::CUDA_ERROR_INVALID_CLUSTER_SIZE,
            "{ctas} {x} {y}"
        );
    }
}

#[test]
fn a_cooperative_launch_must_fit() {
    let host = TestHost::new(1);
    let function = load(&host.gpus[0]);
    let word = host.gpus[0].default_stream().alloc_zeros::<u32>(1);
    let word = word.expect("allocated");
    let mut args = [ADD, address(&word), 1];
    let mut launch = |ctas, is_cooperative, stream: &CudaStream| {
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue {
                cooperative: is_cooperative,
            },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: ctas,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 1024,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: stream.cu_stream(),
            attrs: &raw mut attribute,
            numAttrs: 1,
        };
        let mut params = [(&raw mut args).cast::<c_void>()];
        // SAFETY: the function takes these 24 bytes.
        unsafe {
            sys::cuLaunchKernelEx(&raw const config, function, params.as_mut_ptr(), null_mut())
        }
    };
    let (one, other) = (host.stream(0), host.stream(0));
    let too_large = Code::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    // Two CTAs of 1024 threads fit on each of the 8 SMs.
    assert_eq!(launch(17, 1, &one), too_large);
    assert_eq!(launch(17, 0, &one), Code::CUDA_SUCCESS);
    assert_eq!(launch(16, 1, &one), Code::CUDA_SUCCESS);
    assert_eq!(launch(1, 1, &other), Code::CUDA_SUCCESS);
    one.synchronize().expect("done");
    other.synchronize().expect("done");
    assert_eq!(one.clone_dtoh(&word).expect("read"), [3]);
}

#[test]
fn tensor_maps_are_encoded_and_checked() {
    let _lab = TestHost::new(1);
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
fn no_thread_hangs_after_the_simulator_has_panicked() {
    let host = TestHost::new(1);
    let stream = host.stream(0);
    // The fake world panics, since no memory has this address.
    launch(&stream, [ADD, 1, 1]).expect("launched");
    assert_eq!(code(stream.synchronize()), Code::CUDA_ERROR_UNKNOWN);
    assert_eq!(host.host.timeline(), "");
    assert_eq!(code(host.gpus[0].new_stream()), Code::CUDA_ERROR_UNKNOWN);
}
