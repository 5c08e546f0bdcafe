//! `mkernel-gen plan`: describes the plans of kernels.

mod attention;
mod collective;
mod combine;
mod description;
mod dispatch;
mod drawing;
mod gemm;
mod planned;
mod scaling;

use super::failure::Failure;
use super::format::{bytes, count, micros, table};
use super::input::{Input, Kernel};
use super::output::{print, print_json};
use description::Description;
use mkernel_declare::SpannedDiagnostic;
use mkernel_spec::abi::{self, Extent, OperandSpec};
use mkernel_spec::plan::{Agent, Body, OpPlan, Region, Role, TunedTimes};
use mkernel_spec::{Diagnostic, Diagnostics, KernelPlan, Topology};
pub use planned::Planned;
pub use scaling::Scaled;
use std::fmt::Write as _;
use std::path::PathBuf;

/// Describes the part of a body that depends on its operator.
fn operator(body: &Body, topology: Topology) -> Description {
    match &body.op_plan {
        OpPlan::Gemm(of) => gemm::describe(body, of, topology),
        OpPlan::Attention(of) => attention::describe(body, of, topology),
        OpPlan::Dispatch(of) => dispatch::describe(body, of, topology),
        OpPlan::Combine(of) => combine::describe(body, of, topology),
        OpPlan::Collective(of) => collective::describe(body, of, topology),
    }
}

/// Arguments of `mkernel-gen plan`.
#[derive(Debug, clap::Args)]
pub struct Plan {
    #[command(flatten)]
    input: Input,
    /// Show a table of the kernel's traffic and times on 2 to 64 nodes, with the same number of ranks on each
    #[arg(long)]
    scaling: bool,
    /// Draw the plan to this file: the roles of warps, shared memory, the order of tiles, and the exchange between ranks.
    /// Several kernels, or buckets of rows, have a file each: FILE-1.svg, FILE-2.svg
    #[arg(long, value_name = "FILE", conflicts_with = "scaling")]
    svg: Option<PathBuf>,
}

/// Prints the plan of every kernel.
pub fn run(plan: &Plan, json: bool) -> Result<(), Failure> {
    let kernels = plan.input.load_planned()?;
    if let Some(path) = &plan.svg {
        let computes = |body: &Body, topology| operator(body, topology).computes;
        drawing::write_all(&kernels, path, computes)?;
    }
    let mut separator = "";
    for (kernel, found) in &kernels {
        if plan.scaling {
            let rows =
                scaling::scaled(kernel, found).map_err(|found| impossible(kernel, &found))?;
            if json {
                rows.iter().try_for_each(print_json)?;
            } else {
                print(&format!("{separator}{}", scaling::text(&rows)))?;
                separator = "\n";
            }
            continue;
        }
        if json {
            print_json(&Planned::new(kernel, found))?;
        } else {
            print(&format!("{separator}{}", describe(&kernel.label, found)))?;
            separator = "\n";
        }
    }
    Ok(())
}

/// The failure for a kernel that has no plan for another number of nodes.
fn impossible(kernel: &Kernel, found: &Diagnostics) -> Failure {
    let diagnostic = |diagnostic: &Diagnostic| SpannedDiagnostic {
        span: kernel.location.clone(),
        reason: format!("{}: {}", diagnostic.field, diagnostic.reason),
        help: diagnostic.help.clone(),
    };
    Failure::Diagnostics(found.iter().map(diagnostic).collect())
}

/// Describes a plan in full.
pub fn describe(label: &str, plan: &KernelPlan) -> String {
    let (body, topology) = (plan.body(), plan.spec.topology());
    let op_plan = operator(body, topology);
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
    section("computes", vec![op_plan.computes]);
    section(
        "operands",
        lines(
            &plan
                .operands()
                .iter()
                .map(|o| operand(o, plan))
                .collect::<Vec<_>>(),
            &[],
        ),
    );
    if plan.has_buckets() {
        section("buckets", buckets(plan));
    }
    section("roles", roles(body));
    section("waits", waits(body));
    for (name, lines) in op_plan.sections {
        section(name, lines);
    }
    section("registers", vec![registers(plan)]);
    let total = format!("{}; {}", shared_total(plan), op_plan.shared);
    section(
        "shared",
        regions(body.smem.iter().map(|region| (None, region)), total),
    );
    let total = format!("= {} on every rank", bytes(plan.workspace_bytes()));
    section("workspace", regions(plan.workspace_regions(), total));
    section("moves", moves(body, topology));
    // The simulator has no model of time.
    if !plan.device.backend.is_simulated() {
        section("bound", vec![bound(body)]);
        section("estimate", vec![estimate(body)]);
        section("measured", plan.tuned.map(measured).into_iter().collect());
    }
    section("device", vec![device(plan)]);
    format!("{label}: {}\n{}", plan.id, table(&rows, &[]))
}

/// Describes a plan in one line.
pub fn summary(plan: &KernelPlan) -> String {
    format!(
        "{}: {}",
        operator(plan.body(), plan.spec.topology()).summary,
        plan.id
    )
}

