//! [`Scratch`]: the folder of all temporary files of a command.

use std::path::{Path, PathBuf};
use tempfile::{TempDir, env::override_temp_dir};

/// A temporary folder that has all temporary files of this process, so that they can be removed together when a signal ends
/// the process while compilers write files.
pub struct Scratch(Option<TempDir>);

impl Scratch {
    /// Creates the folder and makes it the folder for temporary files. If this is not possible, the usual folder is used.
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("mkernel-run-").tempdir();
        let folder = folder.ok();
        Self(folder.filter(|folder| override_temp_dir(folder.path()).is_ok()))
    }

    /// The path of the folder.
    pub fn path(&self) -> Option<PathBuf> {
        self.0.as_ref().map(|folder| folder.path().to_owned())
    }
}

/// Kills the compilers that write into the folder, and removes it.
pub fn remove(path: Option<&Path>) {
    mkernel_compile::stop_compilers();
    if let Some(path) = path {
        let _ = std::fs::remove_dir_all(path);
    }
}
