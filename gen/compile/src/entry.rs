//! The format of a stored kernel, the same in the cache and in bundles: a folder named after the key, with
//! `kernel.cubin`, `kernel.cu` (for people) and `manifest.json`, whose checksums cover all that is loaded.

use crate::compiler::Compiler;
use crate::cubin::{Cubin, Resources};
use crate::disk::{folder_bytes, modified, sync_dir, write_file};
use crate::elf;
use crate::folder::Folder;
use crate::key::{Key, SCHEMA, hex};
use crate::source::CudaSource;
use mkernel_spec::Target;
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
    target: Target,
    compiler: String,
    resources: Option<Resources>,
    log: String,
    cubin_bytes: u64,
    cubin_sha256: String,
    /// Of this manifest while this field is empty.
    manifest_sha256: String,
}

impl Manifest {
    fn new(key: &Key, cubin: &Cubin) -> Self {
        let mut manifest = Self {
            schema: SCHEMA,
            id: cubin.id.clone(),
            key: *key,
            target: cubin.target,
            compiler: Compiler::of(cubin.target).name,
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
        let mut json =
            serde_json::to_vec_pretty(self).expect("a struct of texts and numbers is JSON");
        json.push(b'\n');
        json
    }

    /// Reads the manifest in `folder`, and checks it against its own checksum.
    fn read(folder: &Folder) -> Result<Self, EntryFault> {
        /// What every version of the format has.
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

/// Why a stored kernel cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EntryFault {
    #[error("it cannot be read")]
    Io(#[from] io::Error),
    /// Not the kernel's fault: of the cache around it.
    #[error("the cache cannot be read")]
    Cache(#[source] io::Error),
    #[error("manifest.json is damaged")]
    Json(#[from] serde_json::Error),
    #[error("it has format {0}, not {SCHEMA}")]
    Schema(u32),
    #[error("it is for another key")]
    Key,
    #[error("{0} does not have its checksum")]
    Checksum(&'static str),
    #[error("kernel.cubin is no whole ELF image: {0}")]
    Image(&'static str),
}

/// Reads the kernel that is stored in `parent` under `key`; none if there is no such folder. Both files are read into
/// memory once and checked there.
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
        target: manifest.target,
        bytes,
        resources: manifest.resources,
        log: manifest.log,
    }))
}

/// Writes a kernel into the folder `dir`, which exists and is empty, and makes it durable.
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
    /// Its content address.
    pub key: Key,
    /// Its symbol.
    pub id: String,
    /// Whose machine code it is.
    pub target: Target,
    /// What it uses of an SM; none for simulated GPUs.
    pub resources: Option<Resources>,
    /// What compiled it, as `NVRTC 13.0`.
    pub compiler: String,
    /// Its folder.
    pub path: PathBuf,
    /// Size of the files in it.
    pub bytes: u64,
    /// When it was stored.
    pub stored: SystemTime,
}

impl Entry {
    /// Describes the kernel in the folder `name` of `parent`; none if that is no sound entry.
    pub(crate) fn read(parent: &Folder, name: &OsStr) -> Option<Self> {
        let folder = parent.folder(name).ok()?;
        let manifest = Manifest::read(&folder).ok()?;
        let stored = modified(&folder.pinned());
        Some(Self {
            key: manifest.key,
            id: manifest.id,
            target: manifest.target,
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
