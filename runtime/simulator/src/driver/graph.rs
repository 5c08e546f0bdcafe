//! [`Graph`]: operations and their dependencies, the captures that create a graph, and the user objects that it
//! retains.

use super::Moment;
use super::result::{Code, Result};
use super::stream::StreamOp;
use super::streams::{StreamId, Streams};
use super::user_object::UserObject;
use cudarc::driver::sys::CUstreamCaptureMode;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::thread::ThreadId;

thread_local! {
    /// The capture mode of this thread, which decides which calls captures forbid it.
    pub(super) static CAPTURE_MODE: Cell<CUstreamCaptureMode> =
        const { Cell::new(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL) };
}

/// An operation of a graph.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub handle: u64,
    pub op: StreamOp,
    /// The handles of the nodes that it depends on.
    pub after: Vec<u64>,
}

/// A capture that has not ended.
#[derive(Clone, Debug)]
pub(super) struct Capture {
    /// The stream that has begun it and must end it.
    pub origin: u64,
    pub thread: ThreadId,
    pub mode: CUstreamCaptureMode,
    /// Whether a call has invalidated it.
    pub is_invalid: bool,
}

/// A graph, or an executable graph.
#[derive(Clone, Debug, Default)]
pub(super) struct Graph {
    /// The nodes, each after its dependencies.
    pub nodes: Vec<Node>,
    /// The objects that it retains.
    pub objects: Vec<Arc<UserObject>>,
    /// The capture that creates it, until that ends.
    pub capture: Option<Capture>,
}

impl Graph {
    /// Returns whether each node depends on exactly the previous node.
    fn is_chain(&self) -> bool {
        let before = [None].into_iter().chain(self.nodes.iter().map(Some));
        before.zip(&self.nodes).all(|(before, node)| match before {
            None => node.after.is_empty(),
            Some(before) => node.after == [before.handle],
        })
    }

    /// Returns whether `after` depends on all of `nodes`, directly or indirectly.
    fn is_covered(&self, nodes: &[u64], after: &[u64]) -> bool {
        let mut covered = after.to_vec();
        for node in self.nodes.iter().rev() {
            if covered.contains(&node.handle) {
                covered.extend(&node.after);
            }
        }
        nodes.iter().all(|node| covered.contains(node))
    }

    /// Enqueues all nodes on a stream. Nodes that do not depend on each other may run concurrently.
    pub fn launch(
        self,
        streams: &mut Streams,
        on: StreamId,
        seen: &Moment,
        new_handle: impl Fn() -> u64,
    ) -> Result<()> {
        // The last operation retains the objects until the launch has ended. An empty graph has this operation, too.
        let is_chain = self.is_chain();
        let end = StreamOp::Release(self.objects);
        if is_chain {
            for node in self.nodes {
                streams.push(on, node.op, Vec::new(), seen.clone())?;
            }
            return streams.push(on, end, Vec::new(), seen.clone()).map(drop);
        }
        let start = streams.point(on);
        let mut after_start = seen.clone();
        after_start.join(&start.moment);
        let mut completions = HashMap::new();
        for node in self.nodes {
            let branch = StreamId {
                device: on.device,
                handle: new_handle(),
            };
            let mut after = start.completions.clone();
            after.extend(
                node.after
                    .iter()
                    .filter_map(|n| completions.get(n).cloned()),
            );
            streams.add(branch, false);
            let completion = streams.push(branch, node.op, after, after_start.clone())?;
            streams.destroy(branch);
            completions.insert(node.handle, completion);
        }
        let after = completions.into_values().collect();
        streams.push(on, end, after, seen.clone()).map(drop)
    }
}

/// A stream that takes part in a capture.
#[derive(Debug)]
pub(super) struct CapturingStream {
    pub graph: u64,
    /// The nodes that its next node depends on.
    pub after: Vec<u64>,
}

/// The graphs of a host, and the streams that are being captured.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    pub graphs: HashMap<u64, Graph>,
    pub capturing_streams: HashMap<u64, CapturingStream>,
    /// The objects that the program holds itself.
    pub objects: HashMap<u64, Arc<UserObject>>,
}

impl Graphs {
    /// Returns the graph with a handle.
    pub fn get(&mut self, handle: u64) -> Result<&mut Graph> {
        let found = self.graphs.get_mut(&handle);
        found.ok_or(Code::CUDA_ERROR_INVALID_HANDLE)
    }

    /// Returns the capture that a stream takes part in.
    pub fn capture(&self, stream: u64) -> Option<&Capture> {
        let branch = self.capturing_streams.get(&stream)?;
        self.graphs.get(&branch.graph)?.capture.as_ref()
    }

