//! What verbs return.

use std::ffi::{CStr, c_char, c_int};
use std::io;

/// Why a function returned no pointer.
pub(super) fn last_error() -> io::Error {
    io::Error::last_os_error()
}

/// What a function's number means: 0, an error number, or -1 with the number in `errno`.
pub(super) fn result(code: c_int) -> io::Result<()> {
    match code {
        0 => Ok(()),
        -1 => Err(last_error()),
        code => Err(io::Error::from_raw_os_error(code.abs())),
    }
}

/// A text of the library.
///
/// # Safety
///
/// `text` is null or a string that is never freed.
pub(super) unsafe fn static_text(text: *const c_char) -> String {
    if text.is_null() {
        return "unknown".into();
    }
    // SAFETY: by the caller's promise.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}
