//! Reports of the machine: findings, events and waits.

use super::machine::Machine;
use super::report::{MOST_WRONG_ACCESSES, WaitSpan};
use super::shadow::AccessFault;
use super::stamp::{AccessKind, Origin};
use super::state::thread::{Thread, ThreadState, WaitSite};
use mkernel_spec::abi;
use std::collections::BTreeMap;
use std::fmt::Write;

impl Machine {
    /// Reports a mistake of the running thread.
    pub fn report_at(&mut self, pc: u64, kind: &'static str, text: String) {
        let origin = self.origin(self.current, pc);
        self.reports.add(kind, text, vec![("by".into(), origin)]);
    }

    /// Reports a mistake of two threads together. Each is given with its instruction.
    pub fn report_pair(
        &mut self,
        one: (usize, u64),
        other: (usize, u64),
        kind: &'static str,
        text: String,
    ) {
        let (one, other) = (self.origin(one.0, one.1), self.origin(other.0, other.1));
        self.reports
            .add(kind, text, vec![("by".into(), one), ("and".into(), other)]);
    }

    /// Reports a wrong access to `what`, unless a kernel has aborted. After an abort, kernels run to their ends on the
    /// arbitrary contents of their buffers, and the host discards the results. `later` is the stamp of the access, and
    /// `earlier` the stamp of the access with which it conflicts.
    pub fn report_access_fault(
        &mut self,
        fault: AccessFault,
        earlier: u32,
        later: u32,
        what: &str,
    ) {
        if self.is_aborted {
            return;
        }
        let (before, after) = (
            self.shadow.stamps[earlier as usize],
            self.shadow.stamps[later as usize],
        );
        let (kind, text) = describe_fault(fault, before.kind, after.kind, what);
        let writes = matches!(
            fault,
            AccessFault::Race {
                later_writes: true,
                ..
            }
        );
        let later_access = if writes { "the write" } else { "the access" };
        let mut parts = vec![(later_access.to_owned(), after.origin)];
        let earlier_access = match fault {
            AccessFault::Uninitialised => None,
            AccessFault::Race { earlier_writes, .. } if !earlier_writes => Some("the earlier read"),
            AccessFault::Race { .. } => Some("the earlier write"),
            AccessFault::Unfenced => Some("the write"),
        };
        parts.extend(earlier_access.map(|access| (access.to_owned(), before.origin)));
        self.reports.add(kind, text, parts);
        self.reports.wrong_accesses += 1;
        if self.reports.wrong_accesses > MOST_WRONG_ACCESSES {
            self.fail(format!("more than {MOST_WRONG_ACCESSES} wrong accesses"));
        }
    }

    /// Adds an event of the running thread to the trace, if the timeline is recorded.
    pub fn trace(&mut self, pc: u64, text: impl FnOnce() -> String) {
        if self.options.timeline {
            let origin = self.origin(self.current, pc);
            self.reports.add_event(self.now_ns, origin, text());
        }
    }

    /// Records the wait of the running thread from now on. Role 0 means that the wait of the thread has ended.
    pub fn waiting(&mut self, now: WaitSite) {
        let now_ns = self.now_ns;
        let current = self.current;
        let before = std::mem::replace(&mut self.threads[current].wait_site, now);
        let thread = &mut self.threads[current];
        thread.wait_site.since_ns = now_ns;
        // After a sleep, the next poll forgets earlier polls.
        thread.wait_site.polled_before = if thread.slept { 0 } else { thread.polled.len() };
        self.has_moved |= now.role == 0 && now.wait != 0;
        if self.options.timeline && before.role != 0 && now_ns > before.since_ns {
            let origin = self.origin(current, before.pc);
            let span = WaitSpan {
                origin,
                name: abi::Wait::describe(before.wait),
                from_ns: before.since_ns,
                to_ns: now_ns,
            };
            self.reports.spans.push(span);
        }
    }

