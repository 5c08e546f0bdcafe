//! [`Graph`]: steps and what each comes after, the captures that make one, and the user objects that one retains.

use super::queue::{Queues, Step, StreamId};
use super::{Code, Moment, Result};
use cudarc::driver::sys::{CUhostFn, CUstreamCaptureMode};
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::thread::ThreadId;

thread_local! {
    /// Whether this thread is in the destructor of a user object, which must not call the driver.
    static IN_DESTRUCTOR: Cell<bool> = const { Cell::new(false) };
    /// What other captures forbid this thread to call.
    pub(super) static CAPTURE_MODE: Cell<CUstreamCaptureMode> =
        const { Cell::new(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL) };
}

/// Fails in a thread that must not call the driver now.
pub(super) fn ensure_callable() -> Result<()> {
    match IN_DESTRUCTOR.get() {
        true => Err(Code::CUDA_ERROR_NOT_PERMITTED),
        false => Ok(()),
    }
}

/// Something of the program that lives as long as a graph that retains it, or as a launch of one.
#[derive(Debug)]
pub(super) struct UserObject {
    pub data: usize,
    pub destroy: CUhostFn,
}

impl Drop for UserObject {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy {
            IN_DESTRUCTOR.set(true);
            // SAFETY: the program gave both for each other, and this is the only call.
            unsafe { destroy(self.data as *mut c_void) };
            IN_DESTRUCTOR.set(false);
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub handle: u64,
    pub step: Step,
    /// The handles of earlier nodes.
    pub after: Vec<u64>,
}

/// A capture that has not ended.
#[derive(Clone, Debug)]
pub(super) struct Capture {
    /// The stream that began it and will end it.
    pub origin: u64,
    pub thread: ThreadId,
    pub mode: CUstreamCaptureMode,
    /// Whether something was done that captures do not allow.
    pub is_invalid: bool,
}

/// A graph, or what was made of one to launch.
#[derive(Clone, Debug, Default)]
pub(super) struct Graph {
    /// In an order in which they can run.
    pub nodes: Vec<Node>,
    pub objects: Vec<Arc<UserObject>>,
    pub capture: Option<Capture>,
}

impl Graph {
    /// Whether all nodes come one after the other.
    fn is_chain(&self) -> bool {
        let before = [None].into_iter().chain(self.nodes.iter().map(Some));
        before.zip(&self.nodes).all(|(before, node)| match before {
            None => node.after.is_empty(),
            Some(before) => node.after == [before.handle],
        })
    }

    /// Whether the work of `nodes` is over when that of `after` is.
    fn is_covered(&self, nodes: &[u64], after: &[u64]) -> bool {
        let mut covered = after.to_vec();
        for node in self.nodes.iter().rev() {
            if covered.contains(&node.handle) {
                covered.extend(&node.after);
            }
        }
        nodes.iter().all(|node| covered.contains(node))
    }

    /// Enqueues all of it on a stream; nodes that do not come after each other may run side by side.
    pub fn launch(
        self,
        queues: &mut Queues,
        on: StreamId,
        seen: &Moment,
        new_handle: impl Fn() -> u64,
    ) -> Result<()> {
        // Objects live until the launch is over. An empty graph is a place in the stream, too.
        let is_chain = self.is_chain();
        let end = Step::Release(self.objects);
        if is_chain {
            for node in self.nodes {
                queues.push(on, node.step, Vec::new(), seen.clone())?;
            }
            return queues.push(on, end, Vec::new(), seen.clone()).map(drop);
        }
        let start = queues.point(on);
        let mut after_start = seen.clone();
        after_start.join(&start.moment);
        let mut tickets = HashMap::new();
        for node in self.nodes {
            let branch = StreamId {
                device: on.device,
                handle: new_handle(),
            };
            let mut after = start.tickets.clone();
            after.extend(node.after.iter().filter_map(|n| tickets.get(n).cloned()));
            queues.add(branch, false);
            let ticket = queues.push(branch, node.step, after, after_start.clone())?;
            queues.destroy(branch);
            tickets.insert(node.handle, ticket);
        }
        let after = tickets.into_values().collect();
        queues.push(on, end, after, seen.clone()).map(drop)
    }
}

/// A stream that is being captured.
#[derive(Debug)]
pub(super) struct Branch {
    pub graph: u64,
    /// What its next node comes after.
    pub after: Vec<u64>,
}

/// The graphs of a host, and the streams that are being captured.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    pub graphs: HashMap<u64, Graph>,
    pub branches: HashMap<u64, Branch>,
    /// Those that the program holds itself.
    pub objects: HashMap<u64, Arc<UserObject>>,
}

