//! Functions for files and folders of the store.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::SystemTime;

/// Writes a new file, which all users may read, and makes its contents durable.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = File::options();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Makes the names in a folder durable.
pub(crate) fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// The prefix of the names of temporary folders.
pub(crate) const TEMPORARY: &str = ".mkernel-";

/// Creates a temporary folder in `parent` that all users may read. It is removed on drop unless it was renamed.
pub(crate) fn public_tempdir(parent: &Path) -> io::Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix(TEMPORARY)
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir_in(parent)
}

/// The total size of all files below the folder `path`. Files that are removed meanwhile are not counted.
pub(crate) fn folder_bytes(path: &Path) -> u64 {
    let files = fs::read_dir(path).into_iter().flatten().flatten();
    files
        .filter_map(|file| {
            let metadata = file.metadata().ok()?;
            Some(if metadata.is_dir() {
                folder_bytes(&file.path())
            } else {
                metadata.len()
            })
        })
        .sum()
}

/// Logs a removal that failed, possibly because another process has removed the same folder.
pub(crate) fn remove_or_debug(result: io::Result<()>, folder: &Path) {
    if let Err(error) = result {
        tracing::debug!("{} cannot be removed: {error}", folder.display());
    }
}

/// The time of the last change to a folder, or the epoch if it no longer exists.
pub(crate) fn modified(folder: &Path) -> SystemTime {
    fs::metadata(folder)
        .and_then(|metadata| metadata.modified())
        .unwrap_or(SystemTime::UNIX_EPOCH)
}
