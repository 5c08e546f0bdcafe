//! Conversion of return values and texts of libibverbs.

use std::ffi::{CStr, c_char, c_int};
use std::io;

/// Returns why a function returned a null pointer.
pub(super) fn last_error() -> io::Error {
    io::Error::last_os_error()
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
