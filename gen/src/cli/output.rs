//! Printing to standard output, as text or JSON lines, and to standard error.

use super::failure::Failure;
use anstyle::{AnsiColor, Style};
use serde::Serialize;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

/// The style of the word `error`.
pub const ERROR: Style = AnsiColor::Red.on_default().bold();
/// The style of the word `warning`.
pub const WARNING: Style = AnsiColor::Yellow.on_default().bold();
/// The style of a state without faults.
pub const FINE: Style = AnsiColor::Green.on_default();

/// Whether notes, warnings and progress are left out.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Leaves out notes, warnings and progress from now on.
pub fn set_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Writes `text` to standard output. Colours are removed unless `--color` or a terminal asks for colours.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(Failure::Output)
}

/// Writes a line to standard error. Unlike `eprintln`, it does not panic if standard error is closed.
pub fn print_stderr(text: &str) {
    let _ = writeln!(anstream::stderr(), "{text}");
}

/// Writes a line to standard error unless `--quiet` is given.
pub fn print_note(text: &str) {
    if !is_quiet() {
        print_stderr(text);
    }
}

/// Writes `value` to standard output as one line of JSON.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(|error| Failure::Output(error.into()))?;
    print(&(text + "\n"))
}
