//! [`Cache`]: the part of the store that is on disk. It returns errors, and the [`Store`](crate::Store) handles them.
//!
//! ```text
//! <root>/CACHEDIR.TAG       marks the folder as a cache of mkernel
//! <root>/kernels/<key>/     an entry (see `entry`), published by renaming a complete folder
//! <root>/tmp/               folders that are being written or removed
//! <root>/locks/             empty files that processes lock while they compile
//! <root>/failed/            source and log of kernels that did not compile
//! <root>/quarantine/        damaged entries, kept for inspection
//! ```
//!
//! The cache and all files that are used in it must belong to this user or to root, and nobody else may write to them.
//! See `folder`. Only files that are known by name and contents are removed. See `cache_layout`.

use crate::cache_layout::{Subfolder, is_known_name, make_root, refusal};
use crate::cubin::Cubin;
use crate::disk::{folder_bytes, modified, public_tempdir, remove_or_debug, sync_dir};
use crate::entry::{Entry, EntryFault, read_entry, write_entry};
use crate::error::GenError;
use crate::folder::{Folder, is_untrusted};
use crate::key::Key;
use crate::lock::{FileLock, LockOutcome};
use crate::source::CudaSource;
use std::cmp::Reverse;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The largest number of damaged entries that are kept. The number of kept kernels that did not compile has the same limit.
const MAX_KEPT: usize = 32;

/// The age at which a folder that is being written is considered abandoned. Writing takes seconds, so the process was
/// killed.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Kernels on disk.
#[derive(Debug)]
pub(crate) struct Cache {
    pub root: PathBuf,
}

/// The result of [`Store::clean`](crate::Store::clean). With `dry_run`, it counts what would be removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cleaned {
    /// The number of kernels that were removed.
    pub kernels: usize,
    /// The number of folders of failed, damaged or unfinished kernels that were removed.
    pub others: usize,
    /// The total size of everything that was removed.
    pub bytes: u64,
    /// Files and folders in the cache that mkernel did not create, and does not remove.
    pub left: Vec<PathBuf>,
}

/// Checks that a cache in the folder `root` can be written, and creates the folder if it does not exist.
///
/// # Errors
/// The reason why the folder cannot be used: it cannot be created or written, other users can write to it, or it has files that
/// mkernel did not create.
pub fn check_cache(root: &Path) -> io::Result<()> {
    let tmp = make_root(root)?.create_folder(Subfolder::Tmp.name())?;
    public_tempdir(&tmp.pinned())?.close()
}

impl Cache {
    /// Reads the kernel of `key`, if the cache has it.
    pub fn read(&self, key: &Key) -> Result<Option<Cubin>, EntryFault> {
        let kernels = self.part(Subfolder::Kernels).map_err(EntryFault::Cache)?;
        let Some(kernels) = kernels else {
            return Ok(None);
        };
        match read_entry(&kernels, key) {
            // Another process removed the entry while it was read.
            Err(EntryFault::Io(_)) if !kernels.has(key.to_string()) => Ok(None),
            result => result,
        }
    }

