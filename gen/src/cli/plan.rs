//! `mkernel-gen plan`: how a kernel does its work, so that a person sees why.

use super::Failure;
use super::input::Input;
use super::output::{bytes, micros, print, print_json, table};
use mkernel_spec::abi::{Extent, OperandSpec};
use mkernel_spec::plan::{Reduction, Region};
use mkernel_spec::{BLayout, Dtype, KernelPlan, Op, Target};
use serde::Serialize;
use std::fmt::Write as _;

#[derive(Serialize)]
struct Planned<'a> {
    label: &'a str,
    place: &'a str,
    #[serde(flatten)]
    plan: &'a KernelPlan,
    bound_us: f64,
    bound_reason: &'static str,
}

/// Prints every kernel's plan.
pub fn run(input: &Input, json: bool) -> Result<(), Failure> {
    let mut separator = "";
    for (kernel, plan) in &input.load_planned()? {
        if json {
            print_json(&Planned {
                label: &kernel.label,
                place: &kernel.place,
                plan,
                bound_us: plan.bound.us(),
                bound_reason: plan.bound.reason(),
            })?;
        } else {
            print(&format!("{separator}{}", describe(&kernel.label, plan)))?;
            separator = "\n";
        }
    }
    Ok(())
}

/// A plan in words and figures.
pub fn describe(label: &str, plan: &KernelPlan) -> String {
    let mut rows = Vec::new();
    let mut section = |name: &str, lines: Vec<String>| {
        for (i, line) in lines.into_iter().enumerate() {
            rows.push(vec![
                String::new(),
                if i == 0 {
                    name.to_owned()
                } else {
                    String::new()
                },
                line,
            ]);
        }
    };
    section("computes", computes(plan));
    section(
        "operands",
        lines(
            &plan
                .operands
                .iter()
                .map(|o| operand(o, plan))
                .collect::<Vec<_>>(),
            &[],
        ),
    );
    section("roles", roles(plan));
    section("tiles", tiles(plan));
    section("transfer", transfer(plan));
    section("registers", vec![registers(plan)]);
    section("shared", regions(&plan.smem, shared_total(plan)));
    let total = format!("= {} on every rank", bytes(plan.workspace.bytes));
    section("workspace", regions(&plan.workspace.regions, total));
    section("moves", moves(plan));
    // Of simulated time nothing is known.
    if plan.device.target != Target::Simulator {
        section("bound", vec![bound(plan)]);
        section("estimate", vec![estimate(plan)]);
    }
    section("device", vec![device(plan)]);
    format!("{label}: {}\n{}", plan.id, table(&rows, &[]))
}

/// A plan in one line.
pub fn summary(plan: &KernelPlan) -> String {
    let mut text = format!(
        "tiles of {}x{}, {} stages, {} CTAs",
        plan.tile.m, plan.tile.n, plan.stages, plan.grid_ctas
    );
    if let Some(transfer) = plan.transfer {
        let _ = write!(text, ", {transfer}");
    }
    if plan.comm_ctas > 0 {
        let _ = write!(text, " by {} of them", plan.comm_ctas);
    }
    format!("{text}: {}", plan.id)
}

/// A table as lines.
fn lines(rows: &[Vec<String>], right: &[usize]) -> Vec<String> {
    table(rows, right).lines().map(str::to_owned).collect()
}

