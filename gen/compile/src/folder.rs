//! [`Folder`]: a folder that only this user and root can change, and its files.
//!
//! Users who can write to a cache determine which code runs in this process and on its GPUs. So kernels, locks and
//! libraries are used only if their folders and files belong to this user or to root and nobody else can write to them.
//!
//! The owner and the mode are read from open descriptors. Everything below a folder is opened through the folder's
//! descriptor without following links. So the file that is read is the file that was checked, even if a parent folder
//! is renamed or replaced meanwhile. Parent folders are not checked: a user who replaces a parent folder can only
//! substitute a folder that passes the same checks. If an access control list lets other users write, the group bits of
//! the mode show this permission, so such a folder is refused too.

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, mkdirat, openat, statat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The size limit for reading a file. Files of mkernel are smaller.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// The mode of new folders: everyone can read them, and only their owner can write, unless the umask is stricter.
const FOLDER_MODE: u32 = 0o755;

/// An error: another user can change a file or folder.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Untrusted {
    #[error(
        "{} belongs to user {owner}, neither to this user ({user}) nor to root; use a file or folder of your own",
        path.display()
    )]
    Owner {
        path: PathBuf,
        owner: u32,
        user: u32,
    },
    #[error(
        "other users can write to {} (mode {mode:o}), and so decide which code runs; use a folder that only you can write to{}",
        path.display(),
        if *is_private { ", or, if nobody else uses this one, take away their permission (chmod go-w)" } else { "" }
    )]
    Mode {
        path: PathBuf,
        mode: u32,
        /// Whether the file or folder belongs to this user, and no bit of its mode shows that it is meant for other
        /// users.
        is_private: bool,
    },
}

/// The bits of a mode that folders for several users have: the sticky bit, as `/tmp` has it, the set-group-ID bit, by
/// which new files belong to the group, and the permission of everybody to write.
const SHARED: u32 = 0o3002;

/// An open folder that only this user and root can change.
#[derive(Debug)]
pub(crate) struct Folder {
    fd: OwnedFd,
    path: PathBuf,
}

impl Folder {
    /// Opens the folder `path`. Links in the path are followed.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self::checked(openat(CWD, path, flags, Mode::empty())?, path.to_owned())
    }

    /// Opens the folder `name` in this folder. The name must not be a link.
    pub fn folder(&self, name: impl AsRef<OsStr>) -> io::Result<Self> {
        let name = name.as_ref();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(&self.fd, Path::new(name), flags, Mode::empty())?;
        Self::checked(fd, self.path.join(name))
    }

    /// Opens the folder `name` in this folder, and creates it if it does not exist.
    pub fn create_folder(&self, name: &str) -> io::Result<Self> {
        match mkdirat(&self.fd, name, Mode::from_raw_mode(FOLDER_MODE)) {
            Ok(()) | Err(Errno::EXIST) => self.folder(name),
            Err(errno) => Err(errno.into()),
        }
    }

    fn checked(fd: OwnedFd, path: PathBuf) -> io::Result<Self> {
        let stat = fstat(&fd)?;
        check(&path, stat.st_uid, stat.st_mode)?;
        Ok(Self { fd, path })
    }

    /// Opens the regular file `name` for reading.
    pub fn file(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        self.open_file(name.as_ref(), OFlags::RDONLY)
    }

    /// Opens the regular file `name` for writing, and creates it if it does not exist.
    pub fn create_file(&self, name: &str) -> io::Result<File> {
        self.open_file(name.as_ref(), OFlags::WRONLY | OFlags::CREATE)
    }

    fn open_file(&self, name: &OsStr, flags: OFlags) -> io::Result<File> {
        // Without NONBLOCK, opening a pipe would block until its other end is opened.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = openat(&self.fd, Path::new(name), flags, Mode::from_raw_mode(0o644))?;
        let path = self.path.join(name);
        let stat = fstat(&fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::Error::other(format!(
                "{} is not a file",
                path.display()
            )));
        }
        check(&path, stat.st_uid, stat.st_mode)?;
        Ok(File::from(fd))
    }

    /// Reads the file `name`.
    pub fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = self.file(name)?;
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(io::Error::other(format!(
                "{} is larger than {} MiB",
                self.path.join(name).display(),
                MAX_FILE_BYTES >> 20
            )));
        }
        Ok(bytes)
    }

    /// The names in this folder, sorted.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                names.push(name.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    /// Whether the name `name` exists, even if it is a dangling link.
    pub fn has(&self, name: impl AsRef<OsStr>) -> bool {
        statat(
            &self.fd,
            Path::new(name.as_ref()),
            AtFlags::SYMLINK_NOFOLLOW,
        )
        .is_ok()
    }

    /// The path for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path that refers to the open folder even if it was renamed. It becomes invalid when `self` is dropped.
    pub fn pinned(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd()).into()
    }
}

/// Checks that only this user and root can change a file with this owner and mode.
fn check(path: &Path, owner: u32, mode: u32) -> io::Result<()> {
    check_for(rustix::process::geteuid().as_raw(), path, owner, mode)
        .map_err(|untrusted| io::Error::new(io::ErrorKind::PermissionDenied, untrusted))
}

