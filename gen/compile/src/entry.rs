//! The format of a stored kernel in the cache and in bundles. It is a folder, named after the key, with the files
//! `kernel.cubin`, `kernel.cu` and `manifest.json`. The source is only for people. The manifest has checksums of the
//! machine code and of itself.

use crate::compiler::Compiler;
use crate::cubin::{Cubin, Resources};
use crate::disk::{folder_bytes, modified, sync_dir, write_file};
use crate::elf;
use crate::folder::Folder;
use crate::key::{Key, SCHEMA, hex};
use crate::source::CudaSource;
use mkernel_spec::{Arch, Backend};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

const CUBIN: &str = "kernel.cubin";
const SOURCE: &str = "kernel.cu";
pub(crate) const MANIFEST: &str = "manifest.json";

/// The files of an entry.
pub(crate) const ENTRY_FILES: [&str; 3] = [CUBIN, SOURCE, MANIFEST];

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    schema: u32,
    id: String,
    key: Key,
    arch: Arch,
    backend: Backend,
    compiler: String,
    resources: Option<Resources>,
    log: String,
    cubin_bytes: u64,
    cubin_sha256: String,
    /// The checksum of this manifest with this field empty.
    manifest_sha256: String,
}

impl Manifest {
    fn new(key: &Key, cubin: &Cubin) -> Self {
        let mut manifest = Self {
            schema: SCHEMA,
            id: cubin.id.clone(),
            key: *key,
            arch: cubin.arch,
            backend: cubin.backend,
            compiler: Compiler::of(cubin.arch, cubin.backend).name,
            resources: cubin.resources,
            log: cubin.log.clone(),
            cubin_bytes: cubin.bytes.len() as u64,
            cubin_sha256: sha256(&cubin.bytes),
            manifest_sha256: String::new(),
        };
        manifest.manifest_sha256 = sha256(&manifest.to_json());
        manifest
    }

    fn to_json(&self) -> Vec<u8> {
        let mut json = serde_json::to_vec_pretty(self)
            .expect("a struct of texts and numbers can be serialised");
        json.push(b'\n');
        json
    }

    /// Reads the manifest in `folder` and verifies its checksum.
    fn read(folder: &Folder) -> Result<Self, EntryFault> {
        /// The field that every version of the format has.
        #[derive(Deserialize)]
        struct Versioned {
            schema: u32,
        }
        let json = folder.read(MANIFEST)?;
        let Versioned { schema } = serde_json::from_slice(&json)?;
        if schema != SCHEMA {
            return Err(EntryFault::Schema(schema));
        }
        let mut manifest: Self = serde_json::from_slice(&json)?;
        let stated = std::mem::take(&mut manifest.manifest_sha256);
        if stated != sha256(&manifest.to_json()) {
            return Err(EntryFault::Checksum(MANIFEST));
        }
        Ok(manifest)
    }
}

/// The reason why a stored kernel cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EntryFault {
    #[error("it cannot be read")]
    Io(#[from] io::Error),
    /// The cache cannot be read, so that nothing is known about the kernel.
    #[error("the cache cannot be read")]
    Cache(#[source] io::Error),
    #[error("manifest.json is damaged")]
    Json(#[from] serde_json::Error),
    #[error("it has format {0}, not {SCHEMA}")]
    Schema(u32),
    #[error("it is for another key")]
    Key,
    #[error("{0} does not match its checksum")]
    Checksum(&'static str),
    #[error("kernel.cubin is not a complete ELF image: {0}")]
    Image(&'static str),
}

/// Reads the kernel of `key` in the folder `parent`, if the folder has it. Both files are read into memory once, and
/// checked in memory.
pub(crate) fn read_entry(parent: &Folder, key: &Key) -> Result<Option<Cubin>, EntryFault> {
    let folder = match parent.folder(key.to_string()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let manifest = Manifest::read(&folder)?;
    if manifest.key != *key {
        return Err(EntryFault::Key);
    }
    let bytes = folder.read(CUBIN)?;
    if bytes.len() as u64 != manifest.cubin_bytes || sha256(&bytes) != manifest.cubin_sha256 {
        return Err(EntryFault::Checksum(CUBIN));
    }
    elf::check(&bytes).map_err(EntryFault::Image)?;
    Ok(Some(Cubin {
        id: manifest.id,
        arch: manifest.arch,
        backend: manifest.backend,
        bytes,
        resources: manifest.resources,
        log: manifest.log,
    }))
}

/// Copies the kernel of `key` in the folder `parent` to the empty folder `dir`, if it is undamaged, and makes it durable.
pub(crate) fn copy_entry(parent: &Folder, key: &Key, dir: &Path) -> Result<(), EntryFault> {
    read_entry(parent, key)?.ok_or(EntryFault::Io(io::ErrorKind::NotFound.into()))?;
    let folder = parent.folder(key.to_string())?;
    for name in ENTRY_FILES {
        write_file(&dir.join(name), &folder.read(name)?)?;
    }
    Ok(sync_dir(dir)?)
}

/// Writes a kernel to the empty folder `dir` and makes it durable.
pub(crate) fn write_entry(
    dir: &Path,
    key: &Key,
    source: &CudaSource,
    cubin: &Cubin,
) -> io::Result<()> {
    write_file(&dir.join(SOURCE), source.text.as_bytes())?;
    write_file(&dir.join(CUBIN), &cubin.bytes)?;
    write_file(&dir.join(MANIFEST), &Manifest::new(key, cubin).to_json())?;
    sync_dir(dir)
}

/// A stored kernel, as `mkernel-gen list` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The content address of the kernel.
    pub key: Key,
    /// The symbol of the kernel.
    pub id: String,
    /// The architecture for which the kernel was written.
    pub arch: Arch,
    /// The compiler that made the machine code, without its version.
    pub backend: Backend,
    /// The resources of an SM that the kernel uses. `None` for simulated GPUs.
    pub resources: Option<Resources>,
    /// The compiler that made the machine code, such as `NVRTC 13.0, sm_90a`.
    pub compiler: String,
    /// The folder of the entry.
    pub path: PathBuf,
    /// The total size of the entry's files.
    pub bytes: u64,
    /// The time at which the entry was stored.
    pub stored: SystemTime,
}

impl Entry {
    /// Reads the description of the kernel in the folder `name` of `parent`. `None` if the entry is missing or damaged.
    pub(crate) fn read(parent: &Folder, name: &OsStr) -> Option<Self> {
        let folder = parent.folder(name).ok()?;
        let manifest = Manifest::read(&folder).ok()?;
        let stored = modified(&folder.pinned());
        Some(Self {
            key: manifest.key,
            id: manifest.id,
            arch: manifest.arch,
            backend: manifest.backend,
            resources: manifest.resources,
            compiler: manifest.compiler,
            bytes: folder_bytes(&folder.pinned()),
            path: folder.path().to_owned(),
            stored,
        })
    }
}

fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}
