//! Printing to standard output, as text or JSON lines, and to standard error.

use super::failure::Failure;
use anstyle::{AnsiColor, Style};
use schemars::JsonSchema;
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

/// The version of the lines of `--json`. A field that goes, or has another meaning, raises it.
pub const SCHEMA: u32 = 1;

/// A line of `--json`, which `mkernel-gen schema` describes.
pub trait Line: Serialize + JsonSchema {
    /// The value of the field `kind`.
    const KIND: &'static str;
}

/// A line with its kind and its version.
#[derive(Serialize)]
struct Versioned<'a, T> {
    kind: &'static str,
    schema: u32,
    #[serde(flatten)]
    line: &'a T,
}

/// One line of JSON, which ends with a line break.
pub fn json_line<T: Line>(line: &T) -> serde_json::Result<String> {
    let line = Versioned {
        kind: T::KIND,
        schema: SCHEMA,
        line,
    };
    Ok(serde_json::to_string(&line)? + "\n")
}

/// Writes a line of JSON to standard output.
pub fn print_json(line: &impl Line) -> Result<(), Failure> {
    let text = json_line(line).map_err(|error| Failure::Output(error.into()))?;
    print(&text)
}
