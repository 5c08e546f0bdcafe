//! Files that commands read and write.

use super::failure::Failure;
use std::io::{self, Read};
use std::path::Path;

/// Reads a file as text. The path `-` is standard input.
pub fn read_text(path: &Path) -> Result<String, Failure> {
    let read = if path.as_os_str() == "-" {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    read.map_err(|source| Failure::Read {
        path: path.to_owned(),
        source,
    })
}

/// Writes a file.
pub fn write_text(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|source| Failure::Write {
        path: path.to_owned(),
        source,
    })
}
