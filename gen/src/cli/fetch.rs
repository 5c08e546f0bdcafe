//! `mkernel-gen fetch-nvrtc`: installs the version of NVRTC that mkernel is tested with, from its Python wheel.

use super::failure::Failure;
use super::output::{Line, print, print_json, print_note};
use mkernel_compile::{FETCHED, fetch_command, fetch_dir, fetched_library};
use schemars::JsonSchema;
use serde::Serialize;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Arguments of `mkernel-gen fetch-nvrtc`.
#[derive(Debug, Default, clap::Args)]
pub struct Fetch {
    /// Folder to install to; set MKERNEL_NVRTC to the library in it [default: a folder in the cache, which is always searched]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Serialize, JsonSchema)]
pub struct Fetched<'a> {
    library: &'a Path,
    installed: bool,
}

impl Line for Fetched<'_> {
    const KIND: &'static str = "nvrtc";
}

impl Fetch {
    /// Installs NVRTC unless it is installed, and prints the path of the library.
    pub fn run(&self, json: bool) -> Result<(), Failure> {
        let (library, installed) = fetch(self.out.as_deref())?;
        if json {
            return print_json(&Fetched {
                library: &library,
                installed,
            });
        }
        let done = if installed {
            "installed"
        } else {
            "already installed"
        };
        print(&format!("{done}: {}\n", library.display()))
    }
}

/// Installs the wheel unless it is installed. Returns the path of the library, and whether the wheel was installed now.
pub fn fetch(dir: Option<&Path>) -> Result<(PathBuf, bool), Failure> {
    let Some(dir) = dir.map(Path::to_owned).or_else(fetch_dir) else {
        return Err(failed(
            "no folder is known to install to; set HOME or MKERNEL_CACHE_DIR, or use --out",
        ));
    };
    if let Some(library) = fetched_library(&dir).map_err(|reason| failed(&reason))? {
        return Ok((library, false));
    }
    let write = |source| Failure::Write {
        path: dir.clone(),
        source,
    };
    let parent = dir
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    // The library is not used if other users can write to its folder.
    let mut folders = fs::DirBuilder::new();
    let folders = folders.recursive(true).mode(0o755);
    folders.create(parent).map_err(write)?;
    // The wheel is installed beside the final folder, which is then renamed. So an interrupted installation is never
    // mistaken for a complete one.
    let new = tempfile::Builder::new()
        .prefix(".nvrtc-")
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir_in(parent)
        .map_err(write)?;
    print_note(&format!(
        "installing NVRTC (a download of 90 MB) to {}",
        dir.display()
    ));
    install(new.path())?;
    remove_write_permissions(new.path()).map_err(write)?;
    if fetched_library(new.path())
        .map_err(|reason| failed(&reason))?
        .is_none()
    {
        return Err(failed("the package that pip installed has no libnvrtc"));
    }
    let renamed = fs::rename(new.path(), &dir);
    let installed = renamed.is_ok();
    // If renaming failed, another process may have installed the library first.
    match (fetched_library(&dir), renamed) {
        (Ok(Some(library)), _) => Ok((library, installed)),
        (_, Err(error)) => Err(write(error)),
        (Err(reason), _) => Err(failed(&reason)),
        (Ok(None), _) => Err(failed("the library has been removed again")),
    }
}

/// Removes the write permission of other users, which a permissive umask grants, from everything in the folder `path`.
fn remove_write_permissions(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_symlink() {
            continue;
        }
        let mode = metadata.permissions().mode() & !0o022;
        fs::set_permissions(entry.path(), fs::Permissions::from_mode(mode))?;
        if metadata.is_dir() {
            remove_write_permissions(&entry.path())?;
        }
    }
    Ok(())
}

fn install(target: &Path) -> Result<(), Failure> {
    let mut requirements = tempfile::NamedTempFile::new().map_err(temporary)?;
    writeln!(requirements, "{FETCHED}").map_err(temporary)?;
    let command = fetch_command(requirements.path(), target);
    let mut pip = Command::new(&command[0]);
    pip.args(&command[1..]);
    pip.args(["--quiet", "--disable-pip-version-check", "--no-compile"]);
    pip.env("PIP_ROOT_USER_ACTION", "ignore"); // pip warns root, but this folder has no system packages.
    // The standard output of pip goes to standard error, since standard output is for results.
    let pip = pip.stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = pip.output().map_err(|source| Failure::Fetch {
        what: format!("{} does not start", command[0]),
        source: Some(source),
    })?;
    if !output.stdout.is_empty() {
        print_note(String::from_utf8_lossy(&output.stdout).trim_end());
    }
    if output.status.success() {
        return Ok(());
    }
    Err(failed(&format!(
        "`{}` failed ({})",
        command.join(" "),
        output.status
    )))
}

fn temporary(source: io::Error) -> Failure {
    Failure::Fetch {
        what: "cannot write a temporary file".to_owned(),
        source: Some(source),
    }
}

fn failed(what: &str) -> Failure {
    Failure::Fetch {
        what: what.to_owned(),
        source: None,
    }
}
