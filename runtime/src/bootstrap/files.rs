//! Limits of open files. Every connection, socket and exported allocation is an open file, and a process may have only
//! a limited number.

use crate::error::Error;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::{Arc, Once};

/// The highest limit to request, which is more than any job needs. For some programs, a higher limit costs time, since they act
/// on each file that could be open.
const ENOUGH: u64 = 1 << 20;

/// Raises this process's soft limit of open files to its hard limit, but at most to [`ENOUGH`]. Only the first call
/// does so. Rank 0 has a connection to every rank, and the usual soft limit is 1024.
pub(crate) fn raise_limit() {
    static RAISED: Once = Once::new();
    RAISED.call_once(|| {
        let limit = getrlimit(Resource::Nofile);
        let hard = limit.maximum.unwrap_or(ENOUGH).min(ENOUGH);
        let Some(soft) = limit.current.filter(|soft| *soft < hard) else {
            return;
        };
        let raised = Rlimit {
            current: Some(hard),
            ..limit
        };
        match setrlimit(Resource::Nofile, raised) {
            Ok(()) => tracing::debug!(soft, hard, "the limit of open files was raised"),
            Err(error) => tracing::warn!(%error, soft, "the limit of open files cannot be raised"),
        }
    });
}

/// Converts the error of a call of the operating system. Too many open files become [`Error::OpenFiles`].
pub(crate) fn os(call: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| {
        let source = Arc::new(source);
        match is_exhausted(&source) {
            true => Error::OpenFiles {
                call,
                limit: getrlimit(Resource::Nofile).current,
                source,
            },
            false => Error::Os { call, source },
        }
    }
}

/// Returns whether a call failed because this process, or the system, cannot have more open files.
pub(crate) fn is_exhausted(error: &std::io::Error) -> bool {
    let exhausted = [Errno::MFILE, Errno::NFILE].map(|errno| Some(errno.raw_os_error()));
    exhausted.contains(&error.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_open_files_are_named_with_the_limit_and_a_way_out() {
        let error = |errno: Errno| os("accept")(errno.into());
        for errno in [Errno::MFILE, Errno::NFILE] {
            let Error::OpenFiles { limit, .. } = error(errno) else {
                panic!("{errno}");
            };
            let limit = limit.expect("a limit").to_string();
            let text = error(errno).to_string();
            assert!(text.contains(&limit), "{text}");
            assert!(
                text.contains("ulimit -n") && text.contains("fs.file-max"),
                "{text}"
            );
        }
        assert!(matches!(error(Errno::ACCESS), Error::Os { .. }));
    }
}
