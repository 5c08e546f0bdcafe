//! Frees memory that the GPU may still use. The thread that drops the memory waits for the GPU for a limited time; after that,
//! a background thread, the reaper, waits. The reaper also drops values that CUDA graphs have kept alive, since the driver's
//! callback threads must not call the driver.

use crate::driver::{self, Uncaptured};
use crate::error::{Error, with_causes};
use std::any::Any;
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// An object without an owner that the GPU may still use.
pub(crate) trait Retired: Send {
    /// Returns a name for log messages.
    fn name(&self) -> String;

    /// Returns whether the GPU still uses the object. The calling thread must not wait for [`GpuUse::Capturing`].
    fn is_unused(&mut self) -> Result<GpuUse, Error>;
}

/// The use of a retired object by the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GpuUse {
    /// The GPU does not use the object any more.
    Unused,
    /// Work that uses the object is running or enqueued.
    Running,
    /// A stream that uses the object is being captured. The calling thread may be the thread that has to end the
    /// capture.
    Capturing,
}

enum Message {
    Retired(Box<dyn Retired>),
    /// A value that a graph has kept alive.
    Released(Arc<dyn Any + Send + Sync>),
}

/// The interval between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// The time for which a waiting thread spins before it sleeps between checks.
const SPIN: Duration = Duration::from_millis(20);

thread_local! {
    static IS_REAPER: Cell<bool> = const { Cell::new(false) };
}

/// Returns the channel to the reaper thread. The first call starts the thread.
fn sender() -> Result<&'static Sender<Message>, Error> {
    static SENDER: OnceLock<Sender<Message>> = OnceLock::new();
    if let Some(sender) = SENDER.get() {
        return Ok(sender);
    }
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::Builder::new().name("mkernel-reaper".into());
    thread
        .spawn(move || run(&receiver))
        .map_err(|source| Error::Os {
            call: "spawning the thread that frees memory",
            source: Arc::new(source),
        })?;
    // If two threads are started at once, the second one ends immediately, because its sender is dropped here.
    Ok(SENDER.get_or_init(|| sender))
}

/// Starts the reaper thread, so that a value that a graph keeps alive can be released later.
pub(crate) fn start() -> Result<(), Error> {
    sender().map(drop)
}

/// Returns the user data for [`release`] that owns `kept`.
pub(crate) fn keep(kept: Arc<dyn Any + Send + Sync>) -> *mut c_void {
    Box::into_raw(Box::new(kept)).cast()
}

/// The callback of the driver for a destroyed graph. The callback only passes the value to the reaper thread, since it
/// must not call the driver.
///
/// # Safety
/// `data` must come from [`keep`] and must not be used again.
pub(crate) unsafe extern "C" fn release(data: *mut c_void) {
    // SAFETY: guaranteed by the caller.
    let kept = unsafe { Box::from_raw(data.cast::<Arc<dyn Any + Send + Sync>>()) };
    let sent = sender().map(|sender| sender.send(Message::Released(*kept)));
    if let Ok(Err(unsent)) = sent {
        // Dropping the value here could call the driver, so it is leaked.
        std::mem::forget(unsent);
    }
}

/// Frees `retired` as soon as the GPU does not use it any more. If that takes longer than `limit`, the reaper thread frees it
/// later. If the GPU's use cannot be determined, the memory is leaked.
pub(crate) fn retire(mut retired: Box<dyn Retired>, limit: Duration) {
    let _uncaptured = Uncaptured::new();
    let started = Instant::now();
    loop {
        match ask(&mut *retired) {
            Ok(GpuUse::Unused) => return drop(retired),
            Ok(GpuUse::Running) if !IS_REAPER.get() && started.elapsed() < limit => {}
            Ok(_) => break,
            Err(error) => return leak(retired, &error),
        }
        if started.elapsed() > SPIN {
            std::thread::sleep(POLL_INTERVAL / 20);
        } else {
            std::hint::spin_loop();
        }
    }
    match sender() {
        Ok(sender) => {
            if let Err(mpsc::SendError(unsent)) = sender.send(Message::Retired(retired)) {
                std::mem::forget(unsent);
            }
        }
        Err(error) => leak(retired, &error),
    }
}

/// Checks once. If a fatal error has ended all work of the context, nothing is in use any more.
fn ask(retired: &mut dyn Retired) -> Result<GpuUse, Error> {
    match retired.is_unused() {
        Err(error) if driver::has_ended_context(&error) => Ok(GpuUse::Unused),
        answer => answer,
    }
}

fn leak(retired: Box<dyn Retired>, error: &Error) {
    tracing::warn!(
        error = with_causes(error),
        "it cannot be determined whether the GPU still uses the memory of {}, so it is never freed",
        retired.name()
    );
    std::mem::forget(retired);
}

fn run(messages: &Receiver<Message>) {
    IS_REAPER.set(true);
    // This thread captures nothing, and must not invalidate captures of other threads.
    let _uncaptured = Uncaptured::new();
    let mut waiting: Vec<Box<dyn Retired>> = Vec::new();
    loop {
        let message = match waiting.is_empty() {
            true => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => messages.recv_timeout(POLL_INTERVAL),
        };
        match message {
            Ok(Message::Retired(retired)) => waiting.push(retired),
            Ok(Message::Released(kept)) => drop(kept),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        for mut retired in std::mem::take(&mut waiting) {
            match ask(&mut *retired) {
                Ok(GpuUse::Unused) => drop(retired),
                Ok(_) => waiting.push(retired),
                Err(error) => leak(retired, &error),
            }
        }
    }
}
