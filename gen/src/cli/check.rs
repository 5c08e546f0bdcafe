//! `mkernel-gen check`: checks that kernels are valid and that there is a plan for them.

use super::failure::Failure;
use super::input::{Input, Kernel, Loaded};
use super::output::{print, print_json};
use serde::Serialize;

/// A valid kernel as a JSON object.
#[derive(Serialize)]
pub struct Checked<'a> {
    label: &'a str,
    place: &'a str,
    ok: bool,
    id: Option<&'a str>,
    unknown_dims: Vec<&'static str>,
}

/// Prints a line for each valid kernel, and fails with the errors of the others.
pub fn run(input: &Input, json: bool) -> Result<(), Failure> {
    let Loaded {
        kernels,
        diagnostics,
    } = input.load()?;
    for kernel in &kernels {
        if json {
            print_json(&checked(kernel))?;
        } else {
            print(&line(kernel))?;
        }
    }
    if diagnostics.is_empty() {
        Ok(())
    } else {
        Err(Failure::Diagnostics(diagnostics))
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
    }
}

fn line(kernel: &Kernel) -> String {
    let Kernel {
        label,
        location,
        plan,
        ..
    } = kernel;
    match plan {
        Some(plan) => format!("{location}: {label}: ok, {}\n", plan.id),
        None => {
            let unknown = kernel.unknown_dims();
            let verb = if unknown.len() == 1 { "is" } else { "are" };
            let unknown = unknown.join(" and ");
            format!("{location}: {label}: ok, planned when {unknown} {verb} known\n")
        }
    }
}
