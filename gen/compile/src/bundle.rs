//! [`Bundle`]: a folder of kernels that were compiled ahead of time.

use crate::cubin::Cubin;
use crate::disk::{public_tempdir, sync_dir, write_file};
use crate::entry::{Entry, EntryFault, copy_entry, read_entry, write_entry};
use crate::error::{BundleFault, GenError, with_causes};
use crate::folder::Folder;
use crate::key::Key;
use crate::source::CudaSource;
use mkernel_spec::{Arch, Backend};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The name of the file that marks a folder as a bundle.
pub const BUNDLE_MANIFEST: &str = "bundle.json";

/// The version of the format of `bundle.json`.
const SCHEMA: u32 = 3;

/// Kernels compiled ahead of time: a folder with `bundle.json`, which lists them, and one entry folder for each.
#[derive(Clone, Debug)]
pub struct Bundle {
    path: PathBuf,
    manifest: Manifest,
}

/// A kernel that a bundle lists.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BundledKernel {
    /// The symbol of the kernel.
    pub id: String,
    /// The architecture for which the kernel was written.
    pub arch: Arch,
    /// The compiler that made the machine code, without its version.
    pub backend: Backend,
    /// The content address of the kernel.
    pub key: Key,
    /// The stored kernel, or the reason why it cannot be used.
    pub entry: Result<Entry, String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Manifest {
    schema: u32,
    kernels: Vec<Listed>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Listed {
    id: String,
    arch: Arch,
    backend: Backend,
    key: Key,
}

/// Writes the files of a kernel to an empty folder.
type Write<'a> = Box<dyn FnOnce(&Path) -> io::Result<()> + 'a>;

impl Listed {
    fn of(cubin: &Cubin, key: Key) -> Self {
        Self {
            id: cubin.id.clone(),
            arch: cubin.arch,
            backend: cubin.backend,
            key,
        }
    }

    fn is_same_kernel(&self, other: &Self) -> bool {
        (&self.id, self.arch, self.backend) == (&other.id, other.arch, other.backend)
    }
}

impl Bundle {
    /// Opens the bundle in the folder `path`. Its kernels are read and checked when they are requested.
    ///
    /// The folder and all files that are used in it must belong to this user or to root, and nobody else may write to
    /// it.
    ///
    /// # Errors
    /// [`GenError::ReadBundle`]
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, GenError> {
        let path = path.into();
        match read_manifest(&path) {
            Ok(manifest) => Ok(Self { path, manifest }),
            Err(source) => Err(GenError::ReadBundle { path, source }),
        }
    }

    /// Writes `kernels` as the bundle `path`. The bundle appears complete or not at all. It replaces an older bundle.
    ///
    /// # Errors
    /// [`GenError::NotABundle`] if `path` has something else in it, [`GenError::WriteBundle`]
    pub fn write(
        path: &Path,
        kernels: impl IntoIterator<Item = (CudaSource, Key, Cubin)>,
    ) -> Result<(), GenError> {
        let compiled = kernels.into_iter().map(|(source, key, cubin)| {
            let listed = Listed::of(&cubin, key);
            let write = move |dir: &Path| write_entry(dir, &key, &source, &cubin);
            (listed, Box::new(write) as Write<'_>)
        });
        write_checked(path, compiled)
    }

    /// Writes the kernels of `bundles`, and then `kernels`, as the bundle `path`, which may be one of `bundles`. A kernel
    /// replaces a kernel before it that has the same name, architecture and backend. Returns the names of kernels that another
    /// version has replaced.
    ///
    /// # Errors
    /// [`GenError::NotABundle`] if `path` has something else in it, [`GenError::WriteBundle`] also if a kernel is damaged
    pub fn merge(
        path: &Path,
        bundles: &[Self],
        kernels: Vec<(CudaSource, Key, Cubin)>,
    ) -> Result<Vec<String>, GenError> {
        let stored = bundles.iter().flat_map(|bundle| {
            let kernels = bundle.manifest.kernels.iter();
            kernels.map(|kernel| (kernel.clone(), bundle.copy(kernel)))
        });
        let compiled = kernels.iter().map(|(source, key, cubin)| {
            let write = move |dir: &Path| write_entry(dir, key, source, cubin);
            (Listed::of(cubin, *key), Box::new(write) as Write<'_>)
        });
        let mut replaced = Vec::new();
        let mut all: Vec<(Listed, Write<'_>)> = Vec::new();
        for (new, write) in stored.chain(compiled) {
            match all.iter_mut().find(|(old, _)| old.is_same_kernel(&new)) {
                Some(old) => {
                    if old.0.key != new.key {
                        replaced.push(new.id.clone());
                    }
                    *old = (new, write);
                }
                None => all.push((new, write)),
            }
        }
        write_checked(path, all)?;
        Ok(replaced)
    }

    /// Copies a kernel of this bundle.
    fn copy<'a>(&'a self, kernel: &'a Listed) -> Write<'a> {
        Box::new(move |dir| {
            let folder = Folder::open(&self.path)?;
            copy_entry(&folder, &kernel.key, dir).map_err(|fault| {
                let reason = with_causes(&fault);
                io::Error::other(format!("its kernel {} is damaged: {reason}", kernel.id))
            })
        })
    }

    /// The folder of the bundle.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The undamaged kernels, in the order in which they were written.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        let Ok(folder) = Folder::open(&self.path) else {
            return Vec::new();
        };
        let kernels = self.manifest.kernels.iter();
        kernels
            .filter_map(|kernel| Entry::read(&folder, kernel.key.to_string().as_ref()))
            .collect()
    }

    /// All kernels that the bundle lists, in the order in which they were written. Their machine code is compared with its
    /// checksum.
    #[must_use]
    pub fn kernels(&self) -> Vec<BundledKernel> {
        let listed = self.manifest.kernels.iter();
        listed
            .map(|kernel| BundledKernel {
                id: kernel.id.clone(),
                arch: kernel.arch,
                backend: kernel.backend,
                key: kernel.key,
                entry: self.checked_entry(&kernel.key),
            })
            .collect()
    }

    fn checked_entry(&self, key: &Key) -> Result<Entry, String> {
        let fault = |fault: EntryFault| with_causes(&fault);
        self.read(key).map_err(fault)?;
        let folder = Folder::open(&self.path).map_err(|error| with_causes(&error))?;
        Entry::read(&folder, key.to_string().as_ref())
            .ok_or_else(|| "it was removed while it was read".to_owned())
    }

    /// Whether the bundle lists a kernel with this name, architecture and backend.
    pub(crate) fn lists(&self, id: &str, arch: Arch, backend: Backend) -> bool {
        let mut kernels = self.manifest.kernels.iter();
        kernels.any(|kernel| (&*kernel.id, kernel.arch, kernel.backend) == (id, arch, backend))
    }

    /// Reads the kernel of `key`, if the bundle lists it.
    pub(crate) fn read(&self, key: &Key) -> Result<Option<Cubin>, EntryFault> {
        if !self
            .manifest
            .kernels
            .iter()
            .any(|kernel| kernel.key == *key)
        {
            return Ok(None);
        }
        match read_entry(&Folder::open(&self.path)?, key)? {
            Some(cubin) => Ok(Some(cubin)),
            None => Err(EntryFault::Io(io::ErrorKind::NotFound.into())),
        }
    }
}

fn read_manifest(path: &Path) -> Result<Manifest, BundleFault> {
    #[derive(Deserialize)]
    struct Versioned {
        schema: u32,
    }
    let json = Folder::open(path)?.read(BUNDLE_MANIFEST)?;
    let Versioned { schema } = serde_json::from_slice(&json)?;
    if schema != SCHEMA {
        return Err(BundleFault::Schema {
            found: schema,
            expected: SCHEMA,
        });
    }
    Ok(serde_json::from_slice(&json)?)
}

/// Whether a bundle can be written to `path`, because nothing, an empty folder or a bundle is there.
fn is_replaceable(path: &Path) -> bool {
    match fs::read_dir(path) {
        Ok(mut names) => names.next().is_none() || path.join(BUNDLE_MANIFEST).is_file(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

fn write_checked<'a>(
    path: &Path,
    kernels: impl IntoIterator<Item = (Listed, Write<'a>)>,
) -> Result<(), GenError> {
    if !is_replaceable(path) {
        return Err(GenError::NotABundle(path.to_owned()));
    }
    write_and_swap(path, kernels).map_err(|source| GenError::WriteBundle {
        path: path.to_owned(),
        source,
    })
}

fn write_and_swap<'a>(
    path: &Path,
    kernels: impl IntoIterator<Item = (Listed, Write<'a>)>,
) -> io::Result<()> {
    // The parent of a plain name such as `out` is empty, which means the current folder.
    let parent = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    fs::create_dir_all(parent)?;
    let temporary = public_tempdir(parent)?;
    let mut manifest = Manifest {
        schema: SCHEMA,
        kernels: Vec::new(),
    };
    for (listed, write) in kernels {
        if manifest
            .kernels
            .iter()
            .any(|kernel| kernel.key == listed.key)
        {
            continue;
        }
        let folder = temporary.path().join(listed.key.to_string());
        fs::DirBuilder::new().mode(0o755).create(&folder)?;
        write(&folder)?;
        manifest.kernels.push(listed);
    }
    let json = serde_json::to_vec_pretty(&manifest)?;
    write_file(&temporary.path().join(BUNDLE_MANIFEST), &json)?;
    sync_dir(temporary.path())?;
    replace(path, temporary.path())?;
    sync_dir(parent)
}

/// Renames the folder `new` to `path`. A bundle that has this name is renamed first, and removed.
fn replace(path: &Path, new: &Path) -> io::Result<()> {
    let Err(error) = fs::rename(new, path) else {
        return Ok(());
    };
    if !path.is_dir() {
        return Err(error);
    }
    if renameat_with(CWD, new, CWD, path, RenameFlags::EXCHANGE).is_err() {
        // Network file systems cannot exchange names, so there is no bundle for a moment.
        let aside = public_tempdir(new.parent().unwrap_or(Path::new(".")))?;
        fs::rename(path, aside.path())?;
        fs::rename(new, path)?;
    }
    Ok(())
}