    /// Begins a capture of `stream` into a new graph with this handle.
    pub fn begin(&mut self, stream: u64, handle: u64, mode: CUstreamCaptureMode) -> Result<()> {
        if self.capturing_streams.contains_key(&stream) {
            return Err(Code::CUDA_ERROR_ILLEGAL_STATE);
        }
        let capture = Capture {
            origin: stream,
            thread: std::thread::current().id(),
            mode,
            is_invalid: false,
        };
        let graph = Graph {
            capture: Some(capture),
            ..Graph::default()
        };
        self.graphs.insert(handle, graph);
        let branch = CapturingStream {
            graph: handle,
            after: Vec::new(),
        };
        self.capturing_streams.insert(stream, branch);
        Ok(())
    }

    /// Ends the capture that `stream` has begun, and returns the handle of the graph.
    pub fn end(&mut self, stream: u64) -> Result<u64> {
        let branch = self.capturing_streams.get(&stream);
        let handle = branch.ok_or(Code::CUDA_ERROR_ILLEGAL_STATE)?.graph;
        let capture = self.capture(stream);
        let capture = capture.ok_or(Code::CUDA_ERROR_ILLEGAL_STATE)?.clone();
        if capture.origin != stream {
            return Err(Code::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        let (own, others) = std::mem::take(&mut self.capturing_streams)
            .into_iter()
            .partition::<HashMap<_, _>, _>(|(_, branch)| branch.graph == handle);
        self.capturing_streams = others;
        let graph = self.get(handle)?;
        graph.capture = None;
        let joined = &own[&stream].after;
        let is_joined = own.values().all(|b| graph.is_covered(&b.after, joined));
        let code = match (capture.is_invalid, is_joined) {
            (true, _) => Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
            (false, false) => Code::CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
            (false, true) => return Ok(handle),
        };
        self.graphs.remove(&handle);
        Err(code)
    }

    /// Adds an operation to the graph into which a stream is captured.
    pub fn add(&mut self, stream: u64, op: StreamOp, handle: u64) -> Result<()> {
        let Some(branch) = self.capturing_streams.get_mut(&stream) else {
            return Err(Code::CUDA_ERROR_ILLEGAL_STATE);
        };
        let node = Node {
            handle,
            op,
            after: std::mem::replace(&mut branch.after, vec![handle]),
        };
        let graph = branch.graph;
        self.get(graph)?.nodes.push(node);
        Ok(())
    }

    /// Adds all nodes of a graph, one after the other, to the graph into which a stream is captured.
    pub fn add_all(&mut self, stream: u64, graph: Graph, new_handle: impl Fn() -> u64) {
        for node in graph.nodes {
            let _ = self.add(stream, node.op, new_handle());
        }
        if let Some(branch) = self.capturing_streams.get(&stream)
            && let Some(into) = self.graphs.get_mut(&branch.graph)
        {
            into.objects.extend(graph.objects);
        }
    }

    /// Makes the next node of `stream` depend on `nodes`. If the stream is not being captured, it joins the capture.
    pub fn join(&mut self, stream: u64, graph: u64, nodes: &[u64]) -> Result<()> {
        let is_captured = self.graphs.get(&graph).is_some_and(|g| g.capture.is_some());
        if !is_captured {
            return Err(Code::CUDA_ERROR_CAPTURED_EVENT);
        }
        let branch = self
            .capturing_streams
            .entry(stream)
            .or_insert_with(|| CapturingStream {
                graph,
                after: Vec::new(),
            });
        if branch.graph != graph {
            self.invalidate(stream);
            return Err(Code::CUDA_ERROR_STREAM_CAPTURE_MERGE);
        }
        let new = nodes.iter().filter(|node| !branch.after.contains(node));
        let new: Vec<u64> = new.copied().collect();
        branch.after.extend(new);
        Ok(())
    }

    /// Invalidates the capture of a stream, if it takes part in one.
    pub fn invalidate(&mut self, stream: u64) {
        let Some(branch) = self.capturing_streams.get(&stream) else {
            return;
        };
        let graph = self.graphs.get_mut(&branch.graph);
        if let Some(capture) = graph.and_then(|graph| graph.capture.as_mut()) {
            capture.is_invalid = true;
        }
    }

    /// Checks whether this thread may make a call that could disturb captures. A capture forbids such calls to its own
    /// thread, unless it is relaxed, and a global capture forbids them to all threads. If a capture forbids the call,
    /// it becomes invalid and the function fails.
    pub fn ensure_permitted(&mut self) -> Result<()> {
        use CUstreamCaptureMode::{
            CU_STREAM_CAPTURE_MODE_GLOBAL as GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED as RELAXED,
        };
        let (mode, thread) = (CAPTURE_MODE.get(), std::thread::current().id());
        if mode == RELAXED {
            return Ok(());
        }
        let mut permitted = Ok(());
        for capture in self.graphs.values_mut().filter_map(|g| g.capture.as_mut()) {
            let forbids = match capture.thread == thread {
                true => capture.mode != RELAXED,
                false => mode == GLOBAL && capture.mode == GLOBAL,
            };
            if forbids {
                capture.is_invalid = true;
                permitted = Err(Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
            }
        }
        permitted
    }
}
