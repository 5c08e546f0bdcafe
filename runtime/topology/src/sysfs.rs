//! Checked reads below a sysfs root. What cannot be read is noted, with its path from the root.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// sysfs files hold at most a page; CPU lists of large hosts may take more than one.
const MAX_FILE_BYTES: u64 = 16 << 10;
/// Far more devices than a host has; a folder that never ends does not keep us.
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

    /// Names in a folder, sorted; none if it does not exist, which is no oddity.
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

    /// The text of a file without white space around it; `None` if it cannot be read, or is too long.
    pub fn text(&self, path: &str) -> Option<String> {
        let mut bytes = Vec::new();
        let file = File::open(self.root.join(path)).ok()?;
        // A pipe or terminal in a tree that is none of sysfs could make us wait.
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).ok()?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return None;
        }
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// What `parse` makes of a file's text; notes a file that is absent or that `parse` does not understand.
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

    /// A file that holds `0x1d0f`.
    pub fn hex(&mut self, path: &str) -> Option<u32> {
        self.parsed(path, |text| {
            u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
        })
    }

    /// Where a symbolic link leads, as it is written.
    pub fn link(&self, path: &str) -> Option<String> {
        let target = std::fs::read_link(self.root.join(path)).ok()?;
        Some(target.to_str()?.to_owned())
    }
}
