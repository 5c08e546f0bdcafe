//! The output of the benchmark: a table and lines of JSON, with baselines of this machine.

use mkernel::KernelPlan;
use mkernel::spec::plan::GemmPlan;
use mkernel_testing::lab::Failure;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::Write;
use std::path::Path;

/// The measurement of one plan for one shape.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    pub op: &'static str,
    pub world: u32,
    pub nodes: u32,
    pub m: u64,
    pub n: u64,
    pub k: u64,
    pub b_layout: &'static str,
    /// The tuning that was passed to the planner.
    pub tune: String,
    /// The plan.
    pub id: String,
    pub us: f64,
    pub cublas_us: f64,
    /// The time of the GEMM core without communication.
    pub core_us: f64,
    /// `us / cublas_us`
    pub normalised: f64,
    /// `cublas_us / core_us`
    pub core_speed: f64,
    /// The time of the NIC for its bytes.
    pub nic_us: f64,
    /// The reference: the largest of the times of cuBLAS alone, of NVLink and of the NIC.
    pub bound_us: f64,
    pub of_bound: f64,
    /// The planner's estimate of the time.
    pub estimate_us: f64,
    /// The host time of a call with slices.
    pub launch_ns: f64,
    /// The host time of a call with pointers.
    pub launch_raw_ns: f64,
    /// The error ‖C − fp64‖ / ‖fp64‖ of sampled rows of this plan.
    pub relative_error: f64,
    /// The error of cuBLAS for the factors of this rank alone.
    pub cublas_error: f64,
    /// The error of NCCL and cuBLAS in benches/baselines.py, on data of the same distribution as here.
    pub nccl_error: Option<f64>,
    /// The fastest baseline of this shape.
    pub baseline: Option<Best>,
    /// On several nodes, the time of separate steps.
    pub unfused: Option<Unfused>,
}

/// The time of separate steps one after the other, over the NICs of the plan.
#[derive(Clone, Debug, Serialize)]
pub struct Unfused {
    /// The time of the steps over the NICs, measured in this run.
    pub nics_us: f64,
    /// The time of the steps inside a node, from benches/baselines.py with the ranks of one node, scaled to the clocks of
    /// this run. If a node has one GPU, the time of cuBLAS alone.
    pub node_us: f64,
    pub node_variant: String,
    /// Whether the steps over NVLink are missing for lack of a baseline. The time is then a lower bound.
    pub is_lower_bound: bool,
    pub us: f64,
    /// The time of the plan divided by the unfused time. Below 1, the plan is faster.
    pub ours_by_it: f64,
}

impl Unfused {
    /// Returns the unfused time for a row, from the time of the NICs and the baselines.
    pub fn new(row: &Row, nics_us: f64, baselines: &[Baseline], plan: &KernelPlan) -> Self {
        let local_world = row.world / row.nodes;
        let node = match local_world {
            1 => None,
            _ => best(baselines, plan, local_world, row.normalised),
        };
        let node_us = row.cublas_us * node.as_ref().map_or(1.0, |best| best.normalised);
        let us = nics_us + node_us;
        Self {
            nics_us,
            node_us,
            is_lower_bound: node.is_none() && local_world > 1,
            node_variant: node.map_or("cuBLAS".to_owned(), |best| best.variant),
            us,
            ours_by_it: row.us / us,
        }
    }
}

/// A line of the output of benches/baselines.py.
#[derive(Clone, Debug, Deserialize)]
pub struct Baseline {
    op: String,
    variant: String,
    world: u32,
    m: u64,
    n: u64,
    k: u64,
    b_layout: String,
    us: f64,
    cublas_us: f64,
    error: f64,
}

/// The variant that provides the error.
const NCCL: &str = "NCCL+cuBLAS";

/// The fastest baseline of a shape.
#[derive(Clone, Debug, Serialize)]
pub struct Best {
    pub variant: String,
    pub normalised: f64,
    /// The normalised time of the plan divided by the normalised time of the baseline. Below 1, the plan is faster.
    pub ours_by_it: f64,
}

/// Reads the output of benches/baselines.py. Ignores lines that are not JSON, which come from other programs.
pub fn read_baselines(path: &Path) -> Result<Vec<Baseline>, Failure> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let lines = text.lines().filter(|line| line.starts_with('{'));
    Ok(lines.map(serde_json::from_str).collect::<Result<_, _>>()?)
}

