//! `KernelPlan` → [`CudaSource`]: the only place where templates meet numbers.
//!
//! Tera chooses which code exists, `constexpr` how big it is, arguments where it lives. A constant is printed only if
//! the rendered code uses it: NVRTC warns of others, and a warning fails the build.

mod constants;
mod fabric_test;

use crate::error::GenError;
use crate::source::CudaSource;
use crate::templates::TEMPLATES;
use constants::{Constant, constants, first_empty_shard};
use mkernel_spec::abi::ArgKind;
use mkernel_spec::plan::{Reduction, Split, THREADS, TILE_K};
use mkernel_spec::{BLayout, KernelPlan, Op, Transfer};
use serde::Serialize;
use std::sync::LazyLock;
use tera::{Context, Tera};

pub use fabric_test::render_fabric_test;

/// All that the templates know. Field names are the templates' variables.
#[derive(Serialize)]
struct RenderContext<'a> {
    id: &'a str,
    op: &'a str,
    title: &'a str,
    banner: Vec<String>,
    headers: [&'a str; 5],
    constants: Vec<Constant>,
    args: Vec<Declaration<'a>>,
    args_bytes: usize,
    world: u32,
    threads: u32,
    comm_ctas: u32,
    b_layout: &'a str,
    split: &'a str,
    /// CTAs that share a tile of the last round.
    tail_parts: u32,
    /// Tiles that one CTA computes alone.
    whole_tiles: u32,
    /// Index of a compute CTA.
    cta_index: &'a str,
    /// Whether tiles lie within shards.
    aligned: bool,
    /// Ranks back to the first that a shard goes to: itself (0) if tiles straddle shards.
    nearest: u32,
    /// Whether some ranks have no rows.
    empty_shards: bool,
    /// Whether warps push.
    push: bool,
    /// Warps of a compute CTA that push.
    push_warps: u32,
    /// Whether copy engines push.
    copies: bool,
    /// Whether A comes from all ranks.
    gathers: bool,
    /// Whether tiles have owners, who add up what each rank computed.
    reduces: bool,
    /// Whether every rank adds up every tile.
    one_shot: bool,
    /// Whether, in one shot, a rank adds up its own rows only …
    scatters: bool,
    /// … and sends the sums to all.
    relays: bool,
    /// Whether owners send results to all.
    results: bool,
    /// Whether own tiles come after all others.
    one_round: bool,
    /// Whether some ranks own no tiles.
    idle_ranks: bool,
    /// Whether some places of the order have no tile.
    gaps: bool,
    /// Whether some tiles have rows beyond C.
    ragged: bool,
    /// Whether loads of A leave rows of a stage as they are.
    short_a: bool,
    /// The part of a stage that partial sums take.
    partial_stage: &'a str,
}

#[derive(Serialize)]
struct Declaration<'a> {
    declaration: String,
    name: &'a str,
    offset_bytes: usize,
}

static TERA: LazyLock<Result<Tera, tera::Error>> = LazyLock::new(|| {
    let mut tera = Tera::default();
    tera.autoescape_on(Vec::<&str>::new());
    tera.add_raw_templates(TEMPLATES.to_vec())?;
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
    let context = Context::from_serialize(&context(plan)).map_err(failed)?;
    let text = tera.render("kernel.cu.tera", &context).map_err(failed)?;
    Ok(CudaSource {
        id: plan.id.clone(),
        target: plan.device.target,
        text: tidy(&text),
    })
}

fn context(plan: &KernelPlan) -> RenderContext<'_> {
    let args = plan.args.args.iter();
    let reduction = plan.reduction.as_ref();
    let two_shots = |is: fn(&KernelPlan, &Reduction) -> bool| {
        reduction.is_some_and(|r| r.shots == 2 && is(plan, r))
    };
    RenderContext {
        id: &plan.id,
        op: plan.spec.op().name(),
        title: match plan.spec.op() {
            Op::AgGemm => "C = AllGather(A) B, one launch",
            Op::GemmRs => "C = rows of the sum of A B over ranks, one launch",
            Op::GemmAr => "C = sum of A B over ranks, one launch",
            _ => "One launch",
        },
        banner: banner(plan),
        headers: ["barrier", "memory", "mma", "tma", "watch"],
        constants: constants(plan),
        args: args
            .map(|a| Declaration {
                declaration: a.kind.declare(a.name),
                name: a.name,
                offset_bytes: a.offset_bytes,
            })
            .collect(),
        args_bytes: plan.args.size_bytes,
        world: plan.spec.world(),
        threads: THREADS,
        comm_ctas: plan.comm_ctas,
        b_layout: plan.spec.b_layout().name(),
        split: match plan.split {
            Split::Rows => "rows",
            Split::Cols => "cols",
        },
        tail_parts: plan.order.tail_parts,
        whole_tiles: plan.order.whole_tiles,
        cta_index: if plan.comm_ctas > 0 {
            "blockIdx.x - cfg::kCommCtas"
        } else {
            "blockIdx.x"
        },
        aligned: plan.chunks.as_ref().is_some_and(|c| !c.to_self),
        nearest: u32::from(!plan.chunks.as_ref().is_some_and(|c| c.to_self)),
        empty_shards: plan.chunks.is_some()
            && first_empty_shard(plan) < u64::from(plan.spec.world()),
        push: plan.transfer == Some(Transfer::SmPush),
        push_warps: plan.chunks.as_ref().map_or(0, |c| c.push_warps),
        copies: plan.copies.is_some(),
        gathers: plan.spec.op() == Op::AgGemm,
        reduces: reduction.is_some_and(|r| r.shots == 2),
        one_shot: reduction.is_some_and(|r| r.shots == 1),
        scatters: reduction.is_some_and(|r| scatters(plan, r)),
        relays: reduction.is_some_and(|r| r.shots == 1 && r.results),
        results: two_shots(|_, r| r.results),
        one_round: two_shots(|_, r| r.round_tiles == r.owner_tiles),
        idle_ranks: reduction.is_some_and(|r| r.owners < plan.spec.world()),
        gaps: two_shots(|plan, r| r.owners * r.owner_tiles > plan.order.tiles()),
        ragged: is_ragged(plan),
        short_a: rows_of_a(plan) < plan.tile.m,
        partial_stage: if plan.tile.n >= plan.tile.m { "b" } else { "a" },
    }
}

