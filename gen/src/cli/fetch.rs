//! `mkernel-gen fetch-nvrtc`: the NVRTC that this version is tested with, from its Python wheel.

use super::failure::Failure;
use super::output::{print, print_json, say};
use mkernel_compile::{FETCHED, fetch_command, fetch_dir, fetched_library};
use serde::Serialize;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where to install.
#[derive(Debug, Default, clap::Args)]
pub struct Fetch {
    /// Folder to install to, for MKERNEL_NVRTC [default: one that is searched, in the cache]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Serialize)]
struct Fetched<'a> {
    library: &'a Path,
    installed: bool,
}

impl Fetch {
    /// Installs unless it is there, and says where.
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
            "already there"
        };
        print(&format!("{done}: {}\n", library.display()))
    }
}

/// Installs the wheel unless it is there: the library's path, and whether something was installed.
pub fn fetch(dir: Option<&Path>) -> Result<(PathBuf, bool), Failure> {
    let Some(dir) = dir.map(Path::to_owned).or_else(fetch_dir) else {
        return Err(failed(
            "no folder is known for it; set HOME or MKERNEL_CACHE_DIR, or use --out",
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
    // What others can write to is not used.
    let mut folders = fs::DirBuilder::new();
    let folders = folders.recursive(true).mode(0o755);
    folders.create(parent).map_err(write)?;
    // Beside its place, then renamed: an interrupted installation leaves nothing that looks whole.
    let new = tempfile::Builder::new()
        .prefix(".nvrtc-")
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir_in(parent)
        .map_err(write)?;
    say(&format!(
        "installing NVRTC (a download of 90 MB) to {}",
        dir.display()
    ));
    install(new.path())?;
    close_to_others(new.path()).map_err(write)?;
    if fetched_library(new.path())
        .map_err(|reason| failed(&reason))?
        .is_none()
    {
        return Err(failed("what pip installed has no libnvrtc"));
    }
    let renamed = fs::rename(new.path(), &dir);
    let installed = renamed.is_ok();
    // If it failed, another process may have been faster.
    match (fetched_library(&dir), renamed) {
        (Ok(Some(library)), _) => Ok((library, installed)),
        (_, Err(error)) => Err(write(error)),
        (Err(reason), _) => Err(failed(&reason)),
        (Ok(None), _) => Err(failed("what was installed is gone")),
    }
}

/// Takes from others the right to write to anything in the folder `path`, which a permissive umask gives them.
fn close_to_others(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_symlink() {
            continue;
        }
        let mode = metadata.permissions().mode() & !0o022;
        fs::set_permissions(entry.path(), fs::Permissions::from_mode(mode))?;
        if metadata.is_dir() {
            close_to_others(&entry.path())?;
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
    pip.env("PIP_ROOT_USER_ACTION", "ignore"); // A folder of its own harms no system package.
    // What pip says on standard output goes to standard error: ours carries results.
    let pip = pip.stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = pip.output().map_err(|source| Failure::Fetch {
        what: format!("{} does not start", command[0]),
        source: Some(source),
    })?;
    if !output.stdout.is_empty() {
        say(String::from_utf8_lossy(&output.stdout).trim_end());
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
        what: "a temporary file cannot be written".to_owned(),
        source: Some(source),
    }
}

fn failed(what: &str) -> Failure {
    Failure::Fetch {
        what: what.to_owned(),
        source: None,
    }
}