/// What it computes, in words and a formula.
pub fn computes(plan: &KernelPlan) -> Vec<String> {
    let shape = plan.shape;
    let (m, n, k) = (shape.m, shape.n, shape.k);
    let epilogue = plan.spec.epilogue();
    let sum = format!("Σ_r A_r[{m},{k}] · B_r");
    // A bias is added once, not by each rank.
    let sum = match epilogue.formula("").is_empty() {
        true => sum,
        false => format!("({sum})"),
    };
    let (product, place) = match plan.spec.op() {
        Op::AgGemm => (format!("AllGather(A)[{m},{k}] · B"), ""),
        Op::GemmRs => (sum, ", rank r keeps rows r"),
        Op::GemmAr => (sum, " on every rank"),
        op => (op.to_string(), ""),
    };
    let formula = format!("C[{m},{n}] = {}{place}", epilogue.formula(&product));
    let dtype = match epilogue.output {
        Dtype::Bf16 => "bf16",
        Dtype::Fp32 => "bf16, C fp32",
    };
    let b = match plan.spec.b_layout() {
        BLayout::Kn => "B as [K,N]",
        BLayout::Nk => "B as [N,K]",
    };
    let ranks = match plan.spec.world() {
        1 => "1 rank".to_owned(),
        world => format!("{world} ranks"),
    };
    vec![format!("{formula}, {ranks}, {b}, {dtype}, fp32 accumulate")]
}

fn operand(operand: &OperandSpec, plan: &KernelPlan) -> Vec<String> {
    let (first, last) = (operand.rows.on(0), operand.rows.on(plan.spec.world() - 1));
    let mut about = if operand.written { "written" } else { "read" }.to_owned();
    let _ = write!(about, ", {}", operand.dtype);
    if let Extent::ShardRows { total, .. } = operand.rows {
        let _ = write!(about, ", a shard of {total} rows");
        if last != first {
            let _ = write!(about, ", {last} on the last rank");
        }
    }
    vec![
        operand.operand.name().to_owned(),
        format!("[{first}, {}]", operand.cols),
        about,
    ]
}

fn roles(plan: &KernelPlan) -> Vec<String> {
    let row = |role: &mkernel_spec::plan::Role| {
        vec![
            role.name.to_owned(),
            format!("CTAs {}..{}", role.ctas.0, role.ctas.1),
            format!("warps {}..{}", role.warps.0, role.warps.1),
            role.about.clone(),
        ]
    };
    lines(&plan.roles.iter().map(row).collect::<Vec<_>>(), &[])
}

fn tiles(plan: &KernelPlan) -> Vec<String> {
    let order = &plan.order;
    let count = u64::from(order.row_tiles) * u64::from(order.col_tiles);
    let ctas = plan.grid_ctas - plan.comm_ctas;
    let mut lines = vec![
        format!(
            "{}x{}: {} x {} = {count} tiles, {:.2} waves of {ctas} CTAs",
            plan.tile.m,
            plan.tile.n,
            order.row_tiles,
            order.col_tiles,
            count as f64 / f64::from(ctas),
        ),
        format!(
            "{} row tiles advance together along N, so that B stays in L2",
            order.group_m
        ),
    ];
    if let Some(reduction) = &plan.reduction {
        lines.push(owners(reduction));
        return lines;
    }
    lines.push(match order.shard_row_tiles {
        Some(tiles) => format!("own {tiles} row tiles first, then the peers' as they arrive"),
        None if plan.spec.world() > 1 => "tiles straddle shards: own rows travel too".to_owned(),
        None => return lines,
    });
    lines
}

/// Who adds up which tiles, and when.
fn owners(reduction: &Reduction) -> String {
    let Reduction {
        owners,
        owner_tiles,
        round_tiles,
        ..
    } = reduction;
    match (reduction.shots, round_tiles == owner_tiles) {
        (1, _) if reduction.results => {
            "every rank adds up its rows of every tile, and sends the sums to all".to_owned()
        }
        (1, _) => "every rank adds up what it keeps".to_owned(),
        (_, true) => format!("{owners} owners of {owner_tiles} tiles; own tiles last"),
        (_, false) => format!(
            "{owners} owners of {owner_tiles} tiles in rounds of {round_tiles}; own tiles a round later"
        ),
    }
}

