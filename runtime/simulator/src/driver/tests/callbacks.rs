//! Tests of host functions in streams and graphs.

use super::*;
use std::sync::Mutex;

/// The record of a host function: the word in pinned memory, which it then doubles, and an answer of the driver.
struct Record {
    word: *mut u32,
    seen: Mutex<Vec<(u32, Code)>>,
}

unsafe extern "C" fn record(data: *mut c_void) {
    // SAFETY: the test keeps the record and its word until its stream has ended.
    unsafe {
        let Record { word, seen } = &*data.cast::<Record>();
        let mut count = 0;
        let answer = sys::cuDeviceGetCount(&raw mut count);
        seen.lock().expect("no panic").push((**word, answer));
        **word *= 2;
    }
}

/// A stream, and a word in pinned memory for kernels and a host function.
struct Lab {
    _host: TestHost,
    stream: Arc<CudaStream>,
    record: Box<Record>,
}

impl Lab {
    fn new() -> Self {
        let host = TestHost::new(1);
        let stream = host.stream(0);
        // SAFETY: the word is written before it is read.
        let word = unsafe { result::malloc_host(4, 0) }.expect("pinned");
        let record = Record {
            word: word.cast(),
            seen: Mutex::default(),
        };
        Self {
            _host: host,
            stream,
            record: Box::new(record),
        }
    }

    /// Enqueues two kernels that write 2 and 5 to the word, and the host function behind each.
    fn enqueue(&self) {
        for value in [2, 5] {
            launch(&self.stream, [RING, self.record.word as u64, value]).expect("enqueued");
            self.call();
        }
    }

    fn call(&self) {
        let data = (&raw const *self.record).cast_mut().cast();
        let stream = self.stream.cu_stream();
        // SAFETY: the record is alive until the stream has ended.
        unsafe { result::stream::launch_host_function(stream, record, data) }.expect("enqueued");
    }

    fn seen(&self) -> Vec<u32> {
        let seen = self.record.seen.lock().expect("no panic");
        let words = seen.iter().map(|(word, answer)| {
            assert_eq!(*answer, Code::CUDA_ERROR_NOT_PERMITTED);
            *word
        });
        words.collect()
    }
}

#[test]
fn host_functions_run_in_the_order_of_their_stream() {
    let lab = Lab::new();
    lab.enqueue();
    lab.stream.synchronize().expect("synchronized");
    assert_eq!(lab.seen(), [2, 5]);
    // SAFETY: the word is alive, and nothing writes it any more.
    assert_eq!(unsafe { *lab.record.word }, 10);
    // SAFETY: the arguments are checked first.
    let code = unsafe { sys::cuLaunchHostFunc(lab.stream.cu_stream(), None, null_mut()) };
    assert_eq!(code, Code::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn a_graph_calls_a_host_function_once_for_each_launch() {
    let lab = Lab::new();
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    lab.stream.begin_capture(mode).expect("capturing");
    lab.enqueue();
    let ended = lab.stream.end_capture(CUgraphInstantiate_flags(0));
    let graph = ended.expect("captured").expect("a graph");
    lab.stream.synchronize().expect("synchronized");
    assert!(lab.seen().is_empty(), "captured functions do not run");
    for _ in 0..3 {
        graph.launch().expect("launched");
    }
    lab.stream.synchronize().expect("synchronized");
    assert_eq!(lab.seen(), [2, 5, 2, 5, 2, 5]);
}

#[test]
fn host_functions_do_not_run_behind_a_failure() {
    let lab = Lab::new();
    launch(&lab.stream, [FAIL, 0, 0]).expect("enqueued");
    lab.call();
    let failed = code(lab.stream.synchronize());
    assert_eq!(failed, Code::CUDA_ERROR_LAUNCH_FAILED);
    assert!(lab.seen().is_empty());
}
