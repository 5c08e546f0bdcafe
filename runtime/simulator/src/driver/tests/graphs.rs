//! Tests of captures of several streams, the calls that they forbid, and the objects that graphs retain.

use super::*;
use cudarc::driver::CudaGraph;
use std::sync::mpsc;

const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const LOCAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

/// Returns a host whose slices track no events, and a word.
fn host() -> (TestHost, CudaSlice<u32>) {
    let host = TestHost::new(1);
    // SAFETY: the streams of these tests are ordered by the tests.
    unsafe { host.gpus[0].disable_event_tracking() };
    let slice = host.gpus[0].default_stream().alloc_zeros::<u32>(1);
    host.gpus[0].synchronize().expect("synchronized");
    (host, slice.expect("allocated"))
}

fn add(stream: &CudaStream, slice: &CudaSlice<u32>) {
    launch(stream, [ADD, address(slice), 1]).expect("captured");
}

fn end(stream: &Arc<CudaStream>) -> std::result::Result<CudaGraph, DriverError> {
    let ended = stream.end_capture(CUgraphInstantiate_flags(0));
    ended.map(|graph| graph.expect("a graph"))
}

/// Returns the graph and the last node of a stream that is being captured.
fn last_node(stream: &CudaStream) -> (sys::CUgraph, sys::CUgraphNode) {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut id, mut graph) = (0, null_mut());
    let (mut nodes, mut edges, mut count) = (std::ptr::null(), std::ptr::null(), 0);
    // SAFETY: all pointers are to live values.
    let code = unsafe {
        sys::cuStreamGetCaptureInfo_v3(
            stream.cu_stream(),
            &raw mut status,
            &raw mut id,
            &raw mut graph,
            &raw mut nodes,
            &raw mut edges,
            &raw mut count,
        )
    };
    assert_eq!((code, count), (Code::CUDA_SUCCESS, 1));
    // SAFETY: the graph has one such node.
    (graph, unsafe { *nodes })
}

/// Launches a graph. Returns for each kernel of the graph the number of kernels that happened before that kernel.
fn replay(host: &TestHost, graph: &CudaGraph) -> Vec<usize> {
    let first = host.log().len() as u64;
    graph.launch().expect("launched");
    host.gpus[0].synchronize().expect("synchronized");
    let log = host.log();
    let replayed = log.iter().filter(|(task, _)| task.0 >= first);
    let before = |after: &fake::Moment| after.0.iter().filter(|task| task.0 >= first).count();
    let mut counts: Vec<usize> = replayed.map(|(_, after)| before(after)).collect();
    counts.sort_unstable();
    counts
}