    /// Reports a deadlock with the wait of each blocked thread. Threads of a GPU with equal waits are one part of the finding.
    pub fn report_deadlock(&mut self) {
        let mut groups: BTreeMap<(u32, u32, String), (u32, Origin)> = BTreeMap::new();
        for index in 0..self.threads.len() {
            let thread = &self.threads[index];
            if matches!(thread.state, ThreadState::Ended | ThreadState::Ready) {
                continue;
            }
            let text = self.describe_wait(index);
            let origin = self.origin(index, self.threads[index].pc);
            groups
                .entry((origin.device, origin.cta, text))
                .or_insert((0, origin))
                .0 += 1;
        }
        let mut by_text: BTreeMap<(u32, String), (Vec<u32>, u32, Origin)> = BTreeMap::new();
        for ((device, cta, text), (threads, origin)) in groups {
            let entry = by_text
                .entry((device, text))
                .or_insert((Vec::new(), 0, origin));
            entry.0.push(cta);
            entry.1 += threads;
        }
        if by_text.is_empty() {
            return;
        }
        let parts = by_text
            .into_iter()
            .map(|((_, text), (ctas, threads, origin))| {
                let ctas: Vec<String> = ctas.iter().map(u32::to_string).collect();
                let ctas = ctas.join(", ");
                (
                    format!("{threads} threads of CTA {ctas} {text}; the first one"),
                    origin,
                )
            })
            .collect();
        let ended = self.describe_ended();
        let text = format!("no thread can continue{ended}");
        self.reports.add("deadlock", text, parts);
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
            format!("; already ended: {}", ended.join(", "))
        }
    }

    /// Describes the wait of a blocked thread.
    fn describe_wait(&self, thread: usize) -> String {
        let t = &self.threads[thread];
        let mut text = "wait".to_owned();
        if t.wait_site.role != 0 {
            let role = abi::Role::describe(t.wait_site.role);
            let wait = abi::Wait::describe(t.wait_site.wait);
            let index = t.wait_site.index;
            text = format!("wait in role {role} for {wait}, index {index}");
        }
        match t.state {
            ThreadState::Barrier { address, .. } => text + &self.describe_barrier(t.cta, address),
            ThreadState::Polling => text + &describe_poll(t),
            ThreadState::GridBefore => text + " for the kernel before its own",
            ThreadState::Converging => text + " for other threads of their warp, CTA or cluster",
            ThreadState::BulkGroups => text + " for bulk groups",
            ThreadState::Wgmma => {
                text + " for products that not all threads of the warpgroup have committed"
            }
            ThreadState::Ready | ThreadState::Ended => text,
        }
    }

    /// Describes the missing arrivals and bytes of a barrier's current phase.
    fn describe_barrier(&self, cta: usize, address: u32) -> String {
        let barriers = &self.ctas[cta].barriers;
        let Some(barrier) = barriers.iter().find(|barrier| barrier.address == address) else {
            return String::new();
        };
        let (phase, count) = (barrier.phases, barrier.count);
        let mut text = format!(": phase {phase} of the barrier at {address:#x} ");
        let _ = match (barrier.pending, barrier.bytes) {
            (0, bytes @ ..0) => write!(text, "got {} bytes more than were announced", -bytes),
            (lacks, bytes) => write!(text, "lacks {lacks} of {count} arrivals and {bytes} bytes"),
        };
        text
    }
}

/// Describes the value that a polling thread wants, and the value that it has seen.
fn describe_poll(thread: &Thread) -> String {
    let site = &thread.wait_site;
    let polled = thread.polled.get(site.polled_before);
    let seen = site.seen.map(u64::from);
    let seen = seen.or(polled.map(|word| word.seen)).unwrap_or(0);
    format!(
        ", from rank {}: wanted {}, seen {seen}",
        site.peer, site.wanted
    )
}

/// Returns the kind and the text of a finding about an access to `what` of kind `after`, which conflicts with an
/// earlier access of kind `before`.
fn describe_fault(
    fault: AccessFault,
    before: AccessKind,
    after: AccessKind,
    what: &str,
) -> (&'static str, String) {
    let means = |kind: AccessKind| match kind {
        AccessKind::Async => " by TMA or tensor cores",
        AccessKind::AtomicGpu | AccessKind::AtomicSys => " by an atomic or ordered access",
        AccessKind::Host => " by a copy of the host",
        AccessKind::Weak | AccessKind::Early | AccessKind::Sent => "",
    };
    match fault {
        AccessFault::Uninitialised => (
            "uninitialised read",
            format!("{what} is read before it is written for the first time"),
        ),
        AccessFault::Race {
            earlier_writes,
            later_writes,
        } => {
            let is_accessed = if later_writes { "written" } else { "read" };
            let earlier = if earlier_writes { "write" } else { "read" };
            let text = format!(
                "{what} is {is_accessed}{}, not ordered after an earlier {earlier}{}",
                means(after),
                means(before)
            );
            ("race", text)
        }
        AccessFault::Unfenced => {
            let by = means(after);
            let text = format!(
                "{what} is accessed{by} after an ordinary write, without fence.proxy.async between them"
            );
            ("missing proxy fence", text)
        }
    }
}
