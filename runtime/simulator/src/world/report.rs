//! [`Reports`]: the findings of a machine, its trace of events, and its timeline.

use super::image::Image;
use super::interface::Finding;
use super::stamp::Origin;
use super::state::convergence::WARP;
use serde_json::json;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt::Write;
use std::sync::{Arc, Weak};

/// The largest number of findings between two calls of [`Reports::take`].
const MAX_FINDINGS: usize = 50;

/// The number of wrong accesses after which a kernel is ended. A kernel that computes with unwritten words may otherwise loop
/// for hours.
pub(super) const MOST_WRONG_ACCESSES: usize = 100_000;

/// The number of images that are kept after their kernels have been unloaded, for findings about earlier accesses. Each has an
/// open file.
const IMAGES_KEPT: usize = 16;

/// The number of latest events that the trace keeps.
const TRACE_EVENTS: usize = 4000;

/// Findings and events. Instructions are looked up in the source only when they are taken.
#[derive(Debug, Default)]
pub(super) struct Reports {
    raw: Vec<RawFinding>,
    /// The kind and the first two instructions of each finding so far. A second finding with an equal key is dropped.
    reported: HashSet<(&'static str, u64, u64)>,
    /// The number of wrong accesses so far, dropped findings included.
    pub wrong_accesses: usize,
    trace: VecDeque<(u64, Origin, String)>,
    pub spans: Vec<WaitSpan>,
    /// The image of each launch's kernel, which has the lines of its instructions.
    images: Vec<Weak<Image>>,
    /// The images of the last launches, the latest last, so that they do not end with their modules.
    latest: VecDeque<Arc<Image>>,
}

/// A finding without source lines.
#[derive(Debug)]
struct RawFinding {
    kind: &'static str,
    text: String,
    /// The accesses or waits that are involved: a description, and the thread and the instruction.
    parts: Vec<(String, Origin)>,
}

/// A wait of a role, for the timeline.
#[derive(Clone, Debug)]
pub(super) struct WaitSpan {
    pub origin: Origin,
    pub name: &'static str,
    pub from_ns: u64,
    pub to_ns: u64,
}

impl Reports {
    /// Adds a finding, unless findings are too many or its instructions have been reported already.
    pub fn add(&mut self, kind: &'static str, text: String, parts: Vec<(String, Origin)>) {
        let pc = |index: usize| parts.get(index).map_or(0, |(_, origin)| origin.pc);
        if self.raw.len() < MAX_FINDINGS && self.reported.insert((kind, pc(0), pc(1))) {
            self.raw.push(RawFinding { kind, text, parts });
        }
    }

    /// Records the image of the next launch.
    pub fn add_launch(&mut self, image: &Arc<Image>) {
        self.images.push(Arc::downgrade(image));
        self.latest.retain(|kept| !Arc::ptr_eq(kept, image));
        self.latest.push_back(image.clone());
        if self.latest.len() > IMAGES_KEPT {
            self.latest.pop_front();
        }
    }

    /// Adds an event to the trace, and drops the oldest one if the trace is full.
    pub fn add_event(&mut self, now_ns: u64, origin: Origin, text: String) {
        self.trace.push_back((now_ns, origin, text));
        if self.trace.len() > TRACE_EVENTS {
            self.trace.pop_front();
        }
    }

    /// Returns the findings since the last call, with the source lines of their instructions.
    pub fn take(&mut self) -> Vec<Finding> {
        let raw = std::mem::take(&mut self.raw);
        raw.into_iter()
            .map(|raw| {
                let mut text = raw.text;
                for (what, origin) in &raw.parts {
                    let _ = write!(text, "\n  {what}: {}", Self::describe(origin));
                    for line in self.lines(origin) {
                        let _ = write!(text, "\n      {line}");
                    }
                }
                Finding {
                    kind: raw.kind,
                    text,
                }
            })
            .collect()
    }

    fn describe(origin: &Origin) -> String {
        if origin.pc == 0 {
            return "the host".into();
        }
        let (warp, lane) = (origin.thread / WARP as u32, origin.thread % WARP as u32);
        format!(
            "rank {}, CTA {}, warp {warp}, lane {lane}",
            origin.device, origin.cta
        )
    }

    /// Returns the source lines of an instruction.
    fn lines(&self, origin: &Origin) -> Vec<String> {
        match self.images.get(origin.launch as usize).map(Weak::upgrade) {
            _ if origin.pc == 0 => Vec::new(),
            Some(Some(image)) => image.describe(origin.pc),
            Some(None) => vec!["a kernel that has been unloaded since".into()],
            None => Vec::new(),
        }
    }

    /// Returns waits and the latest events as JSON for Perfetto and chrome://tracing. Ranks are processes there, and
    /// warps are threads.
    pub fn timeline(&self) -> String {
        let mut lines = Vec::new();
        let mut warps = BTreeSet::new();
        let spans = self.spans.iter().map(|span| &span.origin);
        for origin in spans.chain(self.trace.iter().map(|(_, origin, _)| origin)) {
            warps.insert((origin.device, origin.cta, origin.thread / WARP as u32));
        }
        for (device, cta, warp) in warps {
            let (tid, name) = (thread_id(cta, warp), format!("CTA {cta} warp {warp}"));
            lines.push(json!({"ph": "M", "pid": device, "name": "process_name", "args": {"name": format!("rank {device}")}}));
            lines.push(json!({"ph": "M", "pid": device, "tid": tid, "name": "thread_name", "args": {"name": name}}));
        }
        let common = |origin: &Origin| {
            (
                origin.device,
                thread_id(origin.cta, origin.thread / WARP as u32),
                origin.thread % WARP as u32,
            )
        };
        for WaitSpan {
            origin,
            name,
            from_ns,
            to_ns,
        } in &self.spans
        {
            let (pid, tid, lane) = common(origin);
            let (ts, dur) = (*from_ns as f64 / 1e3, (to_ns - from_ns) as f64 / 1e3);
            let name = format!("waits for {name}");
            lines.push(json!({"ph": "X", "pid": pid, "tid": tid, "ts": ts, "dur": dur, "name": name, "args": {"lane": lane}}));
        }
        let mut lines_by_pc: HashMap<(u32, u64), String> = HashMap::new();
        for (now_ns, origin, what) in &self.trace {
            let (pid, tid, lane) = common(origin);
            let line = lines_by_pc
                .entry((origin.launch, origin.pc))
                .or_insert_with(|| self.lines(origin).first().cloned().unwrap_or_default());
            let ts = *now_ns as f64 / 1e3;
            lines.push(json!({"ph": "i", "s": "t", "pid": pid, "tid": tid, "ts": ts, "name": what, "args": {"lane": lane, "at": line}}));
        }
        json!({"traceEvents": lines}).to_string()
    }
}

/// Returns the number of a warp within its GPU.
fn thread_id(cta: u32, warp: u32) -> u32 {
    cta * 100 + warp
}
