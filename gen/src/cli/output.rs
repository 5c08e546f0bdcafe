//! What goes to standard output: text or JSON lines.

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

/// Writes a line to standard error; that nobody reads it is no reason to stop.
pub fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Writes one JSON object on a line of its own.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(|error| Failure::Output(error.into()))?;
    print(&(text + "\n"))
}
