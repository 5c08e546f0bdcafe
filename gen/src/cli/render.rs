//! `mkernel-gen render`: writes the CUDA source of kernels.

use super::failure::Failure;
use super::input::Input;
use super::output::{Line, print, print_json};
use schemars::JsonSchema;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// Arguments of `mkernel-gen render`.
#[derive(Debug, clap::Args)]
pub struct Render {
    #[command(flatten)]
    input: Input,
    /// Write ID.cu files and the headers that they include to this folder instead of standard output
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Serialize, JsonSchema)]
pub struct Rendered<'a> {
    label: &'a str,
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'a str>,
}

impl Line for Rendered<'_> {
    const KIND: &'static str = "rendered";
}

impl Render {
    /// Prints the source of every kernel, or writes it to files.
    pub fn run(&self, json: bool) -> Result<(), Failure> {
        let planned = self.input.load_planned()?;
        if let Some(dir) = &self.out {
            // All plans are for the same device.
            let backend = planned.first().map(|(_, plan)| plan.device.backend);
            for (name, text) in backend.into_iter().flat_map(mkernel_compile::headers) {
                write(&dir.join(name), text)?;
            }
        }
        for (kernel, plan) in &planned {
            let source = mkernel_compile::render(plan).map_err(Failure::Gen)?;
            let path = self
                .out
                .as_ref()
                .map(|dir| dir.join(format!("{}.cu", source.id)));
            if let Some(path) = &path {
                write(path, &source.text)?;
            }
            if json {
                print_json(&Rendered {
                    label: &kernel.label,
                    id: &source.id,
                    path: path.as_deref(),
                    source: path.is_none().then_some(&source.text),
                })?;
            } else if let Some(path) = &path {
                print(&format!("{}: {}\n", kernel.label, path.display()))?;
            } else {
                print(&source.text)?;
            }
        }
        Ok(())
    }
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let failure = |source| Failure::Write {
        path: path.to_owned(),
        source,
    };
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(failure)?;
    }
    fs::write(path, text).map_err(failure)
}
