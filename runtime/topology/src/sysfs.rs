//! [`Sysfs`]: checked reads below a sysfs root. Unreadable files are noted with their path from the root.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The most bytes of a file. Files of sysfs hold at most a page, but CPU lists of large hosts may be longer.
const MAX_FILE_BYTES: u64 = 16 << 10;
/// The most entries of a folder, far more than a host has devices. The limit bounds the time for a folder that never ends.
const MAX_ENTRIES: usize = 1 << 16;

pub(crate) struct Sysfs {
    root: PathBuf,
    notes: Vec<String>,
}

impl Sysfs {
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            notes: Vec::new(),
        }
    }

    pub fn into_notes(self) -> Vec<String> {
        self.notes
    }

    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Returns the names in a folder, sorted. A folder that does not exist is empty.
    pub fn list(&mut self, folder: &str) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.root.join(folder)) else {
            return Vec::new();
        };
        let mut names = Vec::new();
        for entry in entries.take(MAX_ENTRIES) {
            match entry.map(|entry| entry.file_name().into_string()) {
                Ok(Ok(name)) => names.push(name),
                Ok(Err(name)) => self.note(format!(
                    "{folder}/{}: skipped, its name is not UTF-8",
                    name.display()
                )),
                Err(error) => self.note(format!("{folder}: {error}")),
            }
        }
        names.sort();
        names
    }

    /// Returns the text of a file without surrounding white space, or `None` if the file cannot be read or is too
    /// long.
    pub fn text(&self, path: &str) -> Option<String> {
        let mut bytes = Vec::new();
        let file = File::open(self.root.join(path)).ok()?;
        // A pipe or a terminal in a tree that is not a real sysfs could block.
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).ok()?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return None;
        }
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Returns the result of `parse` on a file's text. A file that is missing or that `parse` rejects is noted.
    pub fn parsed<T>(&mut self, path: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let Some(text) = self.text(path) else {
            self.note(format!("{path}: cannot be read"));
            return None;
        };
        let value = parse(&text);
        if value.is_none() {
            let shown: String = text.chars().take(60).collect();
            self.note(format!("{path}: {shown:?} is not understood"));
        }
        value
    }

    /// Reads a file with a hexadecimal number such as `0x1d0f`.
    pub fn hex(&mut self, path: &str) -> Option<u32> {
        self.parsed(path, |text| {
            u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
        })
    }

    /// Returns the target of a symbolic link as it is written.
    pub fn link(&self, path: &str) -> Option<String> {
        let target = std::fs::read_link(self.root.join(path)).ok()?;
        Some(target.to_str()?.to_owned())
    }
}