/// The formula that a kernel computes, with its sizes.
pub fn computes(plan: &KernelPlan) -> String {
    operator(plan.body(), plan.spec.topology()).computes
}

/// The lines of a table.
fn lines(rows: &[Vec<String>], right: &[usize]) -> Vec<String> {
    table(rows, right).lines().map(str::to_owned).collect()
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

fn roles(body: &Body) -> Vec<String> {
    let row = |role: &Role| {
        let codes: Vec<_> = role
            .kind
            .codes()
            .iter()
            .map(|code| abi::Role::describe(*code as u32))
            .collect();
        vec![
            role.kind.to_string(),
            format!("CTAs {}..{}", role.ctas.0, role.ctas.1),
            format!("warps {}..{}", role.warps.0, role.warps.1),
            format!("reports: {}", codes.join(", ")),
            role.about.clone(),
        ]
    };
    lines(&body.roles.iter().map(row).collect::<Vec<_>>(), &[])
}

/// The waits and signals of roles, and of the steps before and after the roles.
fn waits(body: &Body) -> Vec<String> {
    let row = |agent: &Agent<'_>| {
        let text = body.describe(agent.steps).join(" ");
        (!text.is_empty()).then(|| vec![agent.kind.name().to_owned(), text])
    };
    lines(
        &body.agents().iter().filter_map(row).collect::<Vec<_>>(),
        &[],
    )
}

/// The ranges of rows, and the time that the cost model expects with the most rows of each range.
fn buckets(plan: &KernelPlan) -> Vec<String> {
    let has_times = !plan.device.backend.is_simulated();
    let mut least = 0;
    let row = |bucket: &Body| {
        let most = bucket.max_rows().unwrap_or(0);
        let rows = format!("{least}..={most} rows");
        least = most + 1;
        let mut row = vec![rows, operator(bucket, plan.spec.topology()).summary];
        if has_times {
            row.insert(1, micros(bucket.estimate_us));
        }
        row
    };
    let rows: Vec<_> = plan.bodies.iter().map(row).collect();
    let mut lines = lines(&rows, if has_times { &[0, 1] } else { &[0] });
    lines.push("what follows is of the last, except for the size of the workspace".to_owned());
    lines
}

fn registers(plan: &KernelPlan) -> String {
    if plan.device.backend.is_simulated() {
        return "none, since threads run on the CPU".to_owned();
    }
    let registers = plan.launch().registers;
    format!(
        "{} at entry, then {} in producer warps and {} in consumer warps",
        registers.entry, registers.producer, registers.consumer
    )
}

/// A table of regions, each with the largest number of rows of its bucket.
fn regions<'a>(
    regions: impl Iterator<Item = (Option<u64>, &'a Region)>,
    total: String,
) -> Vec<String> {
    let row = |(rows, region): (Option<u64>, &Region)| {
        vec![
            match rows {
                Some(rows) => format!("{} (..={rows} rows)", region.name),
                None => region.name.to_owned(),
            },
            format!("at {}", region.offset_bytes),
            bytes(region.bytes),
        ]
    };
    let mut lines = lines(&regions.map(row).collect::<Vec<_>>(), &[1, 2]);
    lines.push(total);
    lines
}

fn shared_total(plan: &KernelPlan) -> String {
    format!(
        "= {} of {}, alignment included",
        bytes(plan.smem_bytes().into()),
        bytes(plan.device.smem_bytes.into())
    )
}

fn moves(body: &Body, topology: Topology) -> Vec<String> {
    let traffic = body.traffic;
    let mut rows = vec![
        vec![
            "link".to_owned(),
            bytes(traffic.link_bytes),
            "sent and received by each rank".to_owned(),
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
    if let Some(network) = &body.network {
        let peers = topology.peers();
        let puts = u32::from(network.channels) * network.puts;
        let about = format!(
            "sent and received by each rank, in {puts} puts of up to {} to each of {} on other nodes",
            bytes(network.put_bytes),
            count(peers as usize, "peer")
        );
        rows.insert(1, vec!["NIC".to_owned(), bytes(traffic.nic_bytes), about]);
    }
    lines(&rows, &[1])
}

fn bound(body: &Body) -> String {
    let bound = body.bound;
    let nic = match body.network {
        Some(_) => format!(", NIC {}", micros(bound.nic_us)),
        None => String::new(),
    };
    format!(
        "{} by {}: compute {}, link {}, memory {}{nic}",
        micros(bound.us()),
        bound.reason(),
        micros(bound.compute_us),
        micros(bound.link_us),
        micros(bound.memory_us)
    )
}

fn estimate(body: &Body) -> String {
    let share = 100.0 * body.bound.us() / body.estimate_us;
    format!(
        "{}; the bound is {share:.0} % of the estimate",
        micros(body.estimate_us)
    )
}

fn measured(times: TunedTimes) -> String {
    format!(
        "{}, by choices of `mkernel-gen tune`; by the choices of the cost model {}",
        micros(times.us),
        micros(times.untuned_us)
    )
}

fn device(plan: &KernelPlan) -> String {
    let device = &plan.device;
    if device.backend.is_simulated() {
        return format!(
            "simulated, {} SMs; planned as for an H200 with this number of SMs",
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
