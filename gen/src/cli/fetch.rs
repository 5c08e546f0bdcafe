//! `mkernel-gen fetch-nvrtc`: the NVRTC that this version is tested with, from its Python wheel.

use super::Failure;
use super::output::{print, print_json, say};
use mkernel_compile::{fetch_command, fetch_dir};
use serde::Serialize;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The library in the folder into which the wheel is installed.
const LIBRARY: &str = "nvidia/cu13/lib/libnvrtc.so.13";

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
    let library = dir.join(LIBRARY);
    if library.is_file() {
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
    fs::create_dir_all(parent).map_err(write)?;
    // Beside its place, then renamed: an interrupted installation leaves nothing that looks whole.
    let new = tempfile::Builder::new()
        .prefix(".nvrtc-")
        .permissions(fs::Permissions::from_mode(0o777)) // less the umask
        .tempdir_in(parent)
        .map_err(write)?;
    say(&format!(
        "installing NVRTC (a download of 90 MB) to {}",
        dir.display()
    ));
    install(new.path())?;
    if !new.path().join(LIBRARY).is_file() {
        return Err(failed(&format!("the wheel has no {LIBRARY}")));
    }
    match fs::rename(new.path(), &dir) {
        Err(_) if library.is_file() => Ok((library, false)), // Another process was faster.
        Err(error) => Err(write(error)),
        Ok(()) => Ok((library, true)),
    }
}

fn install(target: &Path) -> Result<(), Failure> {
    let command = fetch_command();
    let mut pip = Command::new(&command[0]);
    let mut is_target = false;
    for word in &command[1..] {
        if is_target {
            pip.arg(target)
        } else {
            pip.arg(word)
        };
        is_target = word == "--target";
    }
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

fn failed(what: &str) -> Failure {
    Failure::Fetch {
        what: what.to_owned(),
        source: None,
    }
}
