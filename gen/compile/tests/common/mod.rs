//! Helpers of the store's tests: a fake compiler, captured warnings, and child processes.
#![allow(dead_code, reason = "each test file uses a part")]

use mkernel_compile::{Cubin, CudaSource, GenError, Resources};
use mkernel_spec::{Arch, Backend};
use std::cell::RefCell;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// A source that no other test uses, if `name` is unique.
pub fn source(name: &str) -> CudaSource {
    CudaSource {
        id: name.into(),
        arch: Arch::Sm90a,
        backend: Backend::Nvrtc,
        text: format!("extern \"C\" __global__ void {name}() {{}}\n"),
    }
}

/// The header of an ELF image that has neither sections nor segments.
const ELF_HEADER: [u8; 64] = {
    let mut header = [0; 64];
    let magic = *b"\x7fELF\x02\x01\x01";
    let mut i = 0;
    while i < magic.len() {
        header[i] = magic[i];
        i += 1;
    }
    header
};

/// The image that [`fake_compile`] makes from a source.
pub fn fake_cubin(source: &CudaSource) -> Cubin {
    Cubin {
        id: source.id.clone(),
        arch: source.arch,
        backend: source.backend,
        bytes: ELF_HEADER
            .into_iter()
            .chain(source.text.bytes().cycle())
            .take(50_000)
            .collect(),
        resources: Some(Resources {
            registers: 168,
            smem_static_bytes: 16,
            ..Resources::default()
        }),
        log: "ptxas info    : Used 168 registers\n".into(),
    }
}

/// Stands for NVRTC in tests of other parts than the compiler.
pub fn fake_compile(source: &CudaSource) -> Result<Cubin, GenError> {
    Ok(fake_cubin(source))
}

/// Must not be called: the kernel should have been found.
pub fn no_compile(source: &CudaSource) -> Result<Cubin, GenError> {
    panic!("{} was compiled again", source.id)
}

/// Adds a line to `file`. Many processes may add lines at once.
pub fn count(file: &Path) {
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(file)
        .expect("counter file");
    file.write_all(b"x\n").expect("counter file");
}

/// Lines that [`count`] added.
pub fn counted(file: &Path) -> usize {
    fs::read_to_string(file).map_or(0, |text| text.lines().count())
}

thread_local! {
    /// Warnings of this thread.
    static WARNINGS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Runs `body`, and returns its result and the warnings that it caused on this thread.
///
/// The whole process has one subscriber. `tracing` remembers for each call site whether any subscriber is interested,
/// so a subscriber of one thread could miss warnings when the subscriber of another thread goes away.
pub fn warnings_of<T>(body: impl FnOnce() -> T) -> (T, Vec<String>) {
    static LISTENS: Once = Once::new();
    LISTENS.call_once(|| {
        let subscriber = tracing_subscriber::registry().with(Warnings);
        tracing::subscriber::set_global_default(subscriber).expect("the only one");
    });
    WARNINGS.take();
    let value = body();
    (value, WARNINGS.take())
}

struct Warnings;

impl<S: Subscriber> Layer<S> for Warnings {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        struct Message(String);
        impl Visit for Message {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        if *event.metadata().level() <= Level::WARN {
            let mut message = Message(String::new());
            event.record(&mut message);
            WARNINGS.with_borrow_mut(|warnings| warnings.push(message.0));
        }
    }
}

/// The environment variable of a test's child process. The value is the folder in which parent and child exchange files.
const MEETING: &str = "MKERNEL_TEST_MEETING";

/// The folder where this child process meets its parent; `None` in the parent.
pub fn meeting() -> Option<PathBuf> {
    std::env::var_os(MEETING).map(PathBuf::from)
}

/// A command that runs the test `name` of this file in a child process, where [`meeting`] is `folder`.
pub fn child(name: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command
        .args([name, "--exact", "--nocapture"])
        .env(MEETING, folder);
    command
}

/// Waits until `what` is true, at most ten seconds.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "waited too long for {what}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A child process that is killed when dropped, so that a failed test leaves no process behind.
pub struct Killed(pub Child);

impl Killed {
    /// Starts the process, without its report of passed tests.
    pub fn spawn(mut command: Command) -> Self {
        Self(command.stdout(Stdio::null()).spawn().expect("own binary"))
    }

    /// Waits for the end of the process, at most `limit`.
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().expect("own child") {
                return status;
            }
            assert!(started.elapsed() < limit, "a child process does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        // The child may have ended already, so an error is ignored.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
