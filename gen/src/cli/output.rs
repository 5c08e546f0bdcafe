//! Printing to standard output, as text or JSON lines, and to standard error.

use super::failure::Failure;
use serde::Serialize;
use std::io::{self, Write};

/// Writes `text` to standard output.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(Failure::Output)
}

/// Writes a line to standard error. Unlike `eprintln`, it does not panic if standard error is closed.
pub fn print_stderr(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Writes `value` to standard output as one line of JSON.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(|error| Failure::Output(error.into()))?;
    print(&(text + "\n"))
}
