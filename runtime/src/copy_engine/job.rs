//! [`CopyJob`]: the copies of one operator.

use super::schedule::{addresses_of, schedule};
use super::streams::CopyStreams;
use crate::driver;
use crate::error::Error;
use crate::report::{AbortCause, CopySource, Page};
use mkernel_spec::abi::{MAX_RANKS, State};
use mkernel_spec::plan::Copies;
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every statement leaves the guarded value consistent, so a poisoned lock can still be used.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The copies of one operator, which the copy thread enqueues.
pub(crate) struct CopyJob {
    copies: Copies,
    rank: u32,
    world: u32,
    page: Arc<Page>,
    /// The addresses of the workspaces by rank.
    workspaces: [u64; MAX_RANKS],
    /// Whether a kernel was launched that has not requested its copies yet.
    expected: AtomicBool,
    /// Whether a launch was captured into a graph.
    captured: AtomicBool,
    /// The last epoch whose request was handled.
    served: AtomicU32,
    /// Whether the operator is alive. The lock is held while a request is handled, so dropping the operator waits until the
    /// request has been handled.
    live: Mutex<bool>,
    failure: Mutex<Option<Error>>,
    /// Locks that tests hold to stop the thread before its claim, and between its claim and the copies.
    #[cfg(test)]
    pub pauses: [Mutex<()>; 2],
}

impl CopyJob {
    pub fn new(
        copies: Copies,
        rank: u32,
        world: u32,
        page: Arc<Page>,
        workspaces: [u64; MAX_RANKS],
    ) -> Self {
        Self {
            copies,
            rank,
            world,
            page,
            workspaces,
            expected: AtomicBool::new(false),
            captured: AtomicBool::new(false),
            served: AtomicU32::new(0),
            live: Mutex::new(true),
            failure: Mutex::default(),
            #[cfg(test)]
            pauses: Default::default(),
        }
    }

    /// Returns whether a kernel has a request that was not handled yet, or waits for an answer to a request.
    pub fn is_busy(&self) -> bool {
        #[cfg(test)]
        if self.pauses.iter().any(|pause| pause.try_lock().is_err()) {
            return false;
        }
        let served = self.served.load(Ordering::Relaxed);
        self.page.doorbell() != served || self.owes_answer(served)
    }

    fn owes_answer(&self, served: u32) -> bool {
        self.page.is_withdrawn() && self.page.answered() != served
    }

    /// Announces a launch, so that the thread polls for the request of its kernel.
    pub fn expect(&self) {
        self.expected.store(true, Ordering::Relaxed);
    }

    /// Announces replays of a graph, whose requests come without a launch.
    pub fn capture(&self) {
        self.captured.store(true, Ordering::Relaxed);
    }

    /// Returns the error that prevented copies from being enqueued, if there is one.
    pub fn failure(&self) -> Option<Error> {
        lock(&self.failure).clone()
    }

    pub fn is_captured(&self) -> bool {
        self.captured.load(Ordering::Relaxed)
    }

    pub fn is_expected(&self) -> bool {
        self.expected.load(Ordering::Relaxed)
    }

    /// Handles the request of a kernel, if there is one. Returns whether there was one.
    pub(super) fn poll(&self, engine: &CopyStreams) -> bool {
        let epoch = self.page.doorbell();
        let served = self.served.load(Ordering::Relaxed);
        if epoch == served {
            return self.owes_answer(served) && self.answer(engine, served);
        }
        let live = lock(&self.live);
        self.served.store(epoch, Ordering::Relaxed);
        self.expected.store(false, Ordering::Relaxed);
        if !*live {
            return true;
        }
        #[cfg(test)]
        drop(lock(&self.pauses[0]));
        // After an abort no rank waits for the copies.
        if !self.page.claim(epoch) || self.page.is_aborted() {
            self.page.answer(epoch);
            return true;
        }
        #[cfg(test)]
        drop(lock(&self.pauses[1]));
        let a = self.page.copy_source();
        // SAFETY: the kernel that made the request had not withdrawn it when its copies were claimed. So it runs until
        // all of them have been read, which the `sent` words report. If its waits are aborted, it runs until the answer
        // to this epoch, which is written only when the streams are done. If it traps, nothing runs in the context any
        // more. Its caller keeps A alive until the kernel has ended. The workspaces are mapped while the operator is
        // alive, and dropping the operator waits for these streams.
        if let Err(error) = unsafe { self.enqueue(engine, epoch, a) } {
            self.fail(error);
        }
        true
    }

    /// Answers a kernel whose waits were aborted, once its copies are done. Returns whether the kernel was answered.
    fn answer(&self, engine: &CopyStreams, epoch: u32) -> bool {
        match engine.are_done() {
            Ok(true) => {}
            Ok(false) => return false,
            // In a context with a fatal error, neither copies nor kernels run any more.
            Err(error) if driver::has_ended_context(&error) => {}
            Err(error) => {
                self.fail(error);
                return false;
            }
        }
        self.page.answer(epoch);
        true
    }

    /// Records the first error and ends all waits of the kernel.
    pub fn fail(&self, error: Error) {
        lock(&self.failure).get_or_insert(error);
        self.page.abort(AbortCause::Host);
    }

    /// # Safety
    /// A and the workspaces must stay alive until the copies are done.
    unsafe fn enqueue(&self, engine: &CopyStreams, epoch: u32, a: CopySource) -> Result<(), Error> {
        for step in schedule(&self.copies, self.rank, self.world) {
            let stream = engine.to(step.peer, self.rank);
            let copy = addresses_of(
                &self.copies,
                self.rank,
                epoch,
                &step,
                a,
                self.workspaces[step.peer as usize],
            );
            // SAFETY: guaranteed by the caller. The plan's offsets are inside of the workspaces.
            unsafe {
                engine.copy(stream, &copy)?;
                engine.write_flag(stream, copy.flag, epoch, &self.page)?;
            }
        }
        let own = self.workspaces[self.rank as usize];
        for peer in (0..self.world).filter(|peer| *peer != self.rank) {
            let sent = own + (offset_of!(State, sent) + 4 * peer as usize) as u64;
            // SAFETY: see above.
            unsafe { engine.write_flag(engine.to(peer, self.rank), sent, epoch, &self.page)? };
        }
        Ok(())
    }

    /// Ends the use of the operator's memory. Returns when no request is being handled. Later requests are ignored.
    pub fn end(&self) {
        *lock(&self.live) = false;
    }
}
