//! [`Cache`]: the part of the store that is on disk. It reports what fails; the [`Store`](crate::Store) decides what
//! that means.
//!
//! ```text
//! <root>/CACHEDIR.TAG       says that the folder is mkernel's
//! <root>/kernels/<key>/     an entry (see `entry`), published by renaming a complete folder
//! <root>/tmp/               folders that are being written, or removed
//! <root>/locks/             empty files that processes lock while they compile
//! <root>/failed/            source and log of kernels that did not compile
//! <root>/quarantine/        damaged entries, for whoever wants to know why
//! ```
//!
//! The root and all that is used in it must be this user's or root's, and nobody else's to write: see `folder`. What is
//! removed is recognised by its name and its contents: see `parts`.

use crate::cubin::Cubin;
use crate::disk::{folder_bytes, modified, public_tempdir, remove_or_debug, sync_dir};
use crate::entry::{Entry, EntryFault, read_entry, write_entry};
use crate::error::GenError;
use crate::folder::{Folder, is_untrusted};
use crate::key::Key;
use crate::lock::{FileLock, Waited};
use crate::parts::{Part, is_own_name, make_root, refusal};
use crate::source::CudaSource;
use std::cmp::Reverse;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Damaged entries kept, and failures.
const KEPT: usize = 32;

/// A folder being written is at most seconds old; an older one belongs to a process that was killed.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Kernels on disk.
#[derive(Debug)]
pub(crate) struct Cache {
    pub root: PathBuf,
}

/// What [`Store::clean`](crate::Store::clean) removed, or would remove, and what it left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cleaned {
    /// Kernels.
    pub kernels: usize,
    /// Folders of kernels that failed to compile, were damaged, or were never finished.
    pub others: usize,
    /// Size of all these.
    pub bytes: u64,
    /// What is in the cache's folder and was not made by mkernel.
    pub left: Vec<PathBuf>,
}

impl Cache {
    /// The kernel of `key`, if it is there.
    pub fn read(&self, key: &Key) -> Result<Option<Cubin>, EntryFault> {
        let kernels = self.part(Part::Kernels).map_err(EntryFault::Cache)?;
        let Some(kernels) = kernels else {
            return Ok(None);
        };
        match read_entry(&kernels, key) {
            // Removed by another process between two files of it.
            Err(EntryFault::Io(_)) if !kernels.has(key.to_string()) => Ok(None),
            result => result,
        }
    }

