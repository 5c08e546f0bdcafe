//! `KernelPlan` → [`CudaSource`]: the only place where templates meet numbers.
//!
//! Tera chooses which code exists, `constexpr` how big it is, arguments where it lives. A constant is printed only if
//! the rendered code uses it: NVRTC warns of others, and a warning fails the build.

mod assembly;
mod attention;
mod combine;
mod constants;
mod dispatch;
mod fabric_test;
mod gemm;

use crate::error::GenError;
use crate::source::CudaSource;
use crate::templates::templates;
use assembly::{Assembly, AssemblyContext};
use attention::AttentionVariables;
use constants::Constant;
use dispatch::DispatchVariables;
use mkernel_spec::abi::ArgKind;
use mkernel_spec::plan::{Body, Network};
use mkernel_spec::{KernelPlan, Topology};
use serde::Serialize;
use std::sync::LazyLock;
use tera::{Context, Tera};

pub use fabric_test::render_fabric_test;

/// What a problem says of a plan.
struct Parts<'a> {
    /// The operator, in a few words.
    title: &'static str,
    /// Headers that the kernel includes, after `base`.
    headers: Vec<&'static str>,
    /// Lines of the banner: what is computed, …
    computes: Vec<String>,
    /// … and what crosses between ranks.
    exchanges: Vec<String>,
    constants: Vec<Constant>,
    variables: Variables<'a>,
}

/// Variables that only the templates of one problem have.
#[derive(Serialize)]
#[serde(untagged)]
enum Variables<'a> {
    Attention(AttentionVariables<'a>),
    Dispatch(DispatchVariables<'a>),
}

/// All that the templates know. Field names are the templates' variables.
#[derive(Serialize)]
struct RenderContext<'a> {
    id: &'a str,
    op: &'a str,
    title: &'a str,
    banner: Vec<String>,
    headers: Vec<&'a str>,
    constants: Vec<Constant>,
    args: Vec<Declaration<'a>>,
    args_bytes: usize,
    world: u32,
    threads: u32,
    #[serde(flatten)]
    variables: Variables<'a>,
}

#[derive(Serialize)]
struct Declaration<'a> {
    declaration: String,
    name: &'a str,
    offset_bytes: usize,
    is_tensor_map: bool,
}

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
    let failed = |source| GenError::Render {
        id: plan.id.clone(),
        source,
    };
    let tera = TERA
        .as_ref()
        .map_err(|e| failed(tera::Error::message(e.to_string())))?;
    let (template, context) = match contents(plan) {
        Contents::Assembly(assembly) => (
            format!("ops/{}.cu.tera", plan.spec.op().name()),
            Context::from_serialize(&AssemblyContext::new(plan, assembly)),
        ),
        Contents::Parts(parts) => (
            "parts/kernel.cu.tera".to_owned(),
            Context::from_serialize(&context(plan, parts)),
        ),
    };
    let context = context.map_err(failed)?;
    let text = tera.render(&template, &context).map_err(failed)?;
    Ok(CudaSource {
        id: plan.id.clone(),
        target: plan.device.target,
        text: tidy(&text),
    })
}

/// What is said of a plan: of one whose kernel is made of headers, or of templates' parts.
enum Contents<'a> {
    Assembly(Assembly),
    Parts(Parts<'a>),
}

fn contents(plan: &KernelPlan) -> Contents<'_> {
    match &plan.body {
        Body::Gemm(body) => Contents::Assembly(gemm::assembly(plan, body)),
        Body::Attention(body) => Contents::Parts(attention::parts(plan, body)),
        Body::Dispatch(body) => Contents::Parts(dispatch::parts(plan, body)),
        Body::Combine(body) => Contents::Assembly(combine::assembly(plan, body)),
    }
}

fn context<'a>(plan: &'a KernelPlan, parts: Parts<'a>) -> RenderContext<'a> {
    let args = plan.args.args.iter();
    RenderContext {
        id: &plan.id,
        op: plan.spec.op().name(),
        title: parts.title,
        banner: banner(plan, parts.computes, parts.exchanges),
        headers: parts.headers,
        constants: parts.constants,
        args: args
            .map(|a| Declaration {
                declaration: a.kind.declare(a.name),
                name: a.name,
                offset_bytes: a.offset_bytes,
                is_tensor_map: matches!(a.kind, ArgKind::TensorMap(_)),
            })
            .collect(),
        args_bytes: plan.args.size_bytes,
        world: plan.spec.world(),
        threads: plan.threads,
        variables: parts.variables,
    }
}

/// What a kernel computes, who does what, how data crosses between ranks, and where it lies in shared memory.
fn banner(plan: &KernelPlan, computes: Vec<String>, exchanges: Vec<String>) -> Vec<String> {
    let mut lines = computes;
    for role in &plan.roles {
        let ((cta, cta_end), (warp, warp_end)) = (role.ctas, role.warps);
        lines.push(format!(
            "role    {:<5}  CTAs [{cta}, {cta_end})  warps [{warp}, {warp_end})  {}",
            role.name, role.about
        ));
    }
    lines.extend(exchanges);
    lines.push(shared_memory_line(plan));
    lines
}

/// How a CTA uses its shared memory, as a line of the banner.
fn shared_memory_line(plan: &KernelPlan) -> String {
    let regions: Vec<_> = plan
        .smem
        .iter()
        .map(|r| format!("{} {}", r.name, r.bytes))
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