/// Whether, in one shot, a rank adds up its own rows only.
fn scatters(plan: &KernelPlan, r: &Reduction) -> bool {
    r.shots == 1 && (r.results || plan.spec.op() == Op::GemmRs)
}

/// Rows of A that one load brings.
fn rows_of_a(plan: &KernelPlan) -> u32 {
    let a = plan.args.args.iter().find(|arg| arg.name == "a");
    match a.map(|arg| &arg.kind) {
        Some(ArgKind::TensorMap(map)) => map.box_elems[1],
        _ => plan.tile.m,
    }
}

/// Whether rows of some tiles are beyond the C of who adds them up.
fn is_ragged(plan: &KernelPlan) -> bool {
    let (m, tile_m) = (plan.shape.m, u64::from(plan.tile.m));
    match plan.spec.op() {
        Op::GemmRs if plan.order.shard_row_tiles.is_some() => {
            let shard_rows = plan.spec.shard_rows(plan.shape);
            !shard_rows.is_multiple_of(tile_m) || m != shard_rows * u64::from(plan.spec.world())
        }
        _ => !m.is_multiple_of(tile_m),
    }
}

fn banner(plan: &KernelPlan) -> Vec<String> {
    let shape = plan.shape;
    let (world, layout) = (plan.spec.world(), plan.spec.b_layout());
    let b = match layout {
        BLayout::Kn => "[K,N]",
        BLayout::Nk => "[N,K]",
    };
    let mut lines = vec![
        format!(
            "spec    M {}, N {}, K {}, B as {b}, bf16, {world} rank{}",
            shape.m,
            shape.n,
            shape.k,
            plural(world)
        ),
        format!(
            "tile    {} x {} x {TILE_K}, {} stages",
            plan.tile.m, plan.tile.n, plan.stages
        ),
    ];
    for role in &plan.roles {
        let ((cta, cta_end), (warp, warp_end)) = (role.ctas, role.warps);
        lines.push(format!(
            "role    {:<5}  CTAs [{cta}, {cta_end})  warps [{warp}, {warp_end})  {}",
            role.name, role.about
        ));
    }
    if let Some(c) = &plan.chunks {
        let how = plan.transfer.map_or("", Transfer::name);
        lines.push(format!(
            "arrive  {how}, chunks of {} rows, {} per shard, {} slice{} of K",
            c.rows,
            c.per_shard,
            c.k_slices,
            plural(c.k_slices)
        ));
    }
    if let Some(r) = &plan.reduction {
        lines.push(match r.shots {
            1 if scatters(plan, r) => {
                "sum     every rank adds up its rows of every tile".to_owned()
            }
            1 => "sum     every rank adds up every tile".to_owned(),
            _ => format!(
                "sum     {} owners of {} tiles, rounds of {}",
                r.owners, r.owner_tiles, r.round_tiles
            ),
        });
    }
    let regions: Vec<_> = plan
        .smem
        .iter()
        .map(|r| format!("{} {}", r.name, r.bytes))
        .collect();
    lines.push(format!(
        "shared  {} = {} of {} bytes",
        regions.join(" | "),
        plan.smem_bytes,
        plan.device.smem_bytes
    ));
    lines
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