impl Graphs {
    /// What a graph's handle stands for.
    pub fn get(&mut self, handle: u64) -> Result<&mut Graph> {
        let found = self.graphs.get_mut(&handle);
        found.ok_or(Code::CUDA_ERROR_INVALID_HANDLE)
    }

    /// The capture that a stream takes part in.
    pub fn capture(&self, stream: u64) -> Option<&Capture> {
        let branch = self.branches.get(&stream)?;
        self.graphs.get(&branch.graph)?.capture.as_ref()
    }

    pub fn begin(&mut self, stream: u64, handle: u64, mode: CUstreamCaptureMode) -> Result<()> {
        if self.branches.contains_key(&stream) {
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
        let branch = Branch {
            graph: handle,
            after: Vec::new(),
        };
        self.branches.insert(stream, branch);
        Ok(())
    }

    /// The graph's handle.
    pub fn end(&mut self, stream: u64) -> Result<u64> {
        let branch = self.branches.get(&stream);
        let handle = branch.ok_or(Code::CUDA_ERROR_ILLEGAL_STATE)?.graph;
        let capture = self.capture(stream);
        let capture = capture.ok_or(Code::CUDA_ERROR_ILLEGAL_STATE)?.clone();
        if capture.origin != stream {
            return Err(Code::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        let (ours, others) = std::mem::take(&mut self.branches)
            .into_iter()
            .partition::<HashMap<_, _>, _>(|(_, branch)| branch.graph == handle);
        self.branches = others;
        let graph = self.get(handle)?;
        graph.capture = None;
        let joined = &ours[&stream].after;
        let is_joined = ours.values().all(|b| graph.is_covered(&b.after, joined));
        let code = match (capture.is_invalid, is_joined) {
            (true, _) => Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
            (false, false) => Code::CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
            (false, true) => return Ok(handle),
        };
        self.graphs.remove(&handle);
        Err(code)
    }

    /// Adds work to the graph that a stream is captured into.
    pub fn add(&mut self, stream: u64, step: Step, handle: u64) -> Result<()> {
        let Some(branch) = self.branches.get_mut(&stream) else {
            return Err(Code::CUDA_ERROR_ILLEGAL_STATE);
        };
        let node = Node {
            handle,
            step,
            after: std::mem::replace(&mut branch.after, vec![handle]),
        };
        let graph = branch.graph;
        self.get(graph)?.nodes.push(node);
        Ok(())
    }

    /// Adds a graph's nodes to the one that a stream is captured into, as one of its nodes after the other.
    pub fn add_all(&mut self, stream: u64, graph: Graph, new_handle: impl Fn() -> u64) {
        for node in graph.nodes {
            let _ = self.add(stream, node.step, new_handle());
        }
        if let Some(branch) = self.branches.get(&stream)
            && let Some(into) = self.graphs.get_mut(&branch.graph)
        {
            into.objects.extend(graph.objects);
        }
    }

    /// Lets the next work of `stream` come after `nodes`, and takes the stream into the capture if it is in none.
    pub fn join(&mut self, stream: u64, graph: u64, nodes: &[u64]) -> Result<()> {
        let is_captured = self.graphs.get(&graph).is_some_and(|g| g.capture.is_some());
        if !is_captured {
            return Err(Code::CUDA_ERROR_CAPTURED_EVENT);
        }
        let branch = self.branches.entry(stream).or_insert_with(|| Branch {
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

    /// Spoils the capture of a stream, if it is captured.
    pub fn invalidate(&mut self, stream: u64) {
        let Some(branch) = self.branches.get(&stream) else {
            return;
        };
        let graph = self.graphs.get_mut(&branch.graph);
        if let Some(capture) = graph.and_then(|graph| graph.capture.as_mut()) {
            capture.is_invalid = true;
        }
    }

    /// Fails, and spoils the captures in question, if a call that could disturb them is not allowed to this thread: if a
    /// capture of its own is under way, or one of another thread that forbids this to all.
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
