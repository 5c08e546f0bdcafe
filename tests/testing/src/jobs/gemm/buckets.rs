//! Jobs of GEMM operators with buckets, whose calls change from one bucket to another.

use super::GemmJob;
use mkernel::network::Faults;
use mkernel::spec::{BLayout, Dim, GemmConfig, GemmOp, GemmShape, Tuning};

/// The most rows of a call.
const MOST: u64 = 300;
/// Rows of consecutive calls: no row, one row, the most rows, and numbers on both sides of the ends of buckets. Several
/// calls run each bucket.
const ROWS: [u64; 13] = [300, 1, 0, 64, 257, 65, 256, 129, 33, 17, 7, 300, 16];

/// Returns jobs on one node: buckets that differ in the tile, in the tiles that CTAs share, in the CTAs that push and in the
/// shots. The planner chooses them.
pub fn in_buckets(world: u32) -> Vec<(String, GemmJob)> {
    use GemmOp::{AgGemm, GemmAr, GemmRs};
    let two_shots = Tuning {
        shots: Some(2),
        ..Tuning::default()
    };
    let job = |op, tuning, sizes, sms| job(op, world, tuning, sizes, sms);
    let any = Tuning::default();
    let jobs = [
        ("tiles", job(AgGemm, any, (264, 512), 4).in_graph()),
        ("CTAs that push", job(AgGemm, any, (1032, 136), 5)),
        ("shots", job(GemmRs, any, (3080, 72), 3)),
        ("packets", job(GemmAr, any, (264, 136), 4).in_graph()),
        ("results", job(GemmAr, two_shots, (264, 512), 3).symmetric()),
    ];
    let name = |(name, job): (&str, GemmJob)| {
        let op = job.config.op.op().name();
        (
            format!("{op}, buckets of other {name}, on {world} ranks"),
            job,
        )
    };
    jobs.into_iter().map(name).collect()
}

/// Returns jobs with buckets on several nodes.
pub fn in_buckets_across(nodes: u32, local: u32, faults: &Faults) -> Vec<(String, GemmJob)> {
    let world = nodes * local;
    let any = Tuning::default();
    let jobs = [
        job(GemmOp::AgGemm, world, any, (136, 72), 3).in_graph(),
        job(GemmOp::GemmAr, world, any, (264, 512), 3),
    ];
    let across = |job: GemmJob| {
        let name = format!("{}, buckets on {nodes}x{local}", job.config.op.op().name());
        (name, job.across(nodes, faults.clone()))
    };
    jobs.into_iter().map(across).collect()
}

fn job(op: GemmOp, world: u32, tuning: Tuning, (n, k): (u64, u64), sms: u32) -> GemmJob {
    let tuning = Tuning {
        buckets: Some(4),
        ..tuning
    };
    let config = GemmConfig {
        n: Dim::Static(n),
        k: Dim::Static(k),
        b_layout: BLayout::Nk,
        tuning,
        ..GemmConfig::new(op)
    };
    GemmJob::new(world, config, GemmShape { m: MOST, n, k }, sms).with_rows(&ROWS)
}
