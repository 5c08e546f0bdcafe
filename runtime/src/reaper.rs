//! What the GPU may still use is not freed: who drops it waits for the GPU, but not without end, and a thread takes over
//! then. The same thread drops what graphs have kept alive, since the driver's own threads must not call the driver.

use crate::driver::{self, Uncaptured};
use crate::error::{Error, with_causes};
use std::any::Any;
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Something whose owner is gone, and that the GPU may still use.
pub(crate) trait Retired: Send {
    /// In words.
    fn name(&self) -> String;

    /// Whether the GPU uses nothing of it any more. With [`Wait::Elsewhere`] this thread must not wait for that.
    fn is_unused(&mut self) -> Result<Wait, Error>;
}

/// Whether to wait for a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// No longer.
    Over,
    /// A little.
    Here,
    /// For something that this thread may have to do itself: end a capture.
    Elsewhere,
}

enum Message {
    Retired(Box<dyn Retired>),
    /// What a graph has kept alive.
    Released(Arc<dyn Any + Send + Sync>),
}

/// Between two looks at what is not over.
const LOOK: Duration = Duration::from_millis(1);
/// Before a waiting thread sleeps between looks.
const SPIN: Duration = Duration::from_millis(20);

thread_local! {
    static IS_REAPER: Cell<bool> = const { Cell::new(false) };
}

/// The way to the thread, which is started when first needed.
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
    // Of two that are started at once, one ends at once: its sender goes here.
    Ok(SENDER.get_or_init(|| sender))
}

/// Makes sure that what a graph keeps alive can be released.
pub(crate) fn start() -> Result<(), Error> {
    sender().map(drop)
}

/// The data for [`release`] that stands for `kept`.
pub(crate) fn keep(kept: Arc<dyn Any + Send + Sync>) -> *mut c_void {
    Box::into_raw(Box::new(kept)).cast()
}

/// What the driver calls when a graph is gone. Only hands over, since the driver must not be called here.
///
/// # Safety
/// `data` must be of [`keep`], and not be used again.
pub(crate) unsafe extern "C" fn release(data: *mut c_void) {
    // SAFETY: by the caller.
    let kept = unsafe { Box::from_raw(data.cast::<Arc<dyn Any + Send + Sync>>()) };
    let sent = sender().map(|sender| sender.send(Message::Released(*kept)));
    if let Ok(Err(unsent)) = sent {
        // To drop it here could call the driver.
        std::mem::forget(unsent);
    }
}

/// Frees `retired` once the GPU does not use it any more: now, if that is within `limit`; else later, or never if nobody
/// can know.
pub(crate) fn retire(mut retired: Box<dyn Retired>, limit: Duration) {
    let _uncaptured = Uncaptured::new();
    let started = Instant::now();
    loop {
        match ask(&mut *retired) {
            Ok(Wait::Over) => return drop(retired),
            Ok(Wait::Here) if !IS_REAPER.get() && started.elapsed() < limit => {}
            Ok(_) => break,
            Err(error) => return leak(retired, &error),
        }
        if started.elapsed() > SPIN {
            std::thread::sleep(LOOK / 20);
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

/// A failure by which all work of the context has ended is an answer, too.
fn ask(retired: &mut dyn Retired) -> Result<Wait, Error> {
    match retired.is_unused() {
        Err(error) if driver::has_ended_context(&error) => Ok(Wait::Over),
        answer => answer,
    }
}

fn leak(retired: Box<dyn Retired>, error: &Error) {
    tracing::warn!(
        error = with_causes(error),
        "nobody knows whether the GPU still uses the memory of {}, so it is never freed",
        retired.name()
    );
    std::mem::forget(retired);
}

fn run(messages: &Receiver<Message>) {
    IS_REAPER.set(true);
    // This thread captures nothing, and must not spoil captures of others.
    let _uncaptured = Uncaptured::new();
    let mut waiting: Vec<Box<dyn Retired>> = Vec::new();
    loop {
        let message = match waiting.is_empty() {
            true => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => messages.recv_timeout(LOOK),
        };
        match message {
            Ok(Message::Retired(retired)) => waiting.push(retired),
            Ok(Message::Released(kept)) => drop(kept),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        for mut retired in std::mem::take(&mut waiting) {
            match ask(&mut *retired) {
                Ok(Wait::Over) => drop(retired),
                Ok(_) => waiting.push(retired),
                Err(error) => leak(retired, &error),
            }
        }
    }
}
