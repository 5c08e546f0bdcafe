//! Saves the sources, headers and logs of kernels that did not compile, so that users can inspect them.

use crate::cache::Cache;
use crate::cache_layout::LOG;
use crate::error::GenError;
use crate::host_cxx::{WRAPPER, wrapper};
use crate::key::Key;
use crate::source::{CudaSource, file_name};
use crate::templates::headers;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Saves the source of a kernel that the compiler rejected, and adds its path to `error`. Other errors are returned
/// unchanged.
pub(crate) fn save(
    cache: Option<&Cache>,
    key: &Key,
    source: &CudaSource,
    mut error: GenError,
) -> GenError {
    let (log, faults, saved) = match &mut error {
        GenError::Compile { log, saved, .. } => (log, &mut Vec::new(), saved),
        GenError::Rejected {
            log, faults, saved, ..
        } => (log, faults, saved),
        _ => return error,
    };
    let in_cache = cache.and_then(|cache| save_in_cache(cache, key, source, log).ok());
    // Without a usable cache, the source goes to a temporary folder.
    match in_cache.map_or_else(|| save_in_temporary(source, log), Ok) {
        Ok(folder) => {
            for line in faults.iter_mut().chain([log]) {
                *line = with_real_paths(line, &folder, source);
            }
            *saved = Some(folder);
        }
        Err(error) => tracing::warn!(
            "the source of kernel {} cannot be saved: {error}",
            source.id
        ),
    }
    error
}

fn save_in_cache(cache: &Cache, key: &Key, source: &CudaSource, log: &str) -> io::Result<PathBuf> {
    let name = format!("{}-{}", file_stem(source), &key.to_string()[..16]);
    cache.save_failed(&name, |folder, shown| write(folder, shown, source, log))
}

fn save_in_temporary(source: &CudaSource, log: &str) -> io::Result<PathBuf> {
    let folder = tempfile::Builder::new()
        .prefix("mkernel-failed-")
        .tempdir()?;
    write(folder.path(), folder.path(), source, log)?;
    Ok(folder.keep())
}

/// Writes everything that is needed to compile the kernel by hand to `folder`. Paths in the log begin with `shown`.
fn write(folder: &Path, shown: &Path, source: &CudaSource, log: &str) -> io::Result<()> {
    for (name, text) in headers(source.backend) {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        fs::write(path, text)?;
    }
    fs::write(source_path(folder, source), &source.text)?;
    if source.backend.is_simulated() {
        fs::write(
            folder.join(WRAPPER),
            wrapper(&file_stem(source), &source.id),
        )?;
    }
    fs::write(folder.join(LOG), with_real_paths(log, shown, source))
}

/// Replaces the file names in a compiler's log by paths in `folder`, which an editor can open.
fn with_real_paths(log: &str, folder: &Path, source: &CudaSource) -> String {
    let mut log = log.replace(
        &file_name(&source.id),
        &source_path(folder, source).to_string_lossy(),
    );
    let wrapper = source.backend.is_simulated().then_some(WRAPPER);
    let headers = headers(source.backend).iter().map(|(name, _)| *name);
    for name in headers.chain(wrapper) {
        log = log.replace(name, &folder.join(name).to_string_lossy());
    }
    log
}

fn source_path(folder: &Path, source: &CudaSource) -> PathBuf {
    folder.join(format!("{}.cu", file_stem(source)))
}

/// The name of the kernel without the characters that have a meaning in paths. The name is untrusted input.
fn file_stem(source: &CudaSource) -> String {
    source
        .id
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .take(100)
        .collect()
}
