//! The files and folders that mkernel creates in a cache. Other files and folders are never removed.
//!
//! A cache has the file [`TAG`], which mkernel writes into folders that it creates or finds empty. A folder without
//! this file is used as a cache only if mkernel could have given all names in it.

use crate::bundle::BUNDLE_MANIFEST;
use crate::disk::TEMPORARY;
use crate::entry::{ENTRY_FILES, MANIFEST};
use crate::folder::Folder;
use crate::key::Key;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

/// The file that marks a cache. Its signature is a standard by which backup programs recognise caches.
pub(crate) const TAG: &str = "CACHEDIR.TAG";

const TAG_TEXT: &str = "Signature: 8a477f597d28d172789f06886806bc55
# This folder is a cache of mkernel, which may remove what it has stored here.
";

/// The name of the log in a folder of [`Subfolder::Failed`].
pub(crate) const LOG: &str = "log.txt";

/// The folders in a cache whose contents may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subfolder {
    /// Entries, named by their keys.
    Kernels,
    /// Folders that are being written or removed.
    Tmp,
    /// Sources and logs of kernels that did not compile.
    Failed,
    /// Damaged entries.
    Quarantine,
}

impl Subfolder {
    pub const ALL: [Self; 4] = [Self::Kernels, Self::Tmp, Self::Failed, Self::Quarantine];

    /// The name of the folder.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernels => "kernels",
            Self::Tmp => "tmp",
            Self::Failed => "failed",
            Self::Quarantine => "quarantine",
        }
    }

    /// Whether mkernel has created `name` in this subfolder. `folder` is the open subfolder.
    pub fn is_from_mkernel(self, folder: &Folder, name: &OsStr) -> bool {
        let Some(text) = name.to_str() else {
            return false;
        };
        let Ok(found) = folder.folder(name) else {
            return false;
        };
        match self {
            Self::Kernels => {
                text.parse::<Key>().is_ok()
                    && found.has(MANIFEST)
                    && found.names().is_ok_and(|names| {
                        names
                            .iter()
                            .all(|name| ENTRY_FILES.iter().any(|file| name == file))
                    })
            }
            Self::Tmp | Self::Quarantine => text.strip_prefix(TEMPORARY).is_some_and(|rest| {
                rest.len() == 6 && rest.bytes().all(|c| c.is_ascii_alphanumeric())
            }),
            Self::Failed => {
                let is_key = |digits: &str| {
                    digits.len() == 16
                        && digits
                            .bytes()
                            .all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
                };
                text.rsplit_once('-')
                    .is_some_and(|(_, digits)| is_key(digits))
                    && found.has(LOG)
            }
        }
    }
}

/// Opens the folder of a cache for writing, and creates and marks it if necessary. It is accessible to this user only,
/// as the XDG specification requires.
pub(crate) fn make_root(path: &Path) -> io::Result<Folder> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)?;
    let root = Folder::open(path)?;
    if !is_tagged(&root) {
        if let Some(foreign) = foreign(&root)? {
            return Err(io::Error::other(not_a_cache(&root, &foreign)));
        }
        tag(&root)?;
    }
    Ok(root)
}

/// The reason why `root` cannot be used as a cache, if there is one.
pub(crate) fn refusal(root: &Folder) -> io::Result<Option<String>> {
    if is_tagged(root) {
        return Ok(None);
    }
    Ok(foreign(root)?.map(|foreign| not_a_cache(root, &foreign)))
}

fn not_a_cache(root: &Folder, foreign: &OsStr) -> String {
    format!(
        "{} has no {TAG} of mkernel, and it contains {}, which mkernel did not create; choose an empty or new folder",
        root.path().display(),
        foreign.display()
    )
}

fn is_tagged(root: &Folder) -> bool {
    !is_bundle(root) && root.read(TAG).is_ok_and(|text| text == TAG_TEXT.as_bytes())
}

/// Whether the folder of kernels is an ahead-of-time bundle, whose entries look like those of a cache.
fn is_bundle(root: &Folder) -> bool {
    let kernels = root.folder(Subfolder::Kernels.name());
    kernels.is_ok_and(|kernels| kernels.has(BUNDLE_MANIFEST))
}

/// The first name in `root` that mkernel did not give.
pub(crate) fn foreign(root: &Folder) -> io::Result<Option<OsString>> {
    if is_bundle(root) {
        return Ok(Some(
            Path::new(Subfolder::Kernels.name())
                .join(BUNDLE_MANIFEST)
                .into_os_string(),
        ));
    }
    let names = root.names()?;
    Ok(names.into_iter().find(|name| !is_known_name(name)))
}

/// Whether mkernel gives this name to files or folders in a cache.
pub(crate) fn is_known_name(name: &OsStr) -> bool {
    let is_fixed = |fixed: &str| name == fixed;
    Subfolder::ALL.iter().any(|part| is_fixed(part.name()))
        || ["locks", "nvrtc", TAG].into_iter().any(is_fixed)
        || name
            .to_str()
            .is_some_and(|name| name.starts_with(TEMPORARY) || name.starts_with(".nvrtc-"))
}

fn tag(root: &Folder) -> io::Result<()> {
    let mut file = tempfile::Builder::new()
        .prefix(TEMPORARY)
        .permissions(fs::Permissions::from_mode(0o644))
        .tempfile_in(root.pinned())?;
    file.write_all(TAG_TEXT.as_bytes())?;
    file.persist(root.pinned().join(TAG))?;
    Ok(())
}
