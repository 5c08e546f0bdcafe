//! Captures of several streams, what they forbid, and what graphs retain.

use super::*;
use cudarc::driver::CudaGraph;
use std::sync::mpsc;

const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const LOCAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

/// A lab whose slices track no events, and a word.
fn lab() -> (Lab, CudaSlice<u32>) {
    let lab = Lab::new(1);
    // SAFETY: the streams of these tests are ordered by the tests.
    unsafe { lab.gpus[0].disable_event_tracking() };
    let slice = lab.gpus[0].default_stream().alloc_zeros::<u32>(1);
    lab.gpus[0].synchronize().expect("synchronized");
    (lab, slice.expect("allocated"))
}

fn add(stream: &CudaStream, slice: &CudaSlice<u32>) {
    launch(stream, [ADD, address(slice), 1]).expect("captured");
}

fn end(stream: &Arc<CudaStream>) -> std::result::Result<CudaGraph, DriverError> {
    let ended = stream.end_capture(CUgraphInstantiate_flags(0));
    ended.map(|graph| graph.expect("a graph"))
}

/// The graph and the last node of a stream that is being captured.
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
    // SAFETY: there is one.
    (graph, unsafe { *nodes })
}

/// For each kernel of the last replay, how many kernels of it came before.
fn replay(lab: &Lab, graph: &CudaGraph) -> Vec<usize> {
    let first = lab.log().len() as u64;
    graph.launch().expect("launched");
    lab.gpus[0].synchronize().expect("synchronized");
    let log = lab.log();
    let replayed = log.iter().filter(|(task, _)| task.0 >= first);
    let before = |after: &fake::Moment| after.0.iter().filter(|task| task.0 >= first).count();
    let mut counts: Vec<usize> = replayed.map(|(_, after)| before(after)).collect();
    counts.sort_unstable();
    counts
}

#[test]
fn branches_run_side_by_side_unless_they_are_told_not_to() {
    for ordered in [false, true] {
        let (lab, slice) = lab();
        let (one, two) = (lab.stream(0), lab.stream(0));
        one.begin_capture(LOCAL).expect("capturing");
        two.join(&one).expect("forked");
        add(&one, &slice);
        if ordered {
            let (_, mut node) = last_node(&one);
            let flags =
                sys::CUstreamUpdateCaptureDependencies_flags::CU_STREAM_ADD_CAPTURE_DEPENDENCIES;
            // SAFETY: the node is one of this capture's.
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
            assert_eq!(replay(&lab, &graph), [0, second, 2]);
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
    let (lab, slice) = lab();
    let (one, two) = (lab.stream(0), lab.stream(0));
    let event = two.record_event(None).expect("recorded");
    let query = |mode| {
        let mut mode = mode;
        // SAFETY: the mode is one; it is this thread's alone.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        let code = code(event.try_is_complete());
        // SAFETY: as above.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        code
    };
    let (allowed, forbidden) = (
        Code::CUDA_SUCCESS,
        Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
    );
    // By the capture's mode, whose thread captures, and the calling thread's mode.
    let cases = [
        (GLOBAL, true, GLOBAL, forbidden),
        (GLOBAL, false, GLOBAL, forbidden),
        (GLOBAL, false, LOCAL, allowed),
        (GLOBAL, true, RELAXED, allowed),
        (LOCAL, true, LOCAL, forbidden),
        (LOCAL, false, GLOBAL, allowed),
        (RELAXED, true, GLOBAL, allowed),
    ];
    for (mode, here, ours, expected) in cases {
        let begin = || one.begin_capture(mode).expect("capturing");
        match here {
            true => begin(),
            false => std::thread::scope(|scope| scope.spawn(begin).join().expect("no panic")),
        }
        add(&one, &slice);
        assert_eq!(query(ours), expected, "{mode:?} {here} {ours:?}");
        assert_eq!(end(&one).is_ok(), expected == allowed);
    }

    one.begin_capture(RELAXED).expect("capturing");
    assert_eq!(code(lab.gpus[0].synchronize()), forbidden, "in any mode");
    assert!(end(&one).is_err());
}

/// What a test's object says when it goes: whether the driver could be called.
unsafe extern "C" fn tell(data: *mut c_void) {
    // SAFETY: the test made it of such a box.
    let gone = unsafe { Box::from_raw(data.cast::<mpsc::Sender<Code>>()) };
    let mut count = 0;
    // SAFETY: the pointer is to a live int.
    let _ = gone.send(unsafe { sys::cuDeviceGetCount(&raw mut count) });
}

#[test]
fn graphs_keep_what_they_retain_until_the_last_launch_is_over() {
    let (lab, slice) = lab();
    let stream = lab.stream(0);
    let (gone, is_gone) = mpsc::channel();
    stream.begin_capture(LOCAL).expect("capturing");
    launch(&stream, [AWAIT, address(&slice), 5]).expect("captured");
    let (graph, _) = last_node(&stream);
    let data = Box::into_raw(Box::new(gone)).cast::<c_void>();
    let mut object = null_mut();
    let flags = sys::CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as u32;
    let moves = sys::CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as u32;
    // SAFETY: the data is what the destructor takes, and the graph is being captured.
    unsafe {
        let code = sys::cuUserObjectCreate(&raw mut object, data, Some(tell), 1, flags);
        assert_eq!(code, Code::CUDA_SUCCESS);
        let code = sys::cuGraphRetainUserObject(graph, object, 1, moves);
        assert_eq!(code, Code::CUDA_SUCCESS);
    }
    let graph = end(&stream).expect("captured");
    graph.launch().expect("launched");
    drop(graph);
    assert_eq!(is_gone.try_recv(), Err(mpsc::TryRecvError::Empty));
    launch(&lab.stream(0), [ADD, address(&slice), 5]).expect("launched");
    stream.synchronize().expect("the graph's kernel ended");
    let said = is_gone.recv_timeout(Duration::from_secs(10));
    assert_eq!(said, Ok(Code::CUDA_ERROR_NOT_PERMITTED));
}
