//! Buckets: ranges of the rows of a call, each with a plan of its own.
//!
//! Plans are compared at some numbers of rows. A bucket has the plan that is best at its largest number of rows. At fewer rows,
//! this plan loses time against the plan that is best there. The cost model divides the rows so that the sum of these losses is
//! smallest.

use super::op_plan::OpPlan;
use super::plan::{Body, KernelPlan};
use super::sized::SizedSpec;
use crate::abi::{ArgKind, MAX_BUCKETS, Source};
use crate::config::{Dim, Problem};
use crate::device::Device;
use crate::ops::collective::plan as collective;
use crate::topology::Topology;

/// The smallest number of rows at which plans of GEMMs are compared. Plans for fewer rows are alike.
const FEWEST_ROWS_OF_TILES: u64 = 16;
/// The smallest saving that justifies the code and memory of one more bucket: a share of the time, added up over the numbers of
/// rows at which plans are compared.
const WORTH: f64 = 0.05;
/// The largest size of a kernel's parameter before CUDA 12.1.
const MAX_PARAMETER_BYTES: usize = 4096;

/// The plan of a kernel with buckets, or with `whole` alone, which is for all numbers of rows. `plan` returns the fastest body
/// of a spec, if there is one.
pub(super) fn divided(
    spec: &SizedSpec,
    device: &Device,
    whole: Body,
    plan: impl Fn(&SizedSpec) -> Option<Body>,
) -> KernelPlan {
    let Some((fewest, most, asked)) = divisible(&whole) else {
        return joined(spec, device, vec![whole]);
    };
    let sizes = sizes(fewest, most);
    let fewer = sizes[..sizes.len() - 1].iter().map(|rows| {
        let spec = of_rows(spec, *spec.problem(), *rows)?;
        launched_as(&whole, plan(&spec)?, spec.topology())
    });
    let bodies: Vec<_> = fewer.chain([Some(whole.clone())]).collect();
    let us = |by: &Body, rows| us_of_rows(spec, device, by, rows, &plan);
    let losses = losses(&sizes, &bodies, us);
    let most = asked.map_or(MAX_BUCKETS, |asked| asked as usize);
    let worth = if asked.is_some() { 0.0 } else { WORTH };
    let mut best: Option<(KernelPlan, f64)> = None;
    for (count, (ends, loss)) in (1..).zip(divisions(&losses, most)) {
        let cost = loss + worth * f64::from(count);
        if best.as_ref().is_some_and(|(_, least)| cost >= *least) {
            continue;
        }
        let fewer = ends.into_iter().filter_map(|end| bodies[end].clone());
        let plan = joined(spec, device, fewer.chain([whole.clone()]).collect());
        if plan.parameter().1 <= MAX_PARAMETER_BYTES && plan.check_memory().is_ok() {
            best = Some((plan, cost));
        }
    }
    best.map_or_else(|| joined(spec, device, vec![whole]), |(plan, _)| plan)
}

/// The smallest and the largest number of rows at which plans are compared, and the requested number of buckets, if a plan may be
/// divided.
fn divisible(body: &Body) -> Option<(u64, u64, Option<u32>)> {
    let (fewest, asked) = match &body.op_plan {
        OpPlan::Gemm(gemm) => {
            // Each body that normalises rows behind two shots spills registers, and all bodies together too many.
            let most = gemm.normalises_tiles().then_some(1);
            (FEWEST_ROWS_OF_TILES, gemm.config.tuning.buckets.or(most))
        }
        OpPlan::Collective(collective) => (1, collective.config.buckets),
        _ => return None,
    };
    Some((fewest, body.max_rows()?, asked))
}

/// The body in the launch of `whole`, if this launch is possible. All bodies share a launch, since a kernel starts before it knows
/// the rows.
fn launched_as(whole: &Body, mut body: Body, topology: Topology) -> Option<Body> {
    if let OpPlan::Collective(op_plan) = &body.op_plan
        && let Some(roles) = collective::roles_in(whole.launch, op_plan, topology)
    {
        (body.roles, body.launch) = (roles, whole.launch);
    }
    (body.launch == whole.launch).then_some(body)
}

