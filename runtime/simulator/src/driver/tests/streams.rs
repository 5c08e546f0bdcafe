//! Tests of streams, events and graphs.

use super::*;

#[test]
fn streams_keep_their_order_and_events_join_them() {
    let host = TestHost::new(1);
    let (one, two) = (host.stream(0), host.stream(0));
    let slice = host.gpus[0]
        .default_stream()
        .alloc_zeros::<u32>(1)
        .expect("allocated");
    host.gpus[0].synchronize().expect("synchronized");
    let first = host.log().len();
    let add = |stream: &CudaStream| launch(stream, [ADD, address(&slice), 1]).expect("launched");
    add(&one);
    add(&one);
    let event = one.record_event(None).expect("recorded");
    add(&one);
    add(&two);
    two.wait(&event).expect("enqueued");
    add(&two);
    host.gpus[0].synchronize().expect("synchronized");

    // The seed decides which stream starts first, so tasks are identified by their predecessors.
    let mut before: Vec<BTreeSet<u64>> = host.log()[first..]
        .iter()
        .map(|(_, after)| {
            let tasks = after.0.iter();
            tasks
                .filter_map(|task| task.0.checked_sub(first as u64))
                .collect()
        })
        .collect();
    before.sort_by_key(BTreeSet::len);
    let counts: Vec<_> = before.iter().map(BTreeSet::len).collect();
    assert_eq!(counts, [0, 0, 1, 2, 3], "{before:?}");
    let [_, _, second, third, behind_the_event] = &before[..] else {
        panic!("five tasks");
    };
    assert!(
        second.is_subset(third) && third.is_subset(behind_the_event),
        "{before:?}"
    );
}

#[test]
fn blocking_streams_and_the_default_stream_wait_for_each_other() {
    let host = TestHost::new(1);
    let gpu = &host.gpus[0];
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
    let first = host.log().len();
    for stream in [blocking, null_mut(), blocking] {
        assert_eq!(write(stream, address(&slice)), Code::CUDA_SUCCESS);
    }
    assert_eq!(write(free, address(&slice) + 4), Code::CUDA_SUCCESS);
    gpu.synchronize().expect("synchronized");
    let mut counts: Vec<usize> = host.log()[first..]
        .iter()
        .map(|(_, after)| after.0.iter().filter(|task| task.0 >= first as u64).count())
        .collect();
    counts.sort_unstable();
    assert_eq!(counts, [0, 0, 1, 2]);
}

#[test]
fn queries_return_while_work_is_running() {
    let host = TestHost::new(1);
    let (one, two) = (host.stream(0), host.stream(0));
    let slice = host.gpus[0]
        .default_stream()
        .alloc_zeros::<u32>(1)
        .expect("allocated");
    host.gpus[0].synchronize().expect("synchronized");
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
    let unrecorded: CudaEvent = host.gpus[0].new_event(None).expect("an event");
    assert!(unrecorded.is_complete());
    assert_eq!(host.host.findings().len(), 0);
}

#[test]
fn captured_work_runs_at_each_launch() {
    let host = TestHost::new(1);
    // SAFETY: there is one stream.
    unsafe { host.gpus[0].disable_event_tracking() };
    let stream = host.stream(0);
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
        "captured work does not run"
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
    let default = host.gpus[0].default_stream();
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    assert_eq!(
        code(default.begin_capture(mode)),
        Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    );
}
