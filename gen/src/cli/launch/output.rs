//! [`Forward`]: the output of ranks, each line with its rank.

use crate::cli::output::{Line, json_line};
use schemars::JsonSchema;
use serde::Serialize;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

/// The longest line that is kept together.
const MAX_LINE_BYTES: u64 = 1 << 16;
/// The time that output may take after all ranks have ended. A process that left the group of its rank may keep a pipe open.
const LAST_OUTPUT: Duration = Duration::from_secs(1);

/// A stream of a rank, which goes to the stream of the same name.
#[derive(Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    Stdout,
    Stderr,
}

/// A line of output as a JSON object.
#[derive(Serialize, JsonSchema)]
pub struct OutputLine<'a> {
    rank: usize,
    stream: Stream,
    text: &'a str,
}

impl Line for OutputLine<'_> {
    const KIND: &'static str = "output";
}

/// Threads that copy output.
pub struct Forward {
    json: bool,
    /// Each thread has a sender. Nothing is sent.
    open: Sender<()>,
    closed: Receiver<()>,
}

impl Forward {
    /// No output yet. With `json` each line becomes a JSON object on standard output.
    pub fn new(json: bool) -> Self {
        let (open, closed) = mpsc::channel();
        Self { json, open, closed }
    }

    /// Copies all lines of `pipe`. If this process cannot write, the pipe is closed, and the rank sees that.
    pub fn read(&self, rank: usize, stream: Stream, pipe: impl Read + Send + 'static) {
        let (open, json) = (self.open.clone(), self.json);
        thread::spawn(move || {
            let _open = open;
            let _ = copy(rank, stream, pipe, json);
        });
    }

    /// Waits until all output was copied.
    pub fn finish(self) {
        drop(self.open);
        let _ = self.closed.recv_timeout(LAST_OUTPUT);
    }
}

fn copy(rank: usize, stream: Stream, pipe: impl Read, json: bool) -> io::Result<()> {
    let mut pipe = BufReader::new(pipe);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut part = pipe.by_ref().take(MAX_LINE_BYTES);
        if part.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        if json {
            let text = &String::from_utf8_lossy(&line);
            let line = json_line(&OutputLine { rank, stream, text })?;
            io::stdout().write_all(line.as_bytes())?;
            continue;
        }
        let whole = [format!("[{rank}] ").as_bytes(), &line, b"\n"].concat();
        match stream {
            Stream::Stdout => io::stdout().write_all(&whole)?,
            Stream::Stderr => io::stderr().write_all(&whole)?,
        }
    }
}
