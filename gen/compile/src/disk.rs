//! What the store does with files and folders.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Larger files are not ours; reading them would only cost memory.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Reads a regular file of a sane size.
pub(crate) fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    // Asked by path first: opening a pipe would block.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other(format!(
            "{} is not a file",
            path.display()
        )));
    }
    let mut bytes = Vec::new();
    File::open(path)?
        .take(MAX_FILE_BYTES)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes a new file and makes its contents durable.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Makes the names in a folder durable.
pub(crate) fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// A temporary folder in `parent` that others may read once it has its final name; it is removed when dropped, if it
/// still has its temporary one.
pub(crate) fn public_tempdir(parent: &Path) -> io::Result<tempfile::TempDir> {
    let usual = fs::Permissions::from_mode(0o777); // less the umask
    tempfile::Builder::new()
        .prefix(".mkernel-")
        .permissions(usual)
        .tempdir_in(parent)
}

/// Size of the files in the folder `path`; those that vanish meanwhile count nothing.
pub(crate) fn folder_bytes(path: &Path) -> u64 {
    let files = fs::read_dir(path).into_iter().flatten().flatten();
    files
        .filter_map(|file| Some(file.metadata().ok()?.len()))
        .sum()
}

/// Removes all but the `count` newest folders in `path`.
pub(crate) fn keep_newest(path: &Path, count: usize) {
    let mut folders: Vec<_> = folders_in(path)
        .map(|folder| (modified(&folder), folder))
        .collect();
    folders.sort_by(|a, b| b.cmp(a));
    for (_, folder) in folders.into_iter().skip(count) {
        remove_or_debug(fs::remove_dir_all(&folder), &folder);
    }
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