/// Returns the baselines for the product of a plan without its epilogue, on the given number of ranks with the same N
/// and K per rank.
fn of_plan<'a>(
    baselines: &'a [Baseline],
    plan: &KernelPlan,
    world: u32,
) -> impl Iterator<Item = &'a Baseline> {
    let wanted = plan.gemm().map(|GemmPlan { config, shape, .. }| {
        let names = (config.op.op().name(), config.b_layout.name());
        (names, (world, shape.m, shape.n, shape.k))
    });
    baselines.iter().filter(move |b| {
        let names = (b.op.as_str(), b.b_layout.as_str());
        wanted == Some((names, (b.world, b.m, b.n, b.k)))
    })
}

/// Returns the error of NCCL and cuBLAS.
pub fn nccl_error(baselines: &[Baseline], plan: &KernelPlan, world: u32) -> Option<f64> {
    let mut all = of_plan(baselines, plan, world);
    Some(all.find(|b| b.variant == NCCL)?.error)
}

/// Returns the fastest of `baselines` for the product of a plan. `normalised` is the normalised time of the plan.
pub fn best(
    baselines: &[Baseline],
    plan: &KernelPlan,
    world: u32,
    normalised: f64,
) -> Option<Best> {
    let timed = of_plan(baselines, plan, world).map(|b| (b, b.us / b.cublas_us));
    let (best, theirs) = timed.min_by(|(_, x), (_, y)| x.total_cmp(y))?;
    Some(Best {
        variant: best.variant.clone(),
        normalised: theirs,
        ours_by_it: normalised / theirs,
    })
}

pub fn print_heading() {
    println!(
        "{:>8} {:>17} {:>2} {:>9} {:>9} {:>7} {:>7} {:>9} {:>6} {:>7} {:>7} {:>8} {:>8} {:>8}  plan, and the best baseline (normalised; ours by it)",
        "op",
        "M x N x K",
        "B",
        "ours µs",
        "cuBLAS",
        "ours/cu",
        "cu/core",
        "bound µs",
        "bound%",
        "call ns",
        "raw ns",
        "error",
        "cuBLAS's",
        "NCCL's"
    );
}

pub fn print(row: &Row) {
    let shape = format!("{}x{}x{}", row.m, row.n, row.k);
    let baseline = row.baseline.as_ref().map_or_else(String::new, |best| {
        format!(
            "; {} {:.3} ({:.3})",
            best.variant, best.normalised, best.ours_by_it
        )
    });
    println!(
        "{:>8} {shape:>17} {:>2} {:>9.1} {:>9.1} {:>7.3} {:>7.3} {:>9.1} {:>6.1} {:>7.0} {:>7.0} {:>8.2e} {:>8.2e} {:>8}  {}{baseline}",
        row.op,
        row.b_layout,
        row.us,
        row.cublas_us,
        row.normalised,
        row.core_speed,
        row.bound_us,
        row.of_bound * 100.0,
        row.launch_ns,
        row.launch_raw_ns,
        row.relative_error,
        row.cublas_error,
        row.nccl_error
            .map_or("-".to_owned(), |error| format!("{error:.2e}")),
        row.id
            .split_once(&format!("_{}_t", row.b_layout))
            .map_or(row.id.as_str(), |(_, plan)| plan),
    );
    if let Some(unfused) = &row.unfused {
        print_unfused(unfused);
    }
}

fn print_unfused(unfused: &Unfused) {
    let Unfused {
        nics_us,
        node_us,
        node_variant,
        us,
        ours_by_it,
        ..
    } = unfused;
    let (least, missing) = match unfused.is_lower_bound {
        true => (
            "at least ",
            ", without NVLink, since there is no baseline of a node",
        ),
        false => ("", ""),
    };
    println!(
        "{:>8} unfused {least}{us:.1} µs = NICs {nics_us:.1} + node {node_us:.1} ({node_variant}{missing}); ours by it {ours_by_it:.3}",
        ""
    );
}

pub fn append(path: &Path, row: &Row) -> Result<(), Failure> {
    let mut file = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)?;
    writeln!(file, "{}", serde_json::to_string(row)?)?;
    Ok(())
}