#[test]
fn branches_run_concurrently_unless_they_depend_on_each_other() {
    for ordered in [false, true] {
        let (host, slice) = host();
        let (one, two) = (host.stream(0), host.stream(0));
        one.begin_capture(LOCAL).expect("capturing");
        two.join(&one).expect("forked");
        add(&one, &slice);
        if ordered {
            let (_, mut node) = last_node(&one);
            let flags =
                sys::CUstreamUpdateCaptureDependencies_flags::CU_STREAM_ADD_CAPTURE_DEPENDENCIES;
            // SAFETY: the node belongs to this capture.
            let code = unsafe {
                sys::cuStreamUpdateCaptureDependencies_v2(
                    two.cu_stream(),
                    &raw mut node,
                    std::ptr::null(),
                    1,
                    flags as u32,
                )
            };
            assert_eq!(code, Code::CUDA_SUCCESS);
        }
        add(&two, &slice);
        assert_eq!(code(end(&two)), Code::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        one.join(&two).expect("joined");
        add(&one, &slice);
        let graph = end(&one).expect("captured");
        let second = usize::from(ordered);
        for _ in 0..2 {
            assert_eq!(replay(&host, &graph), [0, second, 2]);
        }
        assert_eq!(one.clone_dtoh(&slice).expect("downloaded"), [6]);

        one.begin_capture(LOCAL).expect("capturing");
        two.join(&one).expect("forked");
        add(&two, &slice);
        assert_eq!(code(end(&one)), Code::CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
        two.synchronize().expect("the streams work");
    }
}

#[test]
fn a_capture_forbids_what_could_disturb_it() {
    let (host, slice) = host();
    let (one, two) = (host.stream(0), host.stream(0));
    let event = two.record_event(None).expect("recorded");
    let query = |mode| {
        let mut mode = mode;
        // SAFETY: the pointer is to a live mode, and the call only affects this thread.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        let code = code(event.try_is_complete());
        // SAFETY: as for the first exchange.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        code
    };
    let (allowed, forbidden) = (
        Code::CUDA_SUCCESS,
        Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
    );
    // The mode of the capture, whether the calling thread captures, and the mode of the calling thread.
    let cases = [
        (GLOBAL, true, GLOBAL, forbidden),
        (GLOBAL, false, GLOBAL, forbidden),
        (GLOBAL, false, LOCAL, allowed),
        (GLOBAL, true, RELAXED, allowed),
        (LOCAL, true, LOCAL, forbidden),
        (LOCAL, false, GLOBAL, allowed),
        (RELAXED, true, GLOBAL, allowed),
    ];
    for (mode, captures_here, ours, expected) in cases {
        let begin = || one.begin_capture(mode).expect("capturing");
        match captures_here {
            true => begin(),
            false => std::thread::scope(|scope| scope.spawn(begin).join().expect("no panic")),
        }
        add(&one, &slice);
        assert_eq!(query(ours), expected, "{mode:?} {captures_here} {ours:?}");
        assert_eq!(end(&one).is_ok(), expected == allowed);
    }

    one.begin_capture(RELAXED).expect("capturing");
    assert_eq!(code(host.gpus[0].synchronize()), forbidden, "in any mode");
    assert!(end(&one).is_err());
}

/// Destroys the object of a test. Sends the result of a call of the driver.
unsafe extern "C" fn destroy(data: *mut c_void) {
    // SAFETY: the test has created the pointer from such a box.
    let gone = unsafe { Box::from_raw(data.cast::<mpsc::Sender<Code>>()) };
    let mut count = 0;
    // SAFETY: the pointer is to a live int.
    let _ = gone.send(unsafe { sys::cuDeviceGetCount(&raw mut count) });
}

#[test]
fn graphs_keep_retained_objects_until_the_last_launch_has_ended() {
    let (host, slice) = host();
    let stream = host.stream(0);
    let (gone, is_gone) = mpsc::channel();
    stream.begin_capture(LOCAL).expect("capturing");
    launch(&stream, [AWAIT, address(&slice), 5]).expect("captured");
    let (graph, _) = last_node(&stream);
    let data = Box::into_raw(Box::new(gone)).cast::<c_void>();
    let mut object = null_mut();
    let flags = sys::CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as u32;
    let moves = sys::CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as u32;
    // SAFETY: the destructor takes this data, and the graph is being captured.
    unsafe {
        let code = sys::cuUserObjectCreate(&raw mut object, data, Some(destroy), 1, flags);
        assert_eq!(code, Code::CUDA_SUCCESS);
        let code = sys::cuGraphRetainUserObject(graph, object, 1, moves);
        assert_eq!(code, Code::CUDA_SUCCESS);
    }
    let graph = end(&stream).expect("captured");
    graph.launch().expect("launched");
    drop(graph);
    assert_eq!(is_gone.try_recv(), Err(mpsc::TryRecvError::Empty));
    launch(&host.stream(0), [ADD, address(&slice), 5]).expect("launched");
    stream.synchronize().expect("the graph's kernel ended");
    let called = is_gone.recv_timeout(Duration::from_secs(10));
    assert_eq!(called, Ok(Code::CUDA_ERROR_NOT_PERMITTED));
}
