//! `mkernel-gen completions` and `man`: files for shells and for `man`, which clap derives from the flags.

use super::failure::Failure;
use super::output::{Line, print, print_json};
use clap::CommandFactory;
use clap_complete::Shell;
use schemars::JsonSchema;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// Arguments of `mkernel-gen completions`.
#[derive(Debug, clap::Args)]
pub struct Completions {
    /// The shell
    shell: Shell,
}

/// Arguments of `mkernel-gen man`.
#[derive(Debug, clap::Args)]
pub struct Man {
    /// Folder for the pages: one for mkernel-gen, and one for each command
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

#[derive(Serialize, JsonSchema)]
pub struct PageLine<'a> {
    path: &'a Path,
}

impl Line for PageLine<'_> {
    const KIND: &'static str = "man-page";
}

impl Completions {
    /// Prints the script.
    pub fn run<C: CommandFactory>(&self) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut C::command(), "mkernel-gen", &mut script);
        print(&String::from_utf8_lossy(&script))
    }
}

impl Man {
    /// Writes the pages, and prints their paths.
    pub fn run<C: CommandFactory>(&self, json: bool) -> Result<(), Failure> {
        let failure = |source| Failure::Write {
            path: self.out.clone(),
            source,
        };
        fs::create_dir_all(&self.out).map_err(failure)?;
        clap_mangen::generate_to(C::command(), &self.out).map_err(failure)?;
        let pages = fs::read_dir(&self.out).map_err(failure)?.flatten();
        let mut pages: Vec<_> = pages.map(|page| page.path()).collect();
        pages.sort();
        pages.iter().try_for_each(|path| match json {
            true => print_json(&PageLine { path }),
            false => print(&format!("{}\n", path.display())),
        })
    }
}
