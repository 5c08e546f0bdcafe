//! `mkernel-gen plan --svg`: pictures of plans.

mod attention;
mod canvas;
mod collective;
mod experts;
mod gemm;
mod grid;
mod memory;
mod roles;

use crate::cli::failure::Failure;
use crate::cli::files::write_text;
use crate::cli::input::Kernel;
use crate::cli::output::print_note;
use canvas::{Canvas, LARGE, MARGIN};
use mkernel_spec::plan::{Body, OpPlan};
use mkernel_spec::{KernelPlan, Topology};
use std::path::{Path, PathBuf};

/// Writes a picture of each body of each kernel. One picture has the path; several are numbered: `plan-1.svg`, `plan-2.svg`.
/// `computes` returns the formula of a body.
pub fn write_all(
    kernels: &[(Kernel, KernelPlan)],
    path: &Path,
    computes: impl Fn(&Body, Topology) -> String,
) -> Result<(), Failure> {
    let bodies = kernels.iter().flat_map(|(kernel, plan)| {
        let of_kernel = plan.bodies.iter();
        of_kernel.map(move |body| (title(&kernel.label, plan, body), plan, body))
    });
    let bodies: Vec<_> = bodies.collect();
    for (number, (title, plan, body)) in (1..).zip(&bodies) {
        let computes = computes(body, plan.spec.topology());
        let svg = picture((title, &computes), plan, body);
        let svg = svg.map_err(|error| Failure::Plot(error.to_string()))?;
        let path = match bodies.len() {
            1 => path.to_owned(),
            _ => numbered(path, number),
        };
        write_text(&path, &svg)?;
        print_note(&format!("{title}: {}", path.display()));
    }
    Ok(())
}

/// The path with a number before the extension.
fn numbered(path: &Path, number: usize) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let name = format!("{stem}-{number}");
    let numbered = path.with_file_name(name);
    match path.extension() {
        Some(extension) => numbered.with_added_extension(extension),
        None => numbered,
    }
}

/// The label of the kernel, and the rows of calls that run the body.
fn title(label: &str, plan: &KernelPlan, body: &Body) -> String {
    match body.max_rows() {
        Some(rows) if plan.has_buckets() => format!("{label}, calls of up to {rows} rows"),
        _ => label.to_owned(),
    }
}

/// The picture of a body, as SVG.
fn picture(
    (title, computes): (&str, &str),
    plan: &KernelPlan,
    body: &Body,
) -> Result<String, Box<dyn std::error::Error>> {
    let topology = plan.spec.topology();
    let mut canvas = Canvas::new();
    canvas.top += LARGE / 2;
    canvas.text(title, (MARGIN, canvas.top), LARGE + 3, canvas::Align::Left);
    canvas.top += LARGE;
    canvas.note(&body.id);
    canvas.note(computes);
    roles::draw(&mut canvas, body);
    memory::draw(&mut canvas, body, plan.device.smem_bytes);
    match &body.op_plan {
        OpPlan::Gemm(of) => gemm::draw(&mut canvas, body, of, topology),
        OpPlan::Collective(of) => collective::draw(&mut canvas, of, topology),
        OpPlan::Attention(of) => attention::draw(&mut canvas, body, of, topology),
        OpPlan::Dispatch(of) => experts::draw_dispatch(&mut canvas, of, topology),
        OpPlan::Combine(of) => experts::draw_combine(&mut canvas, of, topology),
    }
    canvas.svg()
}
