//! Finds libnvrtc, and describes how to install it.

use crate::env::Env;
use crate::library::LibraryFile;
use crate::nvrtc_options::PINNED_VERSION;
use std::fs;
use std::path::{Path, PathBuf};

/// The package of the pinned NVRTC with the digests of its wheels for x86-64 and aarch64, as a line of a requirements
/// file of pip.
const PINNED_WHEEL: &str = "nvidia-cuda-nvrtc==13.0.88 \
--hash=sha256:ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575 \
--hash=sha256:d27f20a0ca67a4bb34268a5e951033496c5b74870b868bacd046b1b8e0c3267b";

/// The libraries of the package that are used, with their digests, for each architecture.
const PINNED_LIBRARIES: [(&str, [(&str, &str); 2]); 2] = [
    (
        "x86_64",
        [
            (
                "libnvrtc.so.13",
                "a49e67e8e74590f1e98de55c39c6287efd3f59e3c3797464d7bbe0fe01349b11",
            ),
            (
                "libnvrtc-builtins.so.13.0",
                "91dcd944d01da9c0f08fff5d779db136a47f6d62bdb63bae900d2f481e92c3a2",
            ),
        ],
    ),
    (
        "aarch64",
        [
            (
                "libnvrtc.so.13",
                "64db9c3fc128f4a57a22c314fda08831a8e3a725d439a70076a0fb98f7bea1b7",
            ),
            (
                "libnvrtc-builtins.so.13.0",
                "84f1c5031bfe1146375b367b2c7fb8d31ea00430be7172177eeb5d04ab813b69",
            ),
        ],
    ),
];

/// The folder of the library within the folder in which the wheel is installed.
const WHEEL_LIB: &str = "nvidia/cu13/lib";

/// The contents of the requirements file for [`fetch_command`].
pub const FETCHED: &str = PINNED_WHEEL;

/// The folder in which `mkernel-gen fetch-nvrtc` installs NVRTC. It is `nvrtc` in the mkernel cache of this user, or in
/// `MKERNEL_CACHE_DIR` if the user has no cache. `None` if neither folder is known.
#[must_use]
pub fn fetch_dir() -> Option<PathBuf> {
    fetch_dirs(Env::get()).into_iter().next()
}

/// The command that installs NVRTC to `dir`, as a program and its arguments. The file `requirements` must contain
/// [`FETCHED`].
///
/// The command runs no code of the current folder (`-I`) or of the package (`--only-binary`). It accepts only a package
/// with the digests above, from any index.
#[must_use]
pub fn fetch_command(requirements: &Path, dir: &Path) -> Vec<String> {
    let words = [
        "python3",
        "-I",
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--only-binary=:all:",
        "--require-hashes",
        "-r",
        &requirements.to_string_lossy(),
        "--target",
        &dir.to_string_lossy(),
    ];
    words.map(str::to_owned).to_vec()
}

/// The shell command of mkernel-gen that installs NVRTC, and the shell command of pip that does the same. Both commands also set or
/// unset `MKERNEL_NVRTC` if this is necessary to find the library.
pub(crate) fn fetch_command_lines() -> [String; 2] {
    let dir = fetch_dir().unwrap_or_else(|| "nvrtc".into());
    let command = fetch_command(Path::new("/dev/stdin"), &dir).join(" ");
    let (out, then) = match (fetch_dir(), &Env::get().nvrtc) {
        (None, _) => (
            " --out nvrtc",
            format!(" && export MKERNEL_NVRTC=$PWD/nvrtc/{WHEEL_LIB}"),
        ),
        (Some(_), Some(_)) => ("", " && unset MKERNEL_NVRTC".to_owned()),
        (Some(_), None) => ("", String::new()),
    };
    [
        format!("mkernel-gen fetch-nvrtc{out}{then}"),
        format!("echo '{PINNED_WHEEL}' | {command}{then}"),
    ]
}