    /// Adds an entry, which appears complete or not at all.
    pub fn publish(&self, key: &Key, source: &CudaSource, cubin: &Cubin) -> io::Result<()> {
        let root = make_root(&self.root)?;
        let kernels = root.create_folder(Subfolder::Kernels.name())?;
        let tmp = root.create_folder(Subfolder::Tmp.name())?;
        let temporary = public_tempdir(&tmp.pinned())?;
        write_entry(temporary.path(), key, source, cubin)?;
        match fs::rename(temporary.path(), kernels.pinned().join(key.to_string())) {
            Ok(()) => sync_dir(&kernels.pinned()),
            // Another process has published the same kernel first.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Waits for the lock of `key` until it is acquired, the entry appears, or `limit` has passed.
    pub fn lock(&self, key: &Key, limit: Duration) -> io::Result<LockOutcome<Cubin>> {
        let look = || self.read(key).ok().flatten();
        let locks = make_root(&self.root)?.create_folder("locks")?;
        FileLock::wait(&locks, key, limit, look)
    }

    /// Moves a damaged entry to the quarantine, and returns its new path.
    pub fn quarantine(&self, key: &Key) -> io::Result<PathBuf> {
        let root = make_root(&self.root)?;
        let kernels = root.create_folder(Subfolder::Kernels.name())?;
        let quarantine = root.create_folder(Subfolder::Quarantine.name())?;
        let target = public_tempdir(&quarantine.pinned())?;
        let name = key.to_string();
        // The entry may be a file, which cannot replace a folder. So it is moved into the new folder.
        fs::rename(kernels.pinned().join(&name), target.path().join(&name))?;
        let target = target.keep();
        remove_all_but_newest(Subfolder::Quarantine, &quarantine);
        let target = target.file_name().unwrap_or_default();
        Ok(quarantine.path().join(target).join(name))
    }

    /// Creates the folder `name` for a kernel that did not compile, and calls `write` with the path to write to and the
    /// path to show to users. Returns the latter.
    pub fn save_failed(
        &self,
        name: &str,
        write: impl FnOnce(&Path, &Path) -> io::Result<()>,
    ) -> io::Result<PathBuf> {
        let failed = make_root(&self.root)?.create_folder(Subfolder::Failed.name())?;
        let folder = failed.create_folder(name)?;
        write(&folder.pinned(), folder.path())?;
        remove_all_but_newest(Subfolder::Failed, &failed);
        Ok(folder.path().to_owned())
    }

    /// The undamaged entries, sorted by name.
    pub fn entries(&self) -> io::Result<Vec<Entry>> {
        let Some(kernels) = self.part(Subfolder::Kernels)? else {
            return Ok(Vec::new());
        };
        let names = kernels.names()?;
        let mut entries: Vec<_> = names
            .iter()
            .filter_map(|name| Entry::read(&kernels, name))
            .collect();
        entries.sort_by(|a, b| (&a.id, a.key).cmp(&(&b.id, b.key)));
        Ok(entries)
    }

    /// Removes an entry. Returns false if there was none.
    pub fn remove(&self, key: &Key) -> Result<bool, GenError> {
        let name = OsString::from(key.to_string());
        let remove = || {
            let Some((root, kernels)) = self.open()?.zip(self.part(Subfolder::Kernels)?) else {
                return Ok(false);
            };
            if let Some(reason) = refusal(&root)? {
                return Err(io::Error::other(reason));
            }
            if !Subfolder::Kernels.is_from_mkernel(&kernels, &name) {
                return Ok(false);
            }
            remove_folder(&root, &kernels, &name).map(|()| true)
        };
        remove().map_err(|source| GenError::Remove {
            path: self.root.join(Subfolder::Kernels.name()).join(&name),
            source,
        })
    }

    /// Removes everything that mkernel has stored, except for lock files, which processes may hold. With `dry_run`,
    /// nothing is removed.
    pub fn clean(&self, dry_run: bool) -> Result<Cleaned, GenError> {
        let failed = |source| GenError::Clean {
            path: self.root.clone(),
            source,
        };
        let Some(root) = self.open().map_err(failed)? else {
            return Ok(Cleaned::default());
        };
        if let Some(reason) = refusal(&root).map_err(failed)? {
            return Err(GenError::NotACache(reason));
        }
        let mut cleaned = Cleaned::default();
        let names = root.names().map_err(failed)?;
        let foreign = names.iter().filter(|name| !is_known_name(name));
        cleaned
            .left
            .extend(foreign.map(|name| self.root.join(name)));
        for part in Subfolder::ALL {
            clean_subfolder(&root, part, dry_run, &mut cleaned).map_err(|(path, source)| {
                GenError::Remove {
                    path: self.root.join(path),
                    source,
                }
            })?;
        }
        Ok(cleaned)
    }

    /// Removes the oldest entries until the total size is at most `limit_bytes`, but keeps the newest entry. Also
    /// removes abandoned folders. Errors are ignored, since other processes may remove the same entries.
    pub fn prune(&self, limit_bytes: u64) {
        let Ok(Some(root)) = self.open() else { return };
        if let Ok(Some(tmp)) = self.part(Subfolder::Tmp) {
            for (changed, name) in by_age(Subfolder::Tmp, &tmp) {
                if changed.elapsed().is_ok_and(|age| age > ABANDONED) {
                    let path = tmp.pinned().join(name);
                    remove_or_debug(fs::remove_dir_all(&path), &path);
                }
            }
        }
        let Ok(Some(kernels)) = self.part(Subfolder::Kernels) else {
            return;
        };
        let mut entries: Vec<_> = by_age(Subfolder::Kernels, &kernels)
            .into_iter()
            .map(|(_, name)| (folder_bytes(&kernels.pinned().join(&name)), name))
            .collect();
        let mut total: u64 = entries.iter().map(|(bytes, _)| bytes).sum();
        entries.pop();
        for (bytes, name) in entries {
            if total <= limit_bytes {
                break;
            }
            remove_or_debug(
                remove_folder(&root, &kernels, &name),
                &kernels.path().join(name),
            );
            total -= bytes;
        }
    }

    /// Opens the root, if it exists.
    fn open(&self) -> io::Result<Option<Folder>> {
        none_if_absent(Folder::open(&self.root))
    }

    /// Opens a folder of the root, if it exists.
    fn part(&self, part: Subfolder) -> io::Result<Option<Folder>> {
        match self.open()? {
            Some(root) => none_if_absent(root.folder(part.name())),
            None => Ok(None),
        }
    }
}

/// Deletes a folder. The folder is moved away first, so that readers never see a part of the folder.
fn remove_folder(root: &Folder, parent: &Folder, name: &OsStr) -> io::Result<()> {
    let tmp = root.create_folder(Subfolder::Tmp.name())?;
    let temporary = public_tempdir(&tmp.pinned())?;
    fs::rename(parent.pinned().join(name), temporary.path())?;
    temporary.close()
}

/// Removes the files of mkernel from one subfolder and counts them. Errors include the path below the root.
fn clean_subfolder(
    root: &Folder,
    part: Subfolder,
    dry_run: bool,
    cleaned: &mut Cleaned,
) -> Result<(), (PathBuf, io::Error)> {
    let subpath = PathBuf::from(part.name());
    let folder = match none_if_absent(root.folder(part.name())) {
        Ok(Some(folder)) => folder,
        Ok(None) if root.has(part.name()) => {
            cleaned.left.push(root.path().join(subpath));
            return Ok(());
        }
        Ok(None) => return Ok(()),
        Err(error) => return Err((subpath, error)),
    };
    let names = folder.names().map_err(|error| (subpath.clone(), error))?;
    for name in names {
        if !part.is_from_mkernel(&folder, &name) {
            cleaned.left.push(folder.path().join(name));
            continue;
        }
        let path = folder.pinned().join(&name);
        let bytes = folder_bytes(&path);
        if !dry_run {
            // Kernels are moved away first, so that readers never see a part of a kernel.
            let removed = match part {
                Subfolder::Kernels => remove_folder(root, &folder, &name),
                _ => fs::remove_dir_all(path),
            };
            match removed {
                Err(error) if !is_absent(&error) => return Err((subpath.join(name), error)),
                _ => {}
            }
        }
        cleaned.bytes += bytes;
        match part {
            Subfolder::Kernels => cleaned.kernels += 1,
            _ => cleaned.others += 1,
        }
    }
    Ok(())
}

/// Removes all but the newest folders of a subfolder that only people read.
fn remove_all_but_newest(part: Subfolder, folder: &Folder) {
    let mut folders = by_age(part, folder);
    folders.sort_by_key(|(changed, _)| Reverse(*changed));
    for (_, name) in folders.into_iter().skip(MAX_KEPT) {
        let path = folder.pinned().join(name);
        remove_or_debug(fs::remove_dir_all(&path), &path);
    }
}

/// The names in a subfolder that mkernel has given, the oldest first.
fn by_age(part: Subfolder, folder: &Folder) -> Vec<(SystemTime, OsString)> {
    let names = folder.names().unwrap_or_default();
    let mut own: Vec<_> = names
        .into_iter()
        .filter(|name| part.is_from_mkernel(folder, name))
        .map(|name| (modified(&folder.pinned().join(&name)), name))
        .collect();
    own.sort();
    own
}

fn none_if_absent(opened: io::Result<Folder>) -> io::Result<Option<Folder>> {
    match opened {
        Ok(folder) => Ok(Some(folder)),
        Err(error) if is_absent(&error) && !is_untrusted(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}
