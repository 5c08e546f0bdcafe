//! [`Cache`]: the part of the store that is on disk. It reports what fails; the [`Store`](crate::Store) decides what
//! that means.
//!
//! ```text
//! <root>/kernels/<key>/     an entry (see `entry`), published by renaming a complete folder
//! <root>/tmp/               folders that are being written, or removed
//! <root>/locks/             empty files that processes lock while they compile
//! <root>/failed/            source and log of kernels that did not compile
//! <root>/quarantine/        damaged entries, for whoever wants to know why
//! ```

use crate::cubin::Cubin;
use crate::disk::{
    folder_bytes, folders_in, keep_newest, modified, public_tempdir, remove_or_debug, sync_dir,
};
use crate::entry::{Entry, EntryFault, read_entry, write_entry};
use crate::error::GenError;
use crate::key::Key;
use crate::lock::{FileLock, Waited};
use crate::source::CudaSource;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Damaged entries kept.
const KEPT_DAMAGED: usize = 32;

/// A folder being written is at most seconds old; an older one belongs to a process that was killed.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Kernels on disk.
#[derive(Debug)]
pub(crate) struct Cache {
    pub root: PathBuf,
}

impl Cache {
    /// The kernel of `key`, if it is there.
    pub fn read(&self, key: &Key) -> Result<Option<Cubin>, EntryFault> {
        let folder = self.entry_folder(key);
        match read_entry(&folder, key) {
            // Removed by another process between two files of it.
            Err(EntryFault::Io(_)) if !folder.exists() => Ok(None),
            result => result,
        }
    }

    /// Makes an entry appear, whole or not at all.
    pub fn publish(&self, key: &Key, source: &CudaSource, cubin: &Cubin) -> io::Result<()> {
        let kernels = self.subfolder("kernels")?;
        let temporary = public_tempdir(&self.subfolder("tmp")?)?;
        write_entry(temporary.path(), key, source, cubin)?;
        match fs::rename(temporary.path(), self.entry_folder(key)) {
            Ok(()) => sync_dir(&kernels),
            // Another process was faster, with the same kernel.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Waits for the right to compile `key`, at most `limit`, or for its entry.
    pub fn lock(&self, key: &Key, limit: Duration) -> io::Result<Waited<Cubin>> {
        let look = || self.read(key).ok().flatten();
        FileLock::wait(&self.subfolder("locks")?, key, limit, look)
    }

    /// Moves a damaged entry out of the way; returns where to.
    pub fn quarantine(&self, key: &Key) -> io::Result<PathBuf> {
        let quarantine = self.subfolder("quarantine")?;
        let target = public_tempdir(&quarantine)?;
        fs::rename(self.entry_folder(key), target.path())?;
        let target = target.keep();
        keep_newest(&quarantine, KEPT_DAMAGED);
        Ok(target)
    }

    /// The sound entries, sorted by name.
    pub fn entries(&self) -> Vec<Entry> {
        let folders = folders_in(&self.root.join("kernels"));
        let mut entries: Vec<_> = folders.filter_map(Entry::read).collect();
        entries.sort_by(|a, b| (&a.id, a.key).cmp(&(&b.id, b.key)));
        entries
    }

    /// Removes an entry. False if it was not there.
    pub fn remove(&self, key: &Key) -> Result<bool, GenError> {
        let path = self.entry_folder(key);
        match self.remove_folder(&path) {
            Ok(()) => Ok(true),
            Err(error) if is_absent(&error) => Ok(false),
            Err(source) => Err(GenError::Remove { path, source }),
        }
    }

    /// Removes everything but the lock files, which processes may hold.
    pub fn clear(&self) -> Result<(), GenError> {
        for name in ["kernels", "failed", "quarantine", "tmp"] {
            let path = self.root.join(name);
            match fs::remove_dir_all(&path) {
                Err(error) if is_absent(&error) => {}
                Err(source) => return Err(GenError::Remove { path, source }),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Removes the oldest entries while all are larger than `limit_bytes`, but never the newest; and what killed
    /// processes left. Best effort: other processes may do the same.
    pub fn prune(&self, limit_bytes: u64) {
        for folder in folders_in(&self.root.join("tmp")) {
            if modified(&folder).elapsed().is_ok_and(|age| age > ABANDONED) {
                remove_or_debug(fs::remove_dir_all(&folder), &folder);
            }
        }
        let mut entries: Vec<_> = folders_in(&self.root.join("kernels"))
            .map(|folder| (modified(&folder), folder_bytes(&folder), folder))
            .collect();
        let mut total: u64 = entries.iter().map(|(_, bytes, _)| bytes).sum();
        entries.sort();
        entries.pop();
        for (_, bytes, folder) in entries {
            if total <= limit_bytes {
                break;
            }
            remove_or_debug(self.remove_folder(&folder), &folder);
            total -= bytes;
        }
    }

    /// Takes a folder away, whole, then deletes it.
    fn remove_folder(&self, folder: &Path) -> io::Result<()> {
        fs::symlink_metadata(folder)?;
        let temporary = public_tempdir(&self.subfolder("tmp")?)?;
        fs::rename(folder, temporary.path())?;
        temporary.close()
    }

    fn entry_folder(&self, key: &Key) -> PathBuf {
        self.root.join("kernels").join(key.to_string())
    }

    /// A folder of the cache, made if need be. The root is made for this user only, as the XDG specification wants.
    fn subfolder(&self, name: &str) -> io::Result<PathBuf> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.root)?;
        let path = self.root.join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}
