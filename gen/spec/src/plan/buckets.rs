//! Buckets: ranges of the rows of a call, each with a plan of its own.
//!
//! Plans are compared at some numbers of rows. A bucket has the plan that is best for the most of its rows, and loses at
//! fewer rows against the plan that would be best there. The cost model divides the rows so that these losses are least.

use super::kernel::KernelPlan;
use super::op_plan::OpPlan;
use crate::abi::{ArgKind, MAX_BUCKETS, Source};
use crate::config::{Dim, Problem};
use crate::spec::KernelSpec;

/// Plans for fewer rows than these are alike.
const FEWEST_ROWS: u64 = 16;
/// What one more bucket must save to be worth its code and memory: a share of the time, added up over the numbers of rows
/// at which plans are compared.
const WORTH: f64 = 0.05;
/// The most bytes of a kernel's parameter before CUDA 12.1.
const MAX_PARAMETER_BYTES: usize = 4096;

/// The plan of a kernel with buckets, or `whole`, which is for all numbers of rows. `plan` returns the fastest plan of a spec,
/// if there is one.
pub(super) fn divided(
    whole: KernelPlan,
    plan: impl Fn(&KernelSpec) -> Option<KernelPlan>,
) -> KernelPlan {
    let Some((most, asked)) = divisible(&whole) else {
        return whole;
    };
    let sizes = sizes(most);
    let fewer = sizes[..sizes.len() - 1].iter().map(|rows| {
        let config = of_rows(&whole.spec, whole.spec.problem().clone(), *rows)?;
        plan(&config).filter(|plan| starts_alike(plan, &whole))
    });
    let plans: Vec<_> = fewer.chain([Some(whole.clone())]).collect();
    let losses = losses(&sizes, &plans, plan);
    let most = asked.map_or(MAX_BUCKETS, |asked| asked as usize);
    let worth = if asked.is_some() { 0.0 } else { WORTH };
    let mut best: Option<(KernelPlan, f64)> = None;
    for (count, (ends, loss)) in (1..).zip(divisions(&losses, most)) {
        let cost = loss + worth * f64::from(count);
        if best.as_ref().is_some_and(|(_, least)| cost >= *least) {
            continue;
        }
        let fewer = ends.into_iter().filter_map(|end| plans[end].clone());
        let plan = joined(whole.clone(), fewer.collect());
        if plan.parameter().1 <= MAX_PARAMETER_BYTES && plan.check_memory().is_ok() {
            best = Some((plan, cost));
        }
    }
    best.map_or(whole, |(plan, _)| plan)
}

/// The most rows, and how many buckets were asked for, if a plan may be divided.
fn divisible(plan: &KernelPlan) -> Option<(u64, Option<u32>)> {
    let OpPlan::Gemm(gemm) = &plan.op_plan else {
        return None;
    };
    Some((plan.max_rows()?, gemm.config.tuning.buckets))
}

/// The numbers of rows at which plans are compared.
fn sizes(most: u64) -> Vec<u64> {
    let powers = std::iter::successors(Some(FEWEST_ROWS), |rows| Some(rows * 2));
    powers.take_while(|rows| *rows < most).chain([most]).collect()
}

/// The same kernel for calls of at most `rows` rows, with the design of `problem`.
fn of_rows(spec: &KernelSpec, mut problem: Problem, rows: u64) -> Option<KernelSpec> {
    let at_run_time = problem.run_time_dim()?;
    for (field, dim) in problem.dims_mut() {
        if field == at_run_time {
            *dim = Dim::UpTo { most: rows };
        }
    }
    let mut config = spec.config().clone();
    config.problem = problem;
    KernelSpec::validate(config).ok()
}

/// The problem of a plan, with its design fixed.
fn design(plan: &KernelPlan) -> Problem {
    match &plan.op_plan {
        OpPlan::Gemm(gemm) => gemm.design().into(),
        _ => plan.spec.problem().clone(),
    }
}

/// Whether kernels of both plans may be bodies of one kernel, which starts before it knows the rows.
fn starts_alike(a: &KernelPlan, b: &KernelPlan) -> bool {
    (a.threads, a.grid_ctas, a.registers) == (b.threads, b.grid_ctas, b.registers)
}

/// How much longer a call of `sizes[i]` rows takes by the design of `plans[j]` than by that of `plans[i]`, as a share of the
/// latter, at `[j][i]` for i ≤ j.
fn losses(
    sizes: &[u64],
    plans: &[Option<KernelPlan>],
    plan: impl Fn(&KernelSpec) -> Option<KernelPlan>,
) -> Vec<Vec<f64>> {
    let loss = |by: &KernelPlan, best: &KernelPlan, rows: u64| {
        let spec = of_rows(&by.spec, design(by), rows);
        let plan = spec.and_then(|spec| plan(&spec));
        let us = plan.map_or(f64::INFINITY, |plan| plan.estimate_us);
        (us / best.estimate_us - 1.0).max(0.0)
    };
    let of_plan = |(j, by): (usize, &Option<KernelPlan>)| {
        let until = (0..=j).map(|i| match (by, &plans[i]) {
            (None, _) => f64::INFINITY,
            (Some(by), Some(best)) if i < j => loss(by, best, sizes[i]),
            _ => 0.0,
        });
        until.collect()
    };
    plans.iter().enumerate().map(of_plan).collect()
}

/// The best divisions into 1 to `most` buckets: the plans of all buckets but the last, and the sum of their losses.
fn divisions(losses: &[Vec<f64>], most: usize) -> Vec<(Vec<usize>, f64)> {
    let of_bucket = |begin: usize, end: usize| losses[end][begin..=end].iter().sum::<f64>();
    let whole = (0..losses.len()).map(|end| (Vec::new(), of_bucket(0, end)));
    // The best divisions of the numbers of rows up to each of them.
    let mut best: Vec<(Vec<usize>, f64)> = whole.collect();
    let mut all = Vec::new();
    for _ in 0..most {
        all.extend(best.last().cloned());
        let with_one_more = (0..losses.len()).map(|end| {
            let until = (0..end).map(|before| {
                let (ends, loss) = &best[before];
                let ends = ends.iter().copied().chain([before]);
                (ends.collect(), loss + of_bucket(before + 1, end))
            });
            until.min_by(|a: &(Vec<usize>, f64), b| a.1.total_cmp(&b.1))
        });
        best = with_one_more.map(|division| division.unwrap_or((Vec::new(), f64::INFINITY))).collect();
    }
    all
}

/// One kernel of several plans: their workspaces lie one behind the other.
fn joined(mut whole: KernelPlan, mut fewer: Vec<KernelPlan>) -> KernelPlan {
    if fewer.is_empty() {
        return whole;
    }
    let mut end_bytes = whole.workspace.bytes;
    for plan in &mut fewer {
        let (end, by) = plan.workspace.move_behind(end_bytes, &whole.workspace);
        end_bytes = end;
        for arg in &mut plan.args.args {
            if let ArgKind::TensorMap(map) = &mut arg.kind
                && let Source::Workspace { offset_bytes } = &mut map.source
            {
                *offset_bytes += by;
            }
        }
        whole.smem_bytes = whole.smem_bytes.max(plan.smem_bytes);
    }
    whole.workspace.bytes = end_bytes;
    whole.id = format!("{}_buckets{}", whole.id, fewer.len() + 1);
    whole.fewer_rows = fewer;
    whole
}
