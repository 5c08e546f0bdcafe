//! What is found, and how it is told.

use super::Finding;
use super::image::Image;
use super::machine::{Machine, State, WARP};
use super::shadow::{Fault, Way, Who};
use mkernel_spec::abi;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt::Write;
use std::sync::Arc;

/// Findings of one kind at the same places are told once; of others no more than this.
const MAX_FINDINGS: usize = 50;

/// Events that are kept for a trace.
const TRACE_EVENTS: usize = 4000;

/// What to do with a stretch of memory.
pub(super) enum Fate<'a> {
    /// To copy it there.
    Read(&'a mut [u8]),
    /// To overwrite it with this.
    Write(&'a [u8]),
}

/// Findings before places are looked up.
#[derive(Debug, Default)]
pub(super) struct Reports {
    raw: Vec<Raw>,
    told: HashSet<(&'static str, u64, u64)>,
    trace: VecDeque<(u64, Who, String)>,
    spans: Vec<Span>,
    /// Kernels that ran, by launch, for their places.
    pub images: Vec<Arc<Image>>,
}

#[derive(Debug)]
struct Raw {
    kind: &'static str,
    /// Text, then who did what where.
    text: String,
    parts: Vec<(String, Who)>,
}

/// What a role did for a while.
#[derive(Clone, Debug)]
struct Span {
    who: Who,
    name: &'static str,
    from_ns: u64,
    to_ns: u64,
}

impl Machine {
    /// Something that the running thread does wrong.
    pub fn find_at(&mut self, place: u64, kind: &'static str, text: String) {
        let who = self.who(self.current, place);
        self.reports.add(kind, text, vec![("by".into(), who)]);
    }

    /// The same by two threads.
    pub fn find_pair(
        &mut self,
        one: (usize, u64),
        other: (usize, u64),
        kind: &'static str,
        text: String,
    ) {
        let (one, other) = (self.who(one.0, one.1), self.who(other.0, other.1));
        self.reports
            .add(kind, text, vec![("by".into(), one), ("and".into(), other)]);
    }

    /// A wrong access to memory, of stamp `later`, after that of stamp `earlier`.
    pub fn find_fault(&mut self, fault: Fault, earlier: u32, later: u32, what: &str) {
        let (before, after) = (
            self.shadow.stamps[earlier as usize],
            self.shadow.stamps[later as usize],
        );
        let proxy = |way: Way| match way {
            Way::Async => " by TMA or tensor cores",
            Way::AtomicGpu | Way::AtomicSys => " by an atomic or ordered access",
            Way::Host => " by a copy of the host's",
            Way::Weak | Way::Constant | Way::Early => "",
        };
        let (kind, text, earlier_is) = match fault {
            Fault::Uninitialised => (
                "uninitialised read",
                format!("{what} is read before anything was written there"),
                None,
            ),
            Fault::Race {
                earlier_writes,
                later_writes,
            } => {
                let did = if later_writes { "written" } else { "read" };
                let had = if earlier_writes { "write" } else { "read" };
                (
                    "race",
                    format!(
                        "{what} is {did}{}, not ordered after an earlier {had}{}",
                        proxy(after.way),
                        proxy(before.way)
                    ),
                    Some(format!("the earlier {had}")),
                )
            }
            Fault::Unfenced => (
                "missing proxy fence",
                format!(
                    "{what} is accessed{} after an ordinary write, without fence.proxy.async between them",
                    proxy(after.way)
                ),
                Some("the write".to_owned()),
            ),
            Fault::NotConstant => (
                "read of a constant",
                format!("{what} is read as constant (ld.global.nc), but the same kernel wrote it"),
                Some("the write".to_owned()),
            ),
        };
        let did = if matches!(
            fault,
            Fault::Race {
                later_writes: true,
                ..
            }
        ) {
            "the write"
        } else {
            "the access"
        };
        let mut parts = vec![(did.to_owned(), after.who)];
        if let Some(earlier_is) = earlier_is {
            parts.push((earlier_is, before.who));
        }
        self.reports.add(kind, text, parts);
    }

    /// An event for the trace.
    pub fn note(&mut self, place: u64, text: impl FnOnce() -> String) {
        if self.options.timeline {
            let who = self.who(self.current, place);
            let now_ns = self.now_ns;
            self.reports.trace.push_back((now_ns, who, text()));
            if self.reports.trace.len() > TRACE_EVENTS {
                self.reports.trace.pop_front();
            }
        }
    }

    /// The running thread waits from now on, or no more (role 0).
    pub fn waiting(&mut self, now: super::machine::Awaited) {
        let now_ns = self.now_ns;
        let current = self.current;
        let before = std::mem::replace(&mut self.threads[current].awaited, now);
        let thread = &mut self.threads[current];
        thread.awaited.since_ns = now_ns;
        // The next poll after a sleep forgets those before.
        thread.awaited.polled_before = if thread.slept { 0 } else { thread.polled.len() };
        self.has_moved |= now.role == 0 && now.wait != 0;
        if self.options.timeline && before.role != 0 && now_ns > before.since_ns {
            let who = self.who(current, before.place);
            let span = Span {
                who,
                name: abi::Wait::describe(before.wait),
                from_ns: before.since_ns,
                to_ns: now_ns,
            };
            self.reports.spans.push(span);
        }
    }

    /// Nobody can go on: who waits for what.
    pub fn find_deadlock(&mut self) {
        let mut groups: BTreeMap<(u32, u32, String), (u32, Who)> = BTreeMap::new();
        for index in 0..self.threads.len() {
            let thread = &self.threads[index];
            if matches!(thread.state, State::Ended | State::Ready) {
                continue;
            }
            let text = self.describe_wait(index);
            let who = self.who(index, self.threads[index].place);
            groups
                .entry((who.device, who.cta, text))
                .or_insert((0, who))
                .0 += 1;
        }
        let mut by_text: BTreeMap<(u32, String), (Vec<u32>, u32, Who)> = BTreeMap::new();
        for ((device, cta, text), (threads, who)) in groups {
            let entry = by_text
                .entry((device, text))
                .or_insert((Vec::new(), 0, who));
            entry.0.push(cta);
            entry.1 += threads;
        }
        if by_text.is_empty() {
            return;
        }
        let parts = by_text
            .into_iter()
            .map(|((_, text), (ctas, threads, who))| {
                let ctas: Vec<String> = ctas.iter().map(u32::to_string).collect();
                (
                    format!(
                        "{threads} threads of CTA {} {text}; the first",
                        ctas.join(", ")
                    ),
                    who,
                )
            })
            .collect();
        let ended = self.describe_ended();
        self.reports
            .add("deadlock", format!("nobody can go on{ended}"), parts);
    }

    fn describe_ended(&self) -> String {
        let ended: Vec<String> = self
            .ctas
            .iter()
            .filter(|cta| cta.running == 0 && self.launches[cta.launch].is_some())
            .map(|cta| format!("CTA {} of rank {}", cta.index, cta.device))
            .collect();
        if ended.is_empty() {
            String::new()
        } else {
            format!("; ended already: {}", ended.join(", "))
        }
    }

    fn describe_wait(&self, thread: usize) -> String {
        let t = &self.threads[thread];
        let awaited = &t.awaited;
        let mut text = String::new();
        if awaited.role != 0 {
            let (role, wait) = (
                abi::Role::describe(awaited.role),
                abi::Wait::describe(awaited.wait),
            );
            let _ = write!(
                text,
                "in role {role} wait for {wait}, number {}",
                awaited.index
            );
        } else {
            text.push_str("wait");
        }
        match t.state {
            State::Barrier { address, .. } => {
                let barriers = &self.ctas[t.cta].barriers;
                if let Some(barrier) = barriers.iter().find(|barrier| barrier.address == address) {
                    let (phase, count) = (barrier.phases, barrier.count);
                    let _ = write!(text, ": phase {phase} of the barrier at {address:#x} ");
                    let _ = match (barrier.pending, barrier.bytes) {
                        (0, bytes @ ..0) => {
                            write!(text, "got {} bytes more than were announced", -bytes)
                        }
                        (lacks, bytes) => {
                            write!(text, "lacks {lacks} of {count} arrivals and {bytes} bytes")
                        }
                    };
                }
            }
            State::Polling => {
                let polled = t.polled.get(awaited.polled_before);
                let seen = awaited.seen.map(u64::from);
                let seen = seen.or(polled.map(|word| word.seen)).unwrap_or(0);
                let _ = write!(
                    text,
                    ", from rank {}: wanted {}, seen {seen}",
                    awaited.peer, awaited.wanted
                );
            }
            State::Meeting => text.push_str(" for other threads of their warp, CTA or cluster"),
            State::Bulk => text.push_str(" for bulk groups"),
            State::Mma => {
                text.push_str(" for products that not all threads of the warpgroup have committed");
            }
            State::Ready | State::Ended => {}
        }
        text
    }
}

impl Reports {
    pub fn add(&mut self, kind: &'static str, text: String, parts: Vec<(String, Who)>) {
        let place = |index: usize| parts.get(index).map_or(0, |(_, who)| who.place);
        if self.raw.len() < MAX_FINDINGS && self.told.insert((kind, place(0), place(1))) {
            self.raw.push(Raw { kind, text, parts });
        }
    }

    /// What was found since the last call.
    pub fn take(&mut self) -> Vec<Finding> {
        let raw = std::mem::take(&mut self.raw);
        raw.into_iter()
            .map(|raw| {
                let mut text = raw.text;
                for (what, who) in &raw.parts {
                    let _ = write!(text, "\n  {what}: {}", Self::describe(who));
                    for line in self.lines(who) {
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

    fn describe(who: &Who) -> String {
        if who.place == 0 {
            return "the host".into();
        }
        let (warp, lane) = (who.thread / WARP as u32, who.thread % WARP as u32);
        format!(
            "rank {}, CTA {}, warp {warp}, lane {lane}",
            who.device, who.cta
        )
    }

    fn lines(&self, who: &Who) -> Vec<String> {
        match self.images.get(who.launch as usize) {
            Some(image) if who.place != 0 => image.describe(who.place),
            _ => Vec::new(),
        }
    }

    /// Waits, and the last events, as the JSON that Perfetto and chrome://tracing read: a process per rank, a thread per
    /// warp.
    pub fn timeline(&self) -> String {
        let mut lines = Vec::new();
        let mut warps = BTreeSet::new();
        let spans = self.spans.iter().map(|span| &span.who);
        for who in spans.chain(self.trace.iter().map(|(_, who, _)| who)) {
            warps.insert((who.device, who.cta, who.thread / WARP as u32));
        }
        for (device, cta, warp) in warps {
            let (tid, name) = (thread_id(cta, warp), format!("CTA {cta} warp {warp}"));
            lines.push(json!({"ph": "M", "pid": device, "name": "process_name", "args": {"name": format!("rank {device}")}}));
            lines.push(json!({"ph": "M", "pid": device, "tid": tid, "name": "thread_name", "args": {"name": name}}));
        }
        let common = |who: &Who| {
            (
                who.device,
                thread_id(who.cta, who.thread / WARP as u32),
                who.thread % WARP as u32,
            )
        };
        for Span {
            who,
            name,
            from_ns,
            to_ns,
        } in &self.spans
        {
            let (pid, tid, lane) = common(who);
            let (ts, dur) = (*from_ns as f64 / 1e3, (to_ns - from_ns) as f64 / 1e3);
            let name = format!("waits for {name}");
            lines.push(json!({"ph": "X", "pid": pid, "tid": tid, "ts": ts, "dur": dur, "name": name, "args": {"lane": lane}}));
        }
        let mut places: HashMap<(u32, u64), String> = HashMap::new();
        for (now_ns, who, what) in &self.trace {
            let (pid, tid, lane) = common(who);
            let place = places
                .entry((who.launch, who.place))
                .or_insert_with(|| self.lines(who).first().cloned().unwrap_or_default());
            let ts = *now_ns as f64 / 1e3;
            lines.push(json!({"ph": "i", "s": "t", "pid": pid, "tid": tid, "ts": ts, "name": what, "args": {"lane": lane, "at": place}}));
        }
        json!({"traceEvents": lines}).to_string()
    }
}

/// A number for each warp of a GPU.
fn thread_id(cta: u32, warp: u32) -> u32 {
    cta * 100 + warp
}