fn transfer(plan: &KernelPlan) -> Vec<String> {
    if let Some(reduction) = &plan.reduction {
        if reduction.shots == 1 {
            return vec![
                "partial sums in bf16, a tag beside each two, from registers to all ranks"
                    .to_owned(),
            ];
        }
        let mut lines = vec!["partial sums in bf16 from the output buffers to slots of who adds them, fixed order, fp32".to_owned()];
        if reduction.results {
            lines.push(
                "results to every peer, from where a warp of each CTA takes them to C".to_owned(),
            );
        }
        return lines;
    }
    let (Some(transfer), Some(chunks)) = (plan.transfer, &plan.chunks) else {
        return vec!["none in a world of 1".to_owned()];
    };
    let flags =
        u64::from(plan.spec.world()) * u64::from(chunks.per_shard) * u64::from(chunks.k_slices);
    let mut lines = vec![format!(
        "{transfer}: chunks of {} rows x {} columns, {} x {} per shard, {flags} flags",
        chunks.rows, chunks.slice_cols, chunks.per_shard, chunks.k_slices
    )];
    if let Some(copies) = &plan.copies {
        let size = bytes(copies.row_bytes * u64::from(copies.rows));
        lines.push(format!(
            "{} copies of {size} to each peer by the copy engines, a flag behind each",
            chunks.per_shard
        ));
    } else {
        lines.push(format!(
            "a flag counts {} pieces of {} rows; {} chunks take turns slice by slice",
            chunks.arrivals, chunks.piece_rows, chunks.panel_chunks
        ));
    }
    lines
}

fn registers(plan: &KernelPlan) -> String {
    if plan.device.target == Target::Simulator {
        return "none: threads are fibers of the CPU".to_owned();
    }
    let registers = plan.registers;
    format!(
        "{} at entry, then {} to move data and {} to multiply",
        registers.entry, registers.mover, registers.math
    )
}

fn regions(regions: &[Region], total: String) -> Vec<String> {
    let row = |region: &Region| {
        vec![
            region.name.to_owned(),
            format!("at {}", region.offset_bytes),
            bytes(region.bytes),
        ]
    };
    let mut lines = lines(&regions.iter().map(row).collect::<Vec<_>>(), &[1, 2]);
    lines.push(total);
    lines
}

fn shared_total(plan: &KernelPlan) -> String {
    format!(
        "= {} of {}, alignment included; {} stages",
        bytes(plan.smem_bytes.into()),
        bytes(plan.device.smem_bytes.into()),
        plan.stages
    )
}

fn moves(plan: &KernelPlan) -> Vec<String> {
    let traffic = plan.traffic;
    let rows = [
        vec![
            "link".to_owned(),
            bytes(traffic.link_bytes),
            "out of each rank, and as much in".to_owned(),
        ],
        vec![
            "memory".to_owned(),
            bytes(traffic.memory_bytes),
            "operands and result, each once".to_owned(),
        ],
        vec![
            "compute".to_owned(),
            format!("{:.1} GFLOP", traffic.flops as f64 / 1e9),
        ],
    ];
    lines(&rows, &[1])
}

fn bound(plan: &KernelPlan) -> String {
    let bound = plan.bound;
    format!(
        "{} by {}: compute {}, link {}, memory {}",
        micros(bound.us()),
        bound.reason(),
        micros(bound.compute_us),
        micros(bound.link_us),
        micros(bound.memory_us)
    )
}

fn estimate(plan: &KernelPlan) -> String {
    let share = 100.0 * plan.bound.us() / plan.estimate_us;
    format!(
        "{}; the bound is {share:.0} % of it",
        micros(plan.estimate_us)
    )
}

fn device(plan: &KernelPlan) -> String {
    let device = &plan.device;
    if device.target == Target::Simulator {
        return format!(
            "simulated, {} SMs, planned as for an H200 with as many",
            device.sm_count
        );
    }
    format!(
        "{}: {} SMs, {:.0} TFLOP/s, link {:.0} GB/s (copy engines {:.0}), memory {:.0} GB/s",
        device.name,
        device.sm_count,
        device.gemm_tflops,
        device.link_gb_s,
        device.copy_engine_gb_s,
        device.memory_gb_s
    )
}
