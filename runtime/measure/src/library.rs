//! The search for libraries of NVIDIA.

use crate::Failure;
use libloading::Library;
use mkernel_compile::Env;
use std::error::Error;
use std::ffi::c_int;
use std::fs;
use std::path::{Path, PathBuf};

/// A library, and the places where it is searched.
pub(crate) struct Wanted {
    /// The name in messages.
    pub name: &'static str,
    /// The flag that gives the folder.
    pub flag: &'static str,
    /// The files of each known version, the newest first. A file may need the files before it, and finds a file by name once
    /// it is loaded.
    pub versions: &'static [&'static [&'static str]],
    /// The folders of Python packages, below `nvidia`.
    pub packages: &'static [&'static str],
}

impl Wanted {
    /// Loads the files of the newest version from `dir`, or else by the loader's search, from CUDA toolkits or from Python
    /// packages.
    pub fn open(&self, dir: Option<&Path>) -> Result<Vec<Library>, Failure> {
        let mut looked = Vec::new();
        let dirs = dir.map_or_else(|| self.candidates(), |dir| vec![dir.to_owned()]);
        for dir in dirs {
            for files in self.versions {
                // SAFETY: the initialisers of NVIDIA's libraries have no requirements.
                let libraries = files
                    .iter()
                    .map(|file| unsafe { Library::new(dir.join(file)) });
                match libraries.collect::<Result<Vec<_>, _>>() {
                    Ok(libraries) => return Ok(libraries),
                    // The reason of the loader has the name of the file.
                    Err(error) => looked.push(match error.source() {
                        Some(reason) => reason.to_string(),
                        None => error.to_string(),
                    }),
                }
            }
        }
        let (name, flag, looked) = (self.name, self.flag, looked.join("\n  "));
        Err(
            format!("{name} was not found; give its folder with {flag}. Looked for:\n  {looked}")
                .into(),
        )
    }

    fn candidates(&self) -> Vec<PathBuf> {
        let env = Env::get();
        let mut dirs = vec![PathBuf::new()]; // a bare name is searched in the loader's path
        dirs.extend(env.cuda_toolkits.iter().map(|home| home.join("lib64")));
        dirs.push("/usr/local/cuda/lib64".into());
        let prefixes = env.virtual_env.iter().map(PathBuf::as_path);
        let prefixes = prefixes.chain(env.path.iter().filter_map(|bin| bin.parent()));
        for site in prefixes.flat_map(site_packages) {
            let nvidia = site.join("nvidia");
            let packages = self.packages.iter();
            dirs.extend(packages.map(|package| nvidia.join(package).join("lib")));
        }
        dirs.retain(|dir| dir.as_os_str().is_empty() || dir.is_dir());
        dirs
    }
}

/// Converts the status of a function of a library, where 0 is success.
pub(crate) fn succeed(call: &str, status: c_int) -> Result<(), Failure> {
    match status {
        0 => Ok(()),
        status => Err(format!("{call} failed with status {status}").into()),
    }
}

fn site_packages(prefix: &Path) -> Vec<PathBuf> {
    let folders = fs::read_dir(prefix.join("lib"))
        .into_iter()
        .flatten()
        .flatten();
    let pythons = folders.filter(|dir| dir.file_name().to_string_lossy().starts_with("python3"));
    pythons
        .map(|dir| dir.path().join("site-packages"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::Wanted;

    #[test]
    fn a_missing_library_is_named_with_its_flag_and_files() {
        let wanted = Wanted {
            name: "NCCL",
            flag: "--nccl-dir",
            versions: &[&["libnccl.so.2"]],
            packages: &["nccl"],
        };
        let dir = std::env::temp_dir().join("no such folder");
        let error = wanted.open(Some(&dir)).expect_err("missing").to_string();
        assert!(
            error.starts_with("NCCL was not found; give its folder with --nccl-dir"),
            "{error}"
        );
        assert!(error.contains("no such folder/libnccl.so.2"), "{error}");
    }
}
