//! [`Order`]: the order of the launches on one GPU.

#[cfg(all(test, feature = "simulator"))]
mod tests;

use crate::driver::{self, Capture, Event, GraphNode, UserStream};
use crate::error::Error;
use crate::part::Part;
use cudarc::driver::CudaContext;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The number of captures whose last launch is remembered. If more captures are under way at once on a GPU, the launches in the
/// oldest captures are not kept in order.
const CAPTURES: usize = 64;

/// Keeps the launches of all operators on a GPU in one order, across all communicators.
///
/// Two kernels that wait for peers and share the SMs of a GPU could keep each other from starting, differently on each
/// rank. Launches into one stream, launches into several streams, and launches that are captured into one graph are
/// ordered. Replays of a graph are not ordered, because the driver has no call that makes a launch wait for them.
pub(crate) struct Order {
    event: Event,
    /// The launches that may still run when the next launch starts.
    ends: Vec<End>,
    /// The last launch of each capture, most recent first.
    captures: VecDeque<Captured>,
}

/// The end of a launch that may still run.
#[derive(Clone)]
enum End {
    /// The end of all work in a stream whose last launch was made by `source`.
    Stream {
        stream: UserStream,
        source: LaunchSource,
    },
    /// The end of the work in a stream that may not exist any more.
    Recorded(Arc<Event>),
}

impl End {
    /// Returns whether the launch is in `stream`.
    fn is_in(&self, stream: &UserStream) -> bool {
        matches!(self, Self::Stream { stream: own, .. } if own == stream)
    }
}

/// The identity of an operator, or of anything else that launches kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaunchSource(u64);

struct Captured {
    id: u64,
    last: Option<GraphNode>,
    /// The launch sources that the graph already keeps alive.
    retained: Vec<LaunchSource>,
}

impl LaunchSource {
    pub fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

/// Returns the launch order of a part of a context's GPU. All communicators on this part share the order. Kernels on
/// different parts use different SMs, so they cannot keep each other from starting.
pub(crate) fn of(ctx: &Arc<CudaContext>, part: Part) -> Result<Arc<Mutex<Order>>, Error> {
    type Known = Vec<((usize, Part), Weak<Mutex<Order>>)>;
    static KNOWN: Mutex<Known> = Mutex::new(Vec::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|(_, order)| order.strong_count() > 0);
    // All contexts are primary contexts, and each GPU has one primary context.
    let here = (ctx.ordinal(), part);
    let is_here = |(place, _): &&((usize, Part), _)| *place == here;
    if let Some(order) = known.iter().find(is_here).and_then(|(_, o)| o.upgrade()) {
        return Ok(order);
    }
    let order = Arc::new(Mutex::new(Order {
        event: Event::new(ctx)?,
        ends: Vec::new(),
        captures: VecDeque::new(),
    }));
    known.push((here, Arc::downgrade(&order)));
    Ok(order)
}

pub(crate) fn lock(order: &Mutex<Order>) -> MutexGuard<'_, Order> {
    // Every statement leaves the guarded value consistent, so a poisoned lock can still be used.
    order.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Order {
    /// Makes `stream` wait for all earlier launches on other streams, except for those in streams that are being
    /// captured.
    ///
    /// # Safety
    /// `stream` must be alive and must not be being captured. If it has no owner, it must stay alive until the next
    /// launch on another stream, or until [`Self::forget`].
    pub unsafe fn follow(
        &mut self,
        stream: &UserStream,
        source: LaunchSource,
    ) -> Result<(), Error> {
        // Most launches follow a launch in the same stream.
        let end = End::Stream {
            stream: stream.clone(),
            source,
        };
        if let [only] = &mut self.ends[..]
            && only.is_in(stream)
        {
            *only = end;
            return Ok(());
        }
        let mut unordered = Vec::new();
        // After an error, all ends are kept: operators wait only for these ends before they free memory.
        for earlier_end in &self.ends {
            let earlier = match earlier_end {
                End::Stream { stream: same, .. } if same == stream => continue,
                End::Stream { stream, .. } => stream,
                End::Recorded(event) => {
                    // SAFETY: the caller keeps the stream alive.
                    unsafe { event.hold_back(stream.handle())? };
                    continue;
                }
            };
            // SAFETY: the caller that launched into this stream keeps it alive.
            if unsafe { driver::is_capturing(earlier.handle()) }? {
                // No event can be recorded in the stream before its capture ends. The overlap check of the kernels still
                // applies.
                unordered.push(earlier_end.clone());
                continue;
            }
            // SAFETY: the callers of this launch and of the earlier one keep both streams alive.
            unsafe { self.event.order(earlier.handle(), stream.handle())? };
        }
        self.ends = unordered;
        self.ends.push(end);
        Ok(())
    }

    /// Returns whether the last launch in `stream` may still run when the next launch starts.
    pub fn is_end(&self, stream: &UserStream) -> bool {
        self.ends.iter().any(|end| end.is_in(stream))
    }

    /// Forgets the streams without an owner whose last launch was made by `source`, but keeps the ends of these launches. If a
    /// stream is being captured, the end of its launch is forgotten too, since no event can be recorded in the stream. The
    /// overlap check of the kernels still applies.
    ///
    /// # Safety
    /// The streams into which `source` has launched must be alive. `ctx` must be their context.
    pub unsafe fn forget(&mut self, ctx: &Arc<CudaContext>, source: LaunchSource) {
        for end in std::mem::take(&mut self.ends) {
            let End::Stream { stream, source: by } = &end else {
                self.ends.push(end);
                continue;
            };
            if stream.is_owned() || *by != source {
                self.ends.push(end);
                continue;
            }
            // SAFETY: guaranteed by the caller.
            if let Ok(Some(event)) = unsafe { Event::behind(ctx, stream) } {
                self.ends.push(End::Recorded(Arc::new(event)));
            }
        }
    }

    /// Makes the next launch in `stream` wait for all earlier launches of this capture. Returns whether the graph already keeps
    /// the launch source alive.
    ///
    /// # Safety
    /// `stream` must be alive and take part in `capture`.
    pub unsafe fn follow_captured(
        &mut self,
        stream: &UserStream,
        capture: &Capture,
        source: LaunchSource,
    ) -> Result<bool, Error> {
        let Some(known) = self.captures.iter().find(|known| known.id == capture.id) else {
            return Ok(false);
        };
        if let Some(last) = known.last {
            // SAFETY: guaranteed by the caller. The node belongs to this capture, and a graph that is being captured
            // loses no nodes.
            unsafe { capture.follow(stream.handle(), last)? };
        }
        Ok(known.retained.contains(&source))
    }

    /// Records a launch that was captured in `stream`. The graph keeps `source` alive.
    ///
    /// # Safety
    /// `stream` must be alive.
    pub unsafe fn captured(
        &mut self,
        stream: &UserStream,
        source: LaunchSource,
    ) -> Result<(), Error> {
        // SAFETY: guaranteed by the caller.
        let Some(capture) = (unsafe { Capture::of(stream.handle())? }) else {
            return Ok(());
        };
        let place = self.captures.iter().position(|c| c.id == capture.id);
        let mut captured = place
            .and_then(|place| self.captures.remove(place))
            .unwrap_or(Captured {
                id: capture.id,
                last: None,
                retained: Vec::new(),
            });
        captured.last = capture.last();
        if !captured.retained.contains(&source) {
            captured.retained.push(source);
        }
        self.captures.truncate(CAPTURES - 1);
        self.captures.push_front(captured);
        Ok(())
    }
}
