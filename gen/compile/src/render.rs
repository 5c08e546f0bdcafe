//! `KernelPlan` → [`CudaSource`]: the only place where templates meet numbers.
//!
//! `templates/kernel.cu.tera` prints what the plan says, and an operator's template which headers and policies it takes.

mod assembly;
mod attention;
mod collective;
mod combine;
mod dispatch;
mod fabric_test;
mod gemm;
mod roles;

use crate::error::GenError;
use crate::source::CudaSource;
use crate::templates::templates;
use assembly::AssemblyContext;
use mkernel_spec::by_problem;
use mkernel_spec::plan::{Element, Network, OpPlan};
use mkernel_spec::{KernelPlan, Target, Topology};
use serde::Serialize;
use std::sync::LazyLock;
use tera::{Context, Tera};

pub use fabric_test::render_fabric_test;

/// Lines of C++ are broken here.
const COLUMNS: usize = 140;

static TERA: LazyLock<Result<Tera, tera::Error>> = LazyLock::new(|| {
    let mut tera = Tera::default();
    tera.autoescape_on(Vec::<&str>::new());
    tera.add_raw_templates(templates())?;
    Ok(tera)
});

/// Renders the kernel of a plan; the same plan always gives the same text.
///
/// # Errors
/// [`GenError::Render`] if a template is wrong, which is a defect of this crate.
pub fn render(plan: &KernelPlan) -> Result<CudaSource, GenError> {
    let assembly = by_problem!(&plan.op_plan, OpPlan(op_plan) => assembly(plan, op_plan));
    let template = format!("ops/{}.cu.tera", plan.spec.op().name());
    let context = AssemblyContext::new(plan, assembly);
    print(&plan.id, plan.device.target, &template, &context)
}

/// The text of a template.
fn print(
    id: &str,
    target: Target,
    template: &str,
    context: &impl Serialize,
) -> Result<CudaSource, GenError> {
    let failed = |source| GenError::Render {
        id: id.to_owned(),
        source,
    };
    let tera = TERA
        .as_ref()
        .map_err(|e| failed(tera::Error::message(e.to_string())))?;
    let context = Context::from_serialize(context).map_err(failed)?;
    let text = tera.render(template, &context).map_err(failed)?;
    Ok(CudaSource {
        id: id.to_owned(),
        target,
        text: tidy(&text),
    })
}

/// How a CTA uses its shared memory, as a line of the banner. Tables of small elements, and barriers, are summed up.
fn shared_memory_line(plan: &KernelPlan) -> String {
    let (mut named, mut tables, mut barriers) = (Vec::new(), 0, 0);
    for region in &plan.smem {
        match region.element {
            Element::Barrier => barriers += region.bytes,
            element if element.stride_bytes() <= 16 => tables += region.bytes,
            _ => named.push((region.name, region.bytes)),
        }
    }
    let sums = [("tables", tables), ("barriers", barriers)];
    let sums = sums.into_iter().filter(|(_, bytes)| *bytes > 0);
    let regions = named.into_iter().chain(sums);
    let regions: Vec<_> = regions
        .map(|(name, bytes)| format!("{name} {bytes}"))
        .collect();
    format!(
        "shared  {} = {} of {} bytes",
        regions.join(" | "),
        plan.smem_bytes,
        plan.device.smem_bytes
    )
}

/// The puts of a kernel, as a line of the banner.
fn puts_line(network: &Network) -> String {
    format!(
        "puts    {} to each other node, of up to {} bytes, on {} channel{}",
        network.puts,
        network.put_bytes,
        network.channels,
        plural(network.channels.into())
    )
}

/// `8 ranks`, or `4 ranks of 2 nodes`
fn ranks(topology: Topology) -> String {
    let world = topology.world();
    let of_nodes = match topology.nodes {
        1 => String::new(),
        nodes => format!(" of {nodes} nodes"),
    };
    format!("{world} rank{}{of_nodes}", plural(world))
}

/// That a struct of a kernel lies in memory as the host's does.
fn layout_assertion<'a>(
    name: &str,
    size_bytes: usize,
    offsets: impl IntoIterator<Item = (&'a str, usize)>,
) -> String {
    let mut text = format!("static_assert(sizeof({name}) == {size_bytes}");
    let mut columns = text.len();
    for (field, offset) in offsets {
        let term = format!(" && MK_OFFSET({name}, {field}) == {offset}");
        if columns + term.len() > COLUMNS {
            text.push_str("\n             ");
            columns = 13;
        }
        columns += term.len();
        text.push_str(&term);
    }
    text + &format!(",\n              \"{name} differs from the host's\");")
}

const fn plural(count: u32) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Strips trailing blanks, folds blank lines to one, ends with one newline.
fn tidy(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut blank = true;
    for line in text.lines().map(str::trim_end) {
        if line.is_empty() && blank {
            continue;
        }
        blank = line.is_empty();
        out.push_str(line);
        out.push('\n');
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}
