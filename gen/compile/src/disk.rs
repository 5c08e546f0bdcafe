//! What the store does with files and folders.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Writes a new file and makes its contents durable. Others may read it.
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

/// How names of temporary folders begin.
pub(crate) const TEMPORARY: &str = ".mkernel-";

/// A temporary folder in `parent` that others may read once it has its final name; it is removed when dropped, if it
/// still has its temporary one.
pub(crate) fn public_tempdir(parent: &Path) -> io::Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix(TEMPORARY)
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir_in(parent)
}

/// Size of the files in the folder `path` and below; those that vanish meanwhile count nothing.
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

/// Notes a removal that failed: another process may have been faster.
pub(crate) fn remove_or_debug(result: io::Result<()>, folder: &Path) {
    if let Err(error) = result {
        tracing::debug!("{} cannot be removed: {error}", folder.display());
    }
}

/// Folders in `path`, in no order; none if it cannot be read.
pub(crate) fn folders_in(path: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
}

/// When a folder last changed; the epoch if it is gone.
pub(crate) fn modified(folder: &Path) -> SystemTime {
    fs::metadata(folder)
        .and_then(|metadata| metadata.modified())
        .unwrap_or(SystemTime::UNIX_EPOCH)
}