/// The numbers of rows at which plans are compared.
fn sizes(fewest: u64, most: u64) -> Vec<u64> {
    let powers = std::iter::successors(Some(fewest), |rows| Some(rows * 2));
    powers
        .take_while(|rows| *rows < most)
        .chain([most])
        .collect()
}

/// The spec of a kernel for calls of at most `rows` rows, with the design of `problem`.
fn of_rows(spec: &SizedSpec, mut problem: Problem, rows: u64) -> Option<SizedSpec> {
    let at_run_time = problem.run_time_dim()?;
    for (field, dim) in problem.dims_mut() {
        if field == at_run_time {
            *dim = Dim::UpTo(rows);
        }
    }
    let mut config = spec.config().clone();
    config.problem = problem;
    SizedSpec::validate(config).ok()
}

/// The time of a call of `rows` rows with the design of a body, µs. `None` if the design cannot run such a call.
fn us_of_rows(
    spec: &SizedSpec,
    device: &Device,
    by: &Body,
    rows: u64,
    plan: impl Fn(&SizedSpec) -> Option<Body>,
) -> Option<f64> {
    match &by.op_plan {
        OpPlan::Gemm(gemm) => {
            // A load brings a whole tile, even if the call has only some of the tile's rows.
            let in_tiles = rows.next_multiple_of(gemm.tile.m.into()).min(gemm.shape.m);
            let spec = of_rows(spec, gemm.design().into(), in_tiles)?;
            plan(&spec).map(|plan| plan.estimate_us)
        }
        OpPlan::Collective(op_plan) => {
            let us = collective::us_of_rows(op_plan, rows, spec.topology(), device);
            Some(us)
        }
        _ => None,
    }
}

/// The losses at `[j][i]` for i ≤ j: the additional time of a call of `sizes[i]` rows with the design of `bodies[j]`, as a share of
/// the time with the design of `bodies[i]`. `us` returns the time of a call with a design; `None` if the design cannot run the call.
fn losses(
    sizes: &[u64],
    bodies: &[Option<Body>],
    us: impl Fn(&Body, u64) -> Option<f64>,
) -> Vec<Vec<f64>> {
    let loss = |by: &Body, best: &Body, rows: u64| {
        let us = us(by, rows).unwrap_or(f64::INFINITY);
        (us / best.estimate_us - 1.0).max(0.0)
    };
    let of_body = |(j, by): (usize, &Option<Body>)| {
        let until = (0..=j).map(|i| match (by, &bodies[i]) {
            (None, _) => f64::INFINITY,
            (Some(by), Some(best)) if i < j => loss(by, best, sizes[i]),
            _ => 0.0,
        });
        until.collect()
    };
    bodies.iter().enumerate().map(of_body).collect()
}

/// The best divisions into 1 to `most` buckets: the plans of all buckets but the last, and the sum of their losses.
fn divisions(losses: &[Vec<f64>], most: usize) -> Vec<(Vec<usize>, f64)> {
    let of_bucket = |begin: usize, end: usize| losses[end][begin..=end].iter().sum::<f64>();
    let whole = (0..losses.len()).map(|end| (Vec::new(), of_bucket(0, end)));
    // The best divisions of the rows up to each entry of `sizes`.
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
        best = with_one_more
            .map(|division| division.unwrap_or((Vec::new(), f64::INFINITY)))
            .collect();
    }
    all
}

