//! [`memory_file`]: a shared library that is in memory. Libraries in files of the temporary folder cannot be loaded if the
//! folder is mounted with `noexec`.

use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;

/// Returns an open file in memory with these contents, and the path by which the loader opens it. The file must stay open
/// while a library of that path is loaded: the loader identifies libraries by their paths, and this path contains the
/// number of the open file.
pub(crate) fn memory_file(name: &str, bytes: &[u8]) -> io::Result<(File, String)> {
    let mut file = File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    Ok((file, path))
}
