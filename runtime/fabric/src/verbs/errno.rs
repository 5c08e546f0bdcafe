//! Conversion of return values and texts of libibverbs.

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::ffi::{CStr, c_char, c_int};
use std::io;

/// Returns why a function returned a null pointer.
pub(super) fn last_error() -> io::Error {
    io::Error::last_os_error()
}

/// Returns why a function returned a null pointer, in words. A limit of this process that may be the cause is named with its
/// value.
pub(super) fn failure() -> String {
    let error = last_error();
    let limit = |resource| {
        let limit = getrlimit(resource).current;
        limit.map_or_else(|| "unlimited".to_owned(), |most| most.to_string())
    };
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOMEM | Errno::AGAIN | Errno::PERM) => format!(
            "{error}; the limit of locked memory in bytes is {} (`ulimit -l` in KiB, LimitMEMLOCK in systemd), and NICs need more \
             than the regions",
            limit(Resource::Memlock)
        ),
        Some(Errno::MFILE) => format!(
            "{error}; the limit of open files is {} (`ulimit -n`, LimitNOFILE in systemd)",
            limit(Resource::Nofile)
        ),
        _ => error.to_string(),
    }
}

/// Converts the return value of a function: 0, an error number, or -1 with the number in `errno`.
pub(super) fn result(code: c_int) -> io::Result<()> {
    match code {
        0 => Ok(()),
        -1 => Err(last_error()),
        code => Err(io::Error::from_raw_os_error(code.abs())),
    }
}

/// Copies a text of the library.
///
/// # Safety
///
/// `text` must be null or a string that is never freed.
pub(super) unsafe fn static_text(text: *const c_char) -> String {
    if text.is_null() {
        return "unknown".into();
    }
    // SAFETY: the caller guarantees it.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}
