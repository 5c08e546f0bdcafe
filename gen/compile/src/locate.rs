//! Where libnvrtc may be, and how to get it.

use crate::disk::folders_in;
use crate::env::Env;
use crate::nvrtc::PINNED_VERSION;
use std::fs;
use std::path::{Path, PathBuf};

/// The package that has the pinned NVRTC.
const PINNED_WHEEL: &str = "nvidia-cuda-nvrtc==13.0.88";

/// Where wheels keep the library, below the folder into which they are installed.
const WHEEL_LIB: &str = "nvidia/cu13/lib";

/// Where `mkernel-gen fetch-nvrtc` installs NVRTC: `nvrtc` in this user's mkernel cache (else in `MKERNEL_CACHE_DIR`).
/// None if there is neither.
#[must_use]
pub fn fetch_dir() -> Option<PathBuf> {
    fetch_dirs(Env::get()).into_iter().next()
}

/// The command that gets NVRTC, program first: `mkernel-gen fetch-nvrtc` runs it, messages show it.
#[must_use]
pub fn fetch_command() -> Vec<String> {
    let dir = fetch_dir().unwrap_or_else(|| "nvrtc".into());
    let words = [
        "python3",
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--target",
        &dir.to_string_lossy(),
        PINNED_WHEEL,
    ];
    words.map(str::to_owned).to_vec()
}

/// The same, as a person types it, with what else makes the library be found there.
pub(crate) fn fetch_command_line() -> String {
    let mut line = fetch_command().join(" ");
    if fetch_dir().is_none() {
        line.push_str(&format!(" && export MKERNEL_NVRTC=$PWD/nvrtc/{WHEEL_LIB}"));
    } else if Env::get().nvrtc.is_some() {
        line.push_str(" && unset MKERNEL_NVRTC");
    }
    line
}

/// A way to libnvrtc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Candidate {
    /// A file.
    File(PathBuf),
    /// A folder.
    Folder(PathBuf),
    /// The loader's own search (`LD_LIBRARY_PATH`, `/etc/ld.so.cache`).
    Loader,
}

/// Where to look, best first.
pub(crate) fn candidates(env: &Env) -> Vec<Candidate> {
    if let Some(path) = &env.nvrtc {
        return vec![if path.is_dir() {
            Candidate::Folder(path.clone())
        } else {
            Candidate::File(path.clone())
        }];
    }
    let toolkits = env
        .cuda_home
        .iter()
        .cloned()
        .chain(system_toolkits(Path::new("/usr/local")));
    let toolkits = toolkits.map(|toolkit| Candidate::Folder(toolkit.join("lib64")));
    let wheels = fetch_dirs(env).into_iter().chain(site_packages(env));
    let wheels = wheels.map(|site| Candidate::Folder(site.join(WHEEL_LIB)));
    toolkits.chain([Candidate::Loader]).chain(wheels).collect()
}

/// Toolkits in `base`: that of the pinned version, `cuda`, then others, newest first.
fn system_toolkits(base: &Path) -> Vec<PathBuf> {
    let pinned = format!("cuda-{}.{}", PINNED_VERSION.0, PINNED_VERSION.1);
    let mut names: Vec<String> = subfolders(base)
        .iter()
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
        .collect();
    names.retain(|name| name == "cuda" || name.starts_with("cuda-"));
    let version = |name: &str| -> Vec<u32> {
        name.trim_start_matches("cuda-")
            .split('.')
            .map(|part| part.parse().unwrap_or(0))
            .collect()
    };
    names.sort_by_key(|name| {
        (
            *name != pinned,
            name != "cuda",
            std::cmp::Reverse(version(name)),
        )
    });
    names.into_iter().map(|name| base.join(name)).collect()
}

fn fetch_dirs(env: &Env) -> Vec<PathBuf> {
    let bases = [env.user_cache(), env.cache_dir.clone()];
    bases
        .into_iter()
        .flatten()
        .map(|base| base.join("nvrtc"))
        .collect()
}

/// Folders into which pip installs: of the active environment, of each `python3` in `PATH`, of the user, of the system.
fn site_packages(env: &Env) -> Vec<PathBuf> {
    let pythons = env.path.iter().filter_map(|bin| {
        // Through links: the packages are those of the real interpreter's prefix.
        let python = fs::canonicalize(bin.join("python3")).ok()?;
        Some(python.parent()?.parent()?.to_owned())
    });
    let bin_prefixes = env
        .path
        .iter()
        .filter(|bin| bin.join("python3").exists())
        .filter_map(|bin| bin.parent());
    let mut prefixes: Vec<PathBuf> = env.virtual_env.iter().cloned().collect();
    prefixes.extend(bin_prefixes.map(Path::to_owned));
    prefixes.extend(pythons);
    prefixes.extend(env.home.iter().map(|home| home.join(".local")));
    prefixes.extend(["/usr/local".into(), "/usr".into()]);
    prefixes.extend(subfolders(Path::new("/opt")));

    let mut sites = Vec::new();
    for prefix in prefixes {
        for python in subfolders(&prefix.join("lib")) {
            let is_python = python
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("python3"));
            for name in ["site-packages", "dist-packages"] {
                let site = python.join(name);
                if is_python && site.is_dir() && !sites.contains(&site) {
                    sites.push(site);
                }
            }
        }
    }
    sites
}

fn subfolders(path: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<_> = folders_in(path).collect();
    folders.sort();
    folders
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    fn env(vars: &[(&str, &Path)]) -> Env {
        Env::read(|name| {
            vars.iter()
                .find(|(n, _)| *n == name)
                .map(|(_, v)| OsString::from(v))
        })
    }

    #[test]
    fn a_path_given_by_hand_is_the_only_one() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let file = dir.path().join("libnvrtc.so.13");
        let given =
            |path: &Path| candidates(&env(&[("MKERNEL_NVRTC", path), ("CUDA_HOME", dir.path())]));
        assert_eq!(given(dir.path()), [Candidate::Folder(dir.path().into())]);
        assert_eq!(given(&file), [Candidate::File(file.clone())]);
    }

    #[test]
    fn the_pinned_toolkit_comes_first() {
        let base = tempfile::tempdir().expect("temporary folder");
        for name in [
            "cuda",
            "cuda-12.4",
            "cuda-13.0",
            "cuda-13.10",
            "cuda-13.2",
            "other",
        ] {
            fs::create_dir(base.path().join(name)).expect("folder");
        }
        let expected = ["cuda-13.0", "cuda", "cuda-13.10", "cuda-13.2", "cuda-12.4"];
        assert_eq!(
            system_toolkits(base.path()),
            expected.map(|name| base.path().join(name))
        );
    }

    #[test]
    fn toolkits_then_loader_then_fetched_then_wheels() {
        let root = tempfile::tempdir().expect("temporary folder");
        let venv = root.path().join("venv");
        let site = venv.join("lib/python3.12/site-packages");
        fs::create_dir_all(&site).expect("folder");
        let found = candidates(&env(&[
            ("CUDA_HOME", &root.path().join("toolkit")),
            ("HOME", root.path()),
            ("VIRTUAL_ENV", &venv),
        ]));
        let position = |wanted: Candidate| {
            found
                .iter()
                .position(|c| *c == wanted)
                .expect("a candidate")
        };
        let order = [
            Candidate::Folder(root.path().join("toolkit/lib64")),
            Candidate::Loader,
            Candidate::Folder(root.path().join(".cache/mkernel/nvrtc").join(WHEEL_LIB)),
            Candidate::Folder(site.join(WHEEL_LIB)),
        ];
        assert!(order.map(position).is_sorted());
    }
}