/// One kernel of several bodies, from the fewest rows to the most. The workspaces lie one behind the other, the workspace of the
/// last body first.
fn joined(spec: &SizedSpec, device: &Device, mut bodies: Vec<Body>) -> KernelPlan {
    let mut id = String::new();
    if let Some((last, fewer)) = bodies.split_last_mut() {
        let mut end_bytes = last.workspace.bytes;
        for body in &mut *fewer {
            let (end, by) = body.workspace.move_behind(end_bytes, &last.workspace);
            end_bytes = end;
            for arg in &mut body.args.args {
                if let ArgKind::TensorMap(map) = &mut arg.kind
                    && let Source::Workspace { offset_bytes } = &mut map.source
                {
                    *offset_bytes += by;
                }
            }
        }
        id.clone_from(&last.id);
        if !fewer.is_empty() {
            id += &format!("_buckets{}", fewer.len() + 1);
        }
    }
    if spec.config().traced {
        id += "_traced";
        bodies.iter_mut().for_each(Body::trace);
    }
    KernelPlan {
        id,
        spec: spec.clone(),
        device: device.clone(),
        bodies,
        tuned: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{
        BLayout, CollectiveConfig, CollectiveOp, GemmConfig, GemmOp, KernelConfig,
    };
    use crate::config::{Protocol, Tuning};
    use crate::device::Device;

    const ROWS: Dim = Dim::UpTo(8192);

    fn config(op: GemmOp, m: Dim, buckets: Option<u32>) -> GemmConfig {
        GemmConfig {
            m,
            n: Dim::Static(7168),
            k: Dim::Static(2048),
            b_layout: BLayout::Nk,
            tuning: Tuning {
                buckets,
                ..Tuning::default()
            },
            ..GemmConfig::new(op)
        }
    }

    fn plan(config: impl Into<Problem>) -> KernelPlan {
        planned(KernelConfig::new(8, config))
    }

    fn planned(config: KernelConfig) -> KernelPlan {
        let spec = SizedSpec::validate(config).expect("valid");
        KernelPlan::new(&spec, &Device::h200()).expect("a plan")
    }

    fn rows_of(op: CollectiveOp) -> CollectiveConfig {
        CollectiveConfig {
            m: ROWS,
            n: Dim::Static(8192),
            ..CollectiveConfig::new(op)
        }
    }

    /// The protocol of each bucket.
    fn protocols(plan: &KernelPlan) -> Vec<(Protocol, u32)> {
        let of_body = |body: &Body| match &body.op_plan {
            OpPlan::Collective(plan) => (plan.protocol, plan.shots),
            _ => unreachable!("a collective"),
        };
        plan.bodies.iter().map(of_body).collect()
    }

    #[test]
    fn plans_for_few_rows_differ_from_plans_for_many_rows() {
        for op in GemmOp::ALL {
            let plan = plan(config(op, ROWS, None));
            let most: Vec<_> = plan.bodies.iter().filter_map(Body::max_rows).collect();
            assert!((2..=MAX_BUCKETS).contains(&most.len()), "{op}: {most:?}");
            assert!(most.is_sorted_by(|a, b| a < b), "{op}: {most:?}");
            assert_eq!(most.last(), Some(&8192), "{op}");
        }
    }

    /// If one round of tiles is enough, packets are faster than two shots (`docs/performance.md#buckets-of-packets`).
    #[test]
    fn a_bucket_of_packets_reaches_to_hundreds_of_rows() {
        for op in [GemmOp::GemmRs, GemmOp::GemmAr] {
            let plan = plan(config(op, ROWS, None));
            let shots = |body: &Body| {
                body.gemm()
                    .and_then(|gemm| gemm.reduction.as_ref()?.shots.into())
            };
            let in_packets = plan.bodies.iter().filter(|body| shots(body) == Some(1));
            let most = in_packets.filter_map(Body::max_rows).max();
            assert!(
                most.is_some_and(|rows| (256..1024).contains(&rows)),
                "{op}: {most:?}"
            );
        }
    }

    #[test]
    fn the_option_buckets_is_an_upper_bound() {
        for asked in 1..=4 {
            let plan = plan(config(GemmOp::GemmAr, ROWS, Some(asked)));
            assert_eq!(plan.bodies.len(), asked as usize);
        }
    }

    /// A plan for a constant number of rows has no buckets. A plan with a fixed design has buckets only for fewer rows than a tile
    /// has, since the kernel then loads only a part of the tile.
    #[test]
    fn a_constant_number_of_rows_has_one_bucket() {
        let alone = plan(config(GemmOp::GemmRs, Dim::Static(8192), None));
        assert_eq!(alone.bodies.len(), 1);
        let whole = plan(config(GemmOp::GemmRs, ROWS, Some(1)));
        let fixed = whole.gemm().expect("a GEMM").design();
        let tuning = Tuning {
            buckets: None,
            ..fixed.tuning
        };
        let fixed = plan(GemmConfig { tuning, ..fixed });
        let tile_rows = whole.gemm().expect("a GEMM").tile.m;
        for fewer in &fixed.bodies[..fixed.bodies.len() - 1] {
            let rows = fewer.max_rows().expect("rows");
            assert!(rows < tile_rows.into(), "{}: {rows}", fixed.id);
        }
    }

    /// Few rows travel in packets. Buckets for few rows have the launch of the bucket for the most rows.
    #[test]
    fn rows_of_collectives_change_the_protocol() {
        for op in CollectiveOp::ALL {
            let plan = plan(rows_of(op));
            let protocols = protocols(&plan);
            assert_eq!(protocols[0].0, Protocol::Ll, "{op}: {protocols:?}");
            assert_eq!(protocols.last(), Some(&(Protocol::Simple, 0)), "{op}");
            for body in &plan.bodies {
                assert_eq!(body.launch, plan.launch(), "{op}");
                let most = body.max_rows().expect("rows");
                let us = us_of_rows(&plan.spec, &plan.device, body, most, |_| None);
                let us = us.expect("a time");
                assert!((us - body.estimate_us).abs() < 1e-9, "{op}: {us}");
            }
            if op == CollectiveOp::AllReduce {
                assert_eq!((protocols[0].1, protocols[1].1), (1, 2));
            }
        }
    }

    /// If the protocol is given, buckets differ in shots at most. Across nodes there are no packets, and so no buckets.
    #[test]
    fn buckets_of_collectives_keep_fixed_options() {
        let mut config = rows_of(CollectiveOp::AllReduce);
        config.protocol = Some(Protocol::Simple);
        let chunks = plan(config);
        assert_eq!(protocols(&chunks), [(Protocol::Simple, 0)]);
        (config.protocol, config.m) = (Some(Protocol::Ll), Dim::UpTo(64));
        config.buckets = Some(4);
        let packets = [(Protocol::Ll, 1), (Protocol::Ll, 2)];
        assert_eq!(protocols(&plan(config)), packets);
        config.shots = Some(2);
        assert_eq!(protocols(&plan(config)), packets[1..]);
        let across = planned(KernelConfig {
            nodes: 2,
            ..KernelConfig::new(8, rows_of(CollectiveOp::AllReduce))
        });
        assert_eq!(protocols(&across), [(Protocol::Simple, 0)]);
    }

    /// The design of a plan leads back to this plan at the plan's number of rows. Otherwise losses would be computed
    /// for other plans.
    #[test]
    fn a_design_fixes_its_plan() {
        for op in GemmOp::ALL {
            for most in [16, 64, 256, 1024, 8192] {
                let best = plan(config(op, Dim::UpTo(most), Some(1)));
                let fixed = plan(best.gemm().expect("a GEMM").design());
                assert_eq!(fixed.id, best.id);
                assert!(
                    (fixed.body().estimate_us - best.body().estimate_us).abs() < 1e-9,
                    "{}",
                    best.id
                );
            }
        }
    }

    #[test]
    fn the_division_with_the_least_loss_is_found() {
        // The plan for the last size is bad at the first two sizes. The plan for the second size is not bad at the first size.
        let losses = [
            vec![0.0],
            vec![0.01, 0.0],
            vec![0.4, 0.3, 0.0],
            vec![0.5, 0.4, 0.02, 0.0],
        ];
        let found = divisions(&losses, 4);
        let ends: Vec<_> = found.iter().map(|(ends, _)| ends.as_slice()).collect();
        assert_eq!(ends, [&[][..], &[1], &[1, 2], &[0, 1, 2]]);
        let sums = [0.92, 0.03, 0.01, 0.0];
        assert!(
            found
                .iter()
                .zip(sums)
                .all(|((_, loss), sum)| (loss - sum).abs() < 1e-9),
            "{found:?}"
        );
    }
}
