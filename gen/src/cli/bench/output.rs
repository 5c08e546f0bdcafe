//! [`Output`]: measurements on standard output and in files.

use super::measurement::Measurement;
use super::{report, table};
use crate::cli::failure::Failure;
use crate::cli::output::{json_line, print, print_json, print_stderr};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The names of the files in the folder of `--out`.
const RESULTS: &str = "results.jsonl";
const REPORT: &str = "report.html";

/// Writes each measurement at once, so that a later failure loses nothing, and at the end a table or a page of all.
pub struct Output<'a> {
    json: bool,
    /// The folder of `--out`.
    out: Option<&'a Path>,
    /// The file with the results, which replaces an earlier file at the first measurement.
    file: Option<File>,
    all: Vec<Measurement>,
}

impl<'a> Output<'a> {
    /// Creates the folder.
    pub fn new(json: bool, out: Option<&'a Path>) -> Result<Self, Failure> {
        if let Some(dir) = out {
            fs::create_dir_all(dir).map_err(cannot_write(dir))?;
        }
        Ok(Self {
            json,
            out,
            file: None,
            all: Vec::new(),
        })
    }

    /// Writes a measurement to the file, and with JSON to standard output.
    pub fn add(&mut self, measured: Measurement) -> Result<(), Failure> {
        if self.json {
            print_json(&measured)?;
        }
        if let Some(dir) = self.out {
            let path = dir.join(RESULTS);
            let mut file = match self.file.take() {
                Some(file) => file,
                None => File::create(&path).map_err(cannot_write(&path))?,
            };
            let line = json_line(&measured).map_err(io::Error::from);
            let written = line.and_then(|line| file.write_all(line.as_bytes()));
            written.map_err(cannot_write(&path))?;
            self.file = Some(file);
        }
        self.all.push(measured);
        Ok(())
    }

    /// Writes the page, and prints the table unless measurements were printed as JSON.
    pub fn finish(&self) -> Result<(), Failure> {
        if self.all.is_empty() {
            return Ok(());
        }
        if !self.json {
            print(&table::text(&self.all))?;
        }
        if let Some(dir) = self.out {
            let page = report::page(&self.all);
            let page = page.map_err(|error| Failure::Plot(error.to_string()))?;
            let path = dir.join(REPORT);
            fs::write(&path, page).map_err(cannot_write(&path))?;
            if !self.json {
                print_stderr(&format!("report: {}", path.display()));
            }
        }
        Ok(())
    }
}

fn cannot_write(path: &Path) -> impl Fn(io::Error) -> Failure {
    let path: PathBuf = path.to_owned();
    move |source| Failure::Write {
        path: path.clone(),
        source,
    }
}