    /// Makes an entry appear, whole or not at all.
    pub fn publish(&self, key: &Key, source: &CudaSource, cubin: &Cubin) -> io::Result<()> {
        let root = make_root(&self.root)?;
        let kernels = root.made_folder(Part::Kernels.name())?;
        let tmp = root.made_folder(Part::Tmp.name())?;
        let temporary = public_tempdir(&tmp.pinned())?;
        write_entry(temporary.path(), key, source, cubin)?;
        match fs::rename(temporary.path(), kernels.pinned().join(key.to_string())) {
            Ok(()) => sync_dir(&kernels.pinned()),
            // Another process was faster, with the same kernel.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Waits for the right to compile `key`, at most `limit`, or for its entry.
    pub fn lock(&self, key: &Key, limit: Duration) -> io::Result<Waited<Cubin>> {
        let look = || self.read(key).ok().flatten();
        let locks = make_root(&self.root)?.made_folder("locks")?;
        FileLock::wait(&locks, key, limit, look)
    }

    /// Moves a damaged entry out of the way; returns where to.
    pub fn quarantine(&self, key: &Key) -> io::Result<PathBuf> {
        let root = make_root(&self.root)?;
        let kernels = root.made_folder(Part::Kernels.name())?;
        let quarantine = root.made_folder(Part::Quarantine.name())?;
        let target = public_tempdir(&quarantine.pinned())?;
        let name = key.to_string();
        // Into the folder, not over it: the entry may be no folder.
        fs::rename(kernels.pinned().join(&name), target.path().join(&name))?;
        let target = target.keep();
        keep_newest(Part::Quarantine, &quarantine);
        let target = target.file_name().unwrap_or_default();
        Ok(quarantine.path().join(target).join(name))
    }

    /// Has `write` fill the folder `name` of a kernel that does not compile. It is given the folder to write to, and the
    /// path to show, which is returned.
    pub fn save_failed(
        &self,
        name: &str,
        write: impl FnOnce(&Path, &Path) -> io::Result<()>,
    ) -> io::Result<PathBuf> {
        let failed = make_root(&self.root)?.made_folder(Part::Failed.name())?;
        let folder = failed.made_folder(name)?;
        write(&folder.pinned(), folder.path())?;
        keep_newest(Part::Failed, &failed);
        Ok(folder.path().to_owned())
    }

    /// The sound entries, sorted by name.
    pub fn entries(&self) -> io::Result<Vec<Entry>> {
        let Some(kernels) = self.part(Part::Kernels)? else {
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

    /// Removes an entry. False if it was not there.
    pub fn remove(&self, key: &Key) -> Result<bool, GenError> {
        let name = OsString::from(key.to_string());
        let remove = || {
            let Some((root, kernels)) = self.open()?.zip(self.part(Part::Kernels)?) else {
                return Ok(false);
            };
            if let Some(reason) = refusal(&root)? {
                return Err(io::Error::other(reason));
            }
            if !Part::Kernels.is_own(&kernels, &name) {
                return Ok(false);
            }
            remove_folder(&root, &kernels, &name).map(|()| true)
        };
        remove().map_err(|source| GenError::Remove {
            path: self.root.join(Part::Kernels.name()).join(&name),
            source,
        })
    }

    /// Removes all that mkernel stored but the lock files, which processes may hold; with `dry_run` only says what that
    /// would be.
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
        let foreign = names.iter().filter(|name| !is_own_name(name));
        cleaned
            .left
            .extend(foreign.map(|name| self.root.join(name)));
        for part in Part::ALL {
            clean_part(&root, part, dry_run, &mut cleaned).map_err(|(path, source)| {
                GenError::Remove {
                    path: self.root.join(path),
                    source,
                }
            })?;
        }
        Ok(cleaned)
    }

    /// Removes the oldest entries while all are larger than `limit_bytes`, but never the newest; and what killed
    /// processes left. Best effort: other processes may do the same.
    pub fn prune(&self, limit_bytes: u64) {
        let Ok(Some(root)) = self.open() else { return };
        if let Ok(Some(tmp)) = self.part(Part::Tmp) {
            for (changed, name) in by_age(Part::Tmp, &tmp) {
                if changed.elapsed().is_ok_and(|age| age > ABANDONED) {
                    let path = tmp.pinned().join(name);
                    remove_or_debug(fs::remove_dir_all(&path), &path);
                }
            }
        }
        let Ok(Some(kernels)) = self.part(Part::Kernels) else {
            return;
        };
        let mut entries: Vec<_> = by_age(Part::Kernels, &kernels)
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

    /// The root; none if it is not there.
    fn open(&self) -> io::Result<Option<Folder>> {
        unless_absent(Folder::open(&self.root))
    }

    /// A folder of the root; none if it is not there.
    fn part(&self, part: Part) -> io::Result<Option<Folder>> {
        match self.open()? {
            Some(root) => unless_absent(root.folder(part.name())),
            None => Ok(None),
        }
    }
}

/// Takes a folder away, whole, then deletes it.
fn remove_folder(root: &Folder, parent: &Folder, name: &OsStr) -> io::Result<()> {
    let tmp = root.made_folder(Part::Tmp.name())?;
    let temporary = public_tempdir(&tmp.pinned())?;
    fs::rename(parent.pinned().join(name), temporary.path())?;
    temporary.close()
}

/// Removes what is mkernel's of one part, and adds it up. An error comes with the path below the root.
fn clean_part(
    root: &Folder,
    part: Part,
    dry_run: bool,
    cleaned: &mut Cleaned,
) -> Result<(), (PathBuf, io::Error)> {
    let part_path = PathBuf::from(part.name());
    let folder = match unless_absent(root.folder(part.name())) {
        Ok(Some(folder)) => folder,
        Ok(None) if root.has(part.name()) => {
            cleaned.left.push(root.path().join(part_path));
            return Ok(());
        }
        Ok(None) => return Ok(()),
        Err(error) => return Err((part_path, error)),
    };
    let names = folder.names().map_err(|error| (part_path.clone(), error))?;
    for name in names {
        if !part.is_own(&folder, &name) {
            cleaned.left.push(folder.path().join(name));
            continue;
        }
        let path = folder.pinned().join(&name);
        let bytes = folder_bytes(&path);
        if !dry_run {
            // Readers of a kernel see it whole, or not at all.
            let removed = match part {
                Part::Kernels => remove_folder(root, &folder, &name),
                _ => fs::remove_dir_all(path),
            };
            match removed {
                Err(error) if !is_absent(&error) => return Err((part_path.join(name), error)),
                _ => {}
            }
        }
        cleaned.bytes += bytes;
        match part {
            Part::Kernels => cleaned.kernels += 1,
            _ => cleaned.others += 1,
        }
    }
    Ok(())
}

/// Removes all but the newest folders of a part that only people read.
fn keep_newest(part: Part, folder: &Folder) {
    let mut folders = by_age(part, folder);
    folders.sort_by_key(|(changed, _)| Reverse(*changed));
    for (_, name) in folders.into_iter().skip(KEPT) {
        let path = folder.pinned().join(name);
        remove_or_debug(fs::remove_dir_all(&path), &path);
    }
}

/// What is mkernel's of a part, the oldest first.
fn by_age(part: Part, folder: &Folder) -> Vec<(SystemTime, OsString)> {
    let names = folder.names().unwrap_or_default();
    let mut own: Vec<_> = names
        .into_iter()
        .filter(|name| part.is_own(folder, name))
        .map(|name| (modified(&folder.pinned().join(&name)), name))
        .collect();
    own.sort();
    own
}

fn unless_absent(opened: io::Result<Folder>) -> io::Result<Option<Folder>> {
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