fn check_for(user: u32, path: &Path, owner: u32, mode: u32) -> Result<(), Untrusted> {
    let path = path.to_owned();
    let mode = mode & 0o7777;
    if owner != user && owner != 0 {
        return Err(Untrusted::Owner { path, owner, user });
    }
    if mode & 0o022 != 0 {
        let is_private = owner == user && mode & SHARED == 0;
        return Err(Untrusted::Mode {
            path,
            mode,
            is_private,
        });
    }
    Ok(())
}

/// Whether the error is that another user can change a file or folder.
pub(crate) fn is_untrusted(error: &io::Error) -> bool {
    error
        .get_ref()
        .is_some_and(|source| source.is::<Untrusted>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("own file");
    }

    #[test]
    fn only_this_user_and_root_are_trusted() {
        let checked = |owner, mode| check_for(1000, Path::new("f"), owner, mode).is_ok();
        for mode in [0o100_644, 0o40_755, 0o700, 0o1755] {
            assert!(checked(1000, mode) && checked(0, mode), "{mode:o}");
            assert!(!checked(1001, mode), "{mode:o}");
        }
        for mode in [0o664, 0o646, 0o1777, 0o40_775] {
            assert!(!checked(1000, mode) && !checked(0, mode), "{mode:o}");
        }
    }

    /// A user who follows a hint must not break a folder that others use, such as `/tmp`.
    #[test]
    fn no_hint_changes_a_shared_folder() {
        let hint = |owner, mode| {
            let refused = check_for(1000, Path::new("/tmp"), owner, mode).expect_err("untrusted");
            refused.to_string()
        };
        let shared = [
            (0, 0o1777),
            (0, 0o775),
            (1000, 0o1777),
            (1000, 0o1775),
            (1000, 0o2775),
            (1000, 0o777),
            (1000, 0o100_666),
            (1001, 0o775),
            (1001, 0o755),
        ];
        for (owner, mode) in shared {
            let text = hint(owner, mode);
            assert!(!text.contains("chmod"), "{owner} {mode:o}: {text}");
            assert!(text.contains("; use "), "{owner} {mode:o}: {text}");
        }
        for mode in [0o775, 0o100_664] {
            let text = hint(1000, mode);
            let ways = ["that only you can write to", "if nobody else", "chmod go-w"];
            assert!(ways.iter().all(|way| text.contains(way)), "{text}");
            assert!(!text.contains("-R"), "{text}");
        }
    }

    #[test]
    fn folders_and_files_that_others_can_write_are_refused() {
        let dir = tempfile::tempdir().expect("temporary folder");
        fs::create_dir(dir.path().join("sub")).expect("folder");
        fs::write(dir.path().join("sub/file"), "text").expect("file");
        chmod(&dir.path().join("sub"), 0o755);
        chmod(&dir.path().join("sub/file"), 0o644);
        let folder = Folder::open(dir.path()).expect("own, 0700");
        let sub = folder.folder("sub").expect("own, 0755");
        assert_eq!(sub.read("file").expect("own"), b"text");
        for mode in [0o666, 0o664] {
            chmod(&dir.path().join("sub/file"), mode);
            assert!(is_untrusted(&sub.read("file").expect_err("writable")));
        }
        for mode in [0o777, 0o1777, 0o775] {
            chmod(&dir.path().join("sub"), mode);
            let error = folder.folder("sub").expect_err("writable");
            assert!(is_untrusted(&error), "{error}");
        }
    }

    #[test]
    fn links_pipes_and_large_files_are_errors() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = |name: &str| dir.path().join(name);
        fs::write(path("file"), "text").expect("file");
        symlink("file", path("link")).expect("link");
        symlink(".", path("folder")).expect("link");
        let made = std::process::Command::new("mkfifo")
            .arg(path("pipe"))
            .status();
        assert!(made.expect("mkfifo starts").success());
        let large = File::create(path("large")).expect("file");
        large.set_len(MAX_FILE_BYTES + 1).expect("sparse");
        chmod(&path("large"), 0o644);
        let folder = Folder::open(dir.path()).expect("own");
        for name in ["link", "pipe", "large", "absent", "."] {
            assert!(folder.read(name).is_err(), "{name}");
        }
        assert!(folder.folder("folder").is_err());
        assert!(folder.create_file("pipe").is_err());
        large.set_len(MAX_FILE_BYTES).expect("sparse");
        assert_eq!(
            folder.read("large").expect("allowed").len() as u64,
            MAX_FILE_BYTES
        );
    }

    #[test]
    fn a_folder_stays_the_same_when_its_parent_is_replaced() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = |name: &str| dir.path().join(name);
        for (name, text) in [("parent", "checked"), ("other", "planted")] {
            let (folder, file) = (path(name).join("sub"), path(name).join("sub/file"));
            fs::create_dir_all(&folder).expect("folder");
            fs::write(&file, text).expect("file");
            chmod(&path(name), 0o755);
            chmod(&folder, 0o755);
            chmod(&file, 0o644);
        }
        let folder = Folder::open(&path("parent")).expect("own");
        fs::rename(path("parent"), path("aside")).expect("own");
        fs::rename(path("other"), path("parent")).expect("own");
        let sub = folder.folder("sub").expect("the one that was opened");
        assert_eq!(sub.read("file").expect("own"), b"checked");
        assert_eq!(
            fs::read(folder.pinned().join("sub/file")).expect("own"),
            b"checked"
        );
    }
}