/// The library that [`fetch_command`] has installed in `dir`, or `None` without a library. Verifies the digests of the library
/// and of its builtins, and that only this user and root can change these files.
///
/// # Errors
/// The reason why the library cannot be used.
pub fn fetched_library(dir: &Path) -> Result<Option<PathBuf>, String> {
    let folder = dir.join(WHEEL_LIB);
    let (_, names) = PINNED_LIBRARIES[0];
    let library = folder.join(names[0].0);
    if !library.exists() {
        return Ok(None);
    }
    for (name, _) in names {
        let path = folder.join(name);
        let file = LibraryFile::open(&path)
            .map_err(|error| format!("{} cannot be used: {error}", path.display()))?;
        check_digest(&file, &path)?;
    }
    Ok(Some(library))
}

/// Checks that a fetched library has the digest of the library in the package. The library was opened at `path`, which
/// may be a link to another library.
pub(crate) fn check_digest(file: &LibraryFile, path: &Path) -> Result<(), String> {
    let name = file.path.file_name().unwrap_or_default();
    let arch = std::env::consts::ARCH;
    let libraries = PINNED_LIBRARIES.iter().find(|(known, _)| *known == arch);
    let expected = libraries
        .and_then(|(_, libraries)| libraries.iter().find(|(known, _)| name == *known))
        .map(|(_, digest)| *digest);
    let digest = file.sha256().map_err(|error| error.to_string())?;
    if expected == Some(&*digest) {
        return Ok(());
    }
    // The library is in the subfolder `WHEEL_LIB` of the folder that `fetch-nvrtc` makes.
    let levels = 1 + Path::new(WHEEL_LIB).components().count();
    let fetched = path.ancestors().nth(levels).unwrap_or(path);
    Err(format!(
        "{} is not the library of {}: its SHA-256 is {digest}; rename {} and fetch the library again",
        file.path.display(),
        PINNED_WHEEL.split(' ').next().unwrap_or_default(),
        fetched.display()
    ))
}

/// A place to search for libnvrtc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SearchPath {
    /// The path of a library.
    File(PathBuf),
    /// A folder that may contain the library.
    Folder(PathBuf),
    /// The folder of a fetched library, whose digest is known.
    Fetched(PathBuf),
    /// The search of the loader (`LD_LIBRARY_PATH`, `/etc/ld.so.cache`).
    Loader,
}

/// The places to search, in order of preference.
pub(crate) fn search_paths(env: &Env) -> Vec<SearchPath> {
    if let Some(path) = &env.nvrtc {
        return vec![if path.is_dir() {
            SearchPath::Folder(path.clone())
        } else {
            SearchPath::File(path.clone())
        }];
    }
    let toolkits = env
        .cuda_toolkits
        .iter()
        .cloned()
        .chain(system_toolkits(Path::new("/usr/local")));
    let toolkits = toolkits.map(|toolkit| SearchPath::Folder(toolkit.join("lib64")));
    let fetched = fetch_dirs(env).into_iter();
    let fetched = fetched.map(|dir| SearchPath::Fetched(dir.join(WHEEL_LIB)));
    let wheels = site_packages(env).into_iter();
    let wheels = wheels.map(|site| SearchPath::Folder(site.join(WHEEL_LIB)));
    toolkits
        .chain([SearchPath::Loader])
        .chain(fetched)
        .chain(wheels)
        .collect()
}

/// The toolkits in `base`: first the toolkit of the pinned version, then `cuda`, then all other toolkits from new to old.
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

/// The folders in which NVRTC may have been installed by `mkernel-gen fetch-nvrtc`.
fn fetch_dirs(env: &Env) -> Vec<PathBuf> {
    let bases = [env.user_cache(), env.cache_dir.clone()];
    bases
        .into_iter()
        .flatten()
        .map(|base| base.join("nvrtc"))
        .collect()
}

