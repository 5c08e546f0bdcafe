//! [`Order`]: the launches on a GPU, one after the other.

use crate::driver::{self, Capture, Event, Node, UserStream};
use crate::error::Error;
use cudarc::driver::CudaContext;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Captures whose launches are known. As many can be under way at once on a GPU, and be kept in order.
const CAPTURES: usize = 64;

/// Keeps the launches of all operators on a GPU in one order, those of several communicators, too: two kernels that each
/// wait for peers and share the GPU's SMs could keep each other from starting, in different ways on different ranks.
///
/// Launches into one stream, launches into several, and those captured into one graph are ordered. A graph's replays are
/// not: nothing that the driver says lets a launch wait for them.
pub(crate) struct Order {
    event: Event,
    /// Streams with launches that are not known to come before another.
    ends: Vec<(UserStream, Launcher)>,
    /// The last launch of each capture.
    captures: VecDeque<Captured>,
}

/// Who launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Launcher(u64);

struct Captured {
    id: u64,
    last: Option<Node>,
    /// What the graph keeps alive already.
    retained: Vec<Launcher>,
}

impl Launcher {
    pub fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

/// The order of a context's GPU.
pub(crate) fn of(ctx: &Arc<CudaContext>) -> Result<Arc<Mutex<Order>>, Error> {
    type Known = Vec<(usize, Weak<Mutex<Order>>)>;
    static KNOWN: Mutex<Known> = Mutex::new(Vec::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|(_, order)| order.strong_count() > 0);
    // Contexts are primary ones, of which a GPU has one.
    let is_here = |(ordinal, _): &&(usize, _)| *ordinal == ctx.ordinal();
    if let Some(order) = known.iter().find(is_here).and_then(|(_, o)| o.upgrade()) {
        return Ok(order);
    }
    let order = Arc::new(Mutex::new(Order {
        event: Event::new(ctx)?,
        ends: Vec::new(),
        captures: VecDeque::new(),
    }));
    known.push((ctx.ordinal(), Arc::downgrade(&order)));
    Ok(order)
}

pub(crate) fn lock(order: &Mutex<Order>) -> MutexGuard<'_, Order> {
    // What it guards is whole between any two statements.
    order.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Order {
    /// Lets `stream` wait for all earlier launches on other streams, as far as that is possible now.
    ///
    /// # Safety
    /// `stream` must be alive and not being captured. If it has no owner, it must stay alive until the next launch on
    /// another stream, or [`Self::forget`].
    pub unsafe fn follow(&mut self, stream: &UserStream, launcher: Launcher) -> Result<(), Error> {
        let mut unordered = Vec::new();
        for end in std::mem::take(&mut self.ends) {
            if end.0 == *stream {
                continue;
            }
            // SAFETY: alive, by the caller of its launch.
            if unsafe { driver::is_capturing(end.0.handle()) }? {
                // Nothing can be recorded in it before the capture ends. The kernels' own check remains.
                unordered.push(end);
                continue;
            }
            // SAFETY: both are alive, by the callers of this launch and of that one.
            unsafe { self.event.order(end.0.handle(), stream.handle())? };
        }
        self.ends = unordered;
        self.ends.push((stream.clone(), launcher));
        Ok(())
    }

    /// Whether a launch in `stream` may come before or beside another.
    pub fn is_end(&self, stream: &UserStream) -> bool {
        self.ends.iter().any(|(end, _)| end == stream)
    }

    /// Gives up streams without owners, whose last launch was this launcher's: it has other means to know their end.
    pub fn forget(&mut self, launcher: Launcher) {
        self.ends
            .retain(|(stream, by)| stream.is_owned() || *by != launcher);
    }

    /// Lets the next launch in `stream` come after all earlier ones of the same capture. Returns whether the graph keeps
    /// the launcher alive already.
    ///
    /// # Safety
    /// `stream` must be alive and take part in `capture`.
    pub unsafe fn follow_captured(
        &mut self,
        stream: &UserStream,
        capture: &Capture,
        launcher: Launcher,
    ) -> Result<bool, Error> {
        let Some(known) = self.captures.iter().find(|known| known.id == capture.id) else {
            return Ok(false);
        };
        if let Some(last) = known.last {
            // SAFETY: by the caller; the node is of this capture, and graphs that are being captured lose none.
            unsafe { capture.follow(stream.handle(), last)? };
        }
        Ok(known.retained.contains(&launcher))
    }

    /// Takes note of a launch that was captured in `stream`, whose graph keeps the launcher alive.
    ///
    /// # Safety
    /// `stream` must be alive.
    pub unsafe fn captured(
        &mut self,
        stream: &UserStream,
        launcher: Launcher,
    ) -> Result<(), Error> {
        // SAFETY: by the caller.
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
        if !captured.retained.contains(&launcher) {
            captured.retained.push(launcher);
        }
        self.captures.truncate(CAPTURES - 1);
        self.captures.push_front(captured);
        Ok(())
    }
}
