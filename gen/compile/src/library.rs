//! Loading a shared library that only this user and root can change.

use crate::error::with_causes;
use crate::folder::Folder;
use crate::key::hex;
use libloading::Library;
use rustix::fs::{StatVfsMountFlags, fstatvfs};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The open file of a library. The file, its folder and the folder of the path by which it was opened belong to this
/// user or to root, and nobody else can write to them.
#[derive(Debug)]
pub(crate) struct LibraryFile {
    /// The path with all links resolved.
    pub path: PathBuf,
    file: File,
}

impl LibraryFile {
    /// Opens the library at `path` and checks its owner and mode.
    pub fn open(path: &Path) -> io::Result<Self> {
        let named_in = |path: &Path| path.parent().map_or(Ok(()), |p| Folder::open(p).map(drop));
        named_in(&std::path::absolute(path)?)?;
        let path = fs::canonicalize(path)?;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::IsADirectory.into());
        };
        let file = Folder::open(parent)?.file(name)?;
        Ok(Self { path, file })
    }

    /// The SHA-256 hash of the contents.
    pub fn sha256(&self) -> io::Result<String> {
        let mut hash = Sha256::new();
        let mut part = vec![0; 1 << 20];
        loop {
            match (&self.file).read(&mut part)? {
                0 => return Ok(hex(&hash.finalize())),
                bytes => hash.update(&part[..bytes]),
            }
        }
    }

    /// Loads the library from the file that was opened, even if its path has been replaced.
    ///
    /// # Safety
    /// The library's initialisers must be sound to run here.
    pub unsafe fn load(self) -> Result<Library, String> {
        let is_noexec = fstatvfs(&self.file).is_ok_and(|mount| forbids_code(mount.f_flag));
        let shown = self.path;
        let path = keep(self.file).map_err(|error| error.to_string())?;
        // SAFETY: by the caller.
        unsafe { Library::new(path) }.map_err(|error| {
            let error = with_causes(&error);
            match is_noexec {
                true => format!("{} {NOEXEC} ({error})", shown.display()),
                false => error,
            }
        })
    }
}

/// The reason why a library on such a file system cannot be loaded, and a remedy.
const NOEXEC: &str = "is on a file system that is mounted with noexec, from which no code can be loaded; run `mkernel-gen fetch-nvrtc --out DIR` with a folder of another one, and set MKERNEL_NVRTC to the library there";

/// Whether no code can be loaded from a file system with these flags.
fn forbids_code(flags: StatVfsMountFlags) -> bool {
    flags.contains(StatVfsMountFlags::NOEXEC)
}

/// The path of an open file, which then stays open until the process ends. The loader identifies libraries by their
/// paths and may keep a library that was closed. The path must therefore never refer to another file.
fn keep(file: File) -> io::Result<PathBuf> {
    static MAX_KEPT: Mutex<Vec<((u64, u64), File)>> = Mutex::new(Vec::new());
    let metadata = file.metadata()?;
    let id = (metadata.dev(), metadata.ino());
    let mut kept = crate::lock::lock(&MAX_KEPT);
    let known = kept.iter().position(|(other, _)| *other == id);
    let index = known.unwrap_or_else(|| {
        kept.push((id, file));
        kept.len() - 1
    });
    Ok(format!("/proc/self/fd/{}", kept[index].1.as_raw_fd()).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::is_untrusted;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn neither_the_folders_nor_the_file_may_be_open_to_others() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let at = |name: &str| dir.path().join(name);
        let chmod = |name: &str, mode| {
            fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).expect("own");
        };
        for folder in ["real", "named"] {
            fs::create_dir(at(folder)).expect("folder");
            chmod(folder, 0o755);
        }
        fs::write(at("real/lib.so.1.2"), "library").expect("file");
        chmod("real/lib.so.1.2", 0o644);
        symlink("../real/lib.so.1.2", at("named/lib.so")).expect("link");
        let path = at("named/lib.so");
        let file = LibraryFile::open(&path).expect("own");
        assert_eq!(
            file.path,
            fs::canonicalize(at("real/lib.so.1.2")).expect("there")
        );
        assert_eq!(
            file.sha256().expect("read"),
            "b718f1354f7247312eca086d9a024afe5fa717ddea5adeddd6f12bcf945b2e8c"
        );
        for open_to_others in ["real/lib.so.1.2", "real", "named"] {
            let mode = fs::metadata(at(open_to_others))
                .expect("own")
                .permissions()
                .mode();
            chmod(open_to_others, mode | 0o020);
            let error = LibraryFile::open(&path).expect_err(open_to_others);
            assert!(is_untrusted(&error), "{error}");
            chmod(open_to_others, mode);
        }
        LibraryFile::open(&path).expect("own again");
    }

    #[test]
    fn a_mount_with_noexec_forbids_code() {
        let usual = StatVfsMountFlags::NOSUID | StatVfsMountFlags::NODEV;
        assert!(!forbids_code(usual));
        assert!(forbids_code(usual | StatVfsMountFlags::NOEXEC));
    }
}
