//! `mkernel-gen check`: checks that kernels are valid, that there is a plan for them, and that a bundle has them.

use super::failure::Failure;
use super::input::{Input, Kernel, Loaded};
use super::output::{Line, print, print_json};
use mkernel_compile::{Bundle, KernelTemplate, Key};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::HashSet;
use std::path::PathBuf;

/// Arguments of `mkernel-gen check`.
#[derive(Debug, clap::Args)]
pub struct Check {
    #[command(flatten)]
    input: Input,
    /// Check that the bundle in this folder has the kernels
    #[arg(long, value_name = "DIR")]
    bundle: Option<PathBuf>,
}

/// A valid kernel as a JSON object.
#[derive(Serialize, JsonSchema)]
pub struct Checked<'a> {
    label: &'a str,
    place: &'a str,
    ok: bool,
    id: Option<&'a str>,
    unknown_dims: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_bundle: Option<bool>,
}

impl Line for Checked<'_> {
    const KIND: &'static str = "checked";
}

/// The undamaged kernels of a bundle.
struct Bundled {
    path: PathBuf,
    keys: HashSet<Key>,
}

impl Bundled {
    fn open(path: PathBuf) -> Result<Self, Failure> {
        let kernels = Bundle::open(&path).map_err(Failure::Gen)?.kernels();
        let usable = kernels.into_iter().filter(|kernel| kernel.entry.is_ok());
        let keys = usable.map(|kernel| kernel.key).collect();
        Ok(Self { path, keys })
    }

    /// Whether the bundle has the kernel. A kernel of unknown size is in no bundle.
    fn has(&self, kernel: &Kernel) -> bool {
        let key = |plan| Key::of_template(&KernelTemplate::of(plan));
        kernel
            .plan
            .as_ref()
            .is_some_and(|plan| self.keys.contains(&key(plan)))
    }
}

impl Check {
    /// Prints a line for each valid kernel, and fails with the errors of the other kernels, or if the bundle lacks a
    /// kernel.
    pub fn run(&self, json: bool) -> Result<(), Failure> {
        let bundled = self.bundle.clone().map(Bundled::open).transpose()?;
        let Loaded {
            kernels,
            diagnostics,
            ..
        } = self.input.load()?;
        let mut missing = 0;
        for kernel in &kernels {
            let in_bundle = bundled.as_ref().map(|bundled| bundled.has(kernel));
            missing += usize::from(in_bundle == Some(false));
            if json {
                let ok = in_bundle != Some(false);
                print_json(&Checked {
                    ok,
                    in_bundle,
                    ..checked(kernel)
                })?;
            } else {
                print(&line(kernel, in_bundle))?;
            }
        }
        match bundled {
            _ if !diagnostics.is_empty() => Err(Failure::Diagnostics(diagnostics)),
            Some(Bundled { path, .. }) if missing > 0 => Err(Failure::NotBundled { path, missing }),
            _ => Ok(()),
        }
    }
}

/// Describes a valid kernel.
pub fn checked(kernel: &Kernel) -> Checked<'_> {
    Checked {
        label: &kernel.label,
        place: &kernel.location,
        ok: true,
        id: kernel.plan.as_ref().map(|plan| plan.id.as_str()),
        unknown_dims: kernel.unknown_dims(),
        in_bundle: None,
    }
}

fn line(kernel: &Kernel, in_bundle: Option<bool>) -> String {
    let Kernel {
        label,
        location,
        plan,
        ..
    } = kernel;
    let state = match in_bundle {
        None => "ok",
        Some(true) => "in the bundle",
        Some(false) => "not in the bundle",
    };
    match plan {
        Some(plan) => format!("{location}: {label}: {state}, {}\n", plan.id),
        None => {
            let unknown = kernel.unknown_dims();
            let verb = if unknown.len() == 1 { "is" } else { "are" };
            let unknown = unknown.join(" and ");
            format!("{location}: {label}: {state}, planned when {unknown} {verb} known\n")
        }
    }
}
