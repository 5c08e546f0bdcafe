//! `mkernel-gen check`: is every kernel valid, and is there a plan for it?

use super::failure::Failure;
use super::input::{Input, Kernel, Loaded};
use super::output::{print, print_json};
use serde::Serialize;

/// A valid kernel, in JSON.
#[derive(Serialize)]
pub struct Checked<'a> {
    label: &'a str,
    place: &'a str,
    ok: bool,
    id: Option<&'a str>,
    unknown_dims: Vec<&'static str>,
}

/// Prints a line per valid kernel; the mistakes of the others are the failure.
pub fn run(input: &Input, json: bool) -> Result<(), Failure> {
    let Loaded { kernels, mistakes } = input.load()?;
    for kernel in &kernels {
        if json {
            print_json(&checked(kernel))?;
        } else {
            print(&line(kernel))?;
        }
    }
    if mistakes.is_empty() {
        Ok(())
    } else {
        Err(Failure::Mistakes(mistakes))
    }
}

/// What is known of a valid kernel.
pub fn checked(kernel: &Kernel) -> Checked<'_> {
    Checked {
        label: &kernel.label,
        place: &kernel.place,
        ok: true,
        id: kernel.plan.as_ref().map(|plan| plan.id.as_str()),
        unknown_dims: kernel.unknown_dims(),
    }
}

fn line(kernel: &Kernel) -> String {
    let Kernel {
        label, place, plan, ..
    } = kernel;
    match plan {
        Some(plan) => format!("{place}: {label}: ok, {}\n", plan.id),
        None => {
            let unknown = kernel.unknown_dims();
            let verb = if unknown.len() == 1 { "is" } else { "are" };
            let unknown = unknown.join(" and ");
            format!("{place}: {label}: ok, to be planned when {unknown} {verb} known\n")
        }
    }
}