/// The folders in which pip installs packages: the folders of the active environment, of each `python3` in `PATH`, of the user
/// and of the system.
fn site_packages(env: &Env) -> Vec<PathBuf> {
    let path = || env.path.iter().filter(|bin| bin.is_absolute());
    let pythons = path().filter_map(|bin| {
        // Links are resolved, since packages are in the prefix of the real interpreter.
        let python = fs::canonicalize(bin.join("python3")).ok()?;
        Some(python.parent()?.parent()?.to_owned())
    });
    let bin_prefixes = path()
        .filter(|bin| bin.join("python3").exists())
        .filter_map(|bin| bin.parent());
    let mut prefixes: Vec<PathBuf> = env.virtual_env.iter().cloned().collect();
    prefixes.extend(bin_prefixes.map(Path::to_owned));
    prefixes.extend(pythons);
    prefixes.extend(env.home.iter().map(|home| home.join(".local")));
    prefixes.extend(["/usr/local".into(), "/usr".into()]);
    prefixes.extend(subfolders(Path::new("/opt")));
    // Relative paths depend on the current folder, which may belong to another user.
    prefixes.retain(|prefix| prefix.is_absolute());

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

/// The folders in `path`, sorted.
fn subfolders(path: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<_> = folders_in(path).collect();
    folders.sort();
    folders
}

/// The folders in `path` in any order, or nothing if `path` cannot be read.
fn folders_in(path: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;
    use std::os::unix::fs::PermissionsExt;

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
            |path: &Path| search_paths(&env(&[("MKERNEL_NVRTC", path), ("CUDA_HOME", dir.path())]));
        assert_eq!(given(dir.path()), [SearchPath::Folder(dir.path().into())]);
        assert_eq!(given(&file), [SearchPath::File(file.clone())]);
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
        let found = search_paths(&env(&[
            ("CUDA_ROOT", &root.path().join("other")),
            ("CUDA_PATH", &root.path().join("toolkit")),
            ("HOME", root.path()),
            ("VIRTUAL_ENV", &venv),
        ]));
        let position = |wanted: SearchPath| {
            found
                .iter()
                .position(|c| *c == wanted)
                .expect("a candidate")
        };
        let order = [
            SearchPath::Folder(root.path().join("toolkit/lib64")),
            SearchPath::Folder(root.path().join("other/lib64")),
            SearchPath::Loader,
            SearchPath::Fetched(root.path().join(".cache/mkernel/nvrtc").join(WHEEL_LIB)),
            SearchPath::Folder(site.join(WHEEL_LIB)),
        ];
        assert!(order.map(position).is_sorted());
    }

    #[test]
    fn relative_folders_are_not_searched() {
        // Tests run in the folder of the crate.
        let here = std::env::current_dir().expect("a folder");
        let dir = tempfile::tempdir_in(&here).expect("temporary folder");
        let bin = dir.path().join("bin");
        let site = dir.path().join("lib/python3.12/site-packages");
        for folder in [&bin, &site] {
            fs::create_dir_all(folder).expect("folder");
        }
        fs::write(bin.join("python3"), "").expect("file");
        let relative = |path: &Path| path.strip_prefix(&here).expect("below").to_owned();
        let has = |env: Env| {
            site_packages(&env)
                .iter()
                .any(|found| found.ends_with(relative(&site)))
        };
        assert!(has(env(&[("PATH", &bin)])));
        assert!(!has(env(&[("PATH", &relative(&bin))])));
        assert!(has(env(&[("VIRTUAL_ENV", dir.path())])));
        assert!(!has(env(&[("VIRTUAL_ENV", &relative(dir.path()))])));
    }

    #[test]
    fn a_fetched_library_with_other_contents_is_refused() {
        let dir = tempfile::tempdir().expect("temporary folder");
        assert_eq!(fetched_library(dir.path()), Ok(None));
        let folder = dir.path().join(WHEEL_LIB);
        fs::create_dir_all(&folder).expect("folder");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("own");
        let library = folder.join("libnvrtc.so.13");
        fs::write(&library, "planted").expect("file");
        fs::set_permissions(&library, fs::Permissions::from_mode(0o644)).expect("own");
        let refused = fetched_library(dir.path()).expect_err("not NVIDIA's");
        let way_out = format!("rename {} and fetch", dir.path().display());
        assert!(refused.contains("its SHA-256 is"), "{refused}");
        assert!(refused.contains(&way_out), "{refused}");
        fs::set_permissions(&library, fs::Permissions::from_mode(0o666)).expect("own");
        let refused = fetched_library(dir.path()).expect_err("anybody's");
        assert!(refused.contains("other users can write"), "{refused}");
    }
}
