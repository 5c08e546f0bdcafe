//! `mkernel-gen check`: is every kernel valid, and is there a plan for it?

use super::input::{Input, Kernel, Loaded};
use super::output::{print, print_json};
use super::Failure;
use serde::Serialize;

#[derive(Serialize)]
struct Checked<'a> {
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
            print_json(&Checked {
                label: &kernel.label,
                place: &kernel.place,
                ok: true,
                id: kernel.plan.as_ref().map(|plan| plan.id.as_str()),
                unknown_dims: kernel.unknown_dims(),
            })?;
        } else {
            print(&line(kernel))?;
        }
    }
    if mistakes.is_empty() { Ok(()) } else { Err(Failure::Mistakes(mistakes)) }
}

fn line(kernel: &Kernel) -> String {
    let Kernel { label, place, plan, .. } = kernel;
    match plan {
        Some(plan) => format!("{place}: {label}: ok, {}\n", plan.id),
        None => {
            let unknown = kernel.unknown_dims().join(" and ");
            format!("{place}: {label}: ok, to be planned when {unknown} is known\n")
        }
    }
}
