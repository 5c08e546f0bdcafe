//! Jobs of GEMM operators that cover every exchange and many sizes.

use super::GemmJob;
use mkernel::network::Faults;
use mkernel::spec::{
    Activation, BLayout, Dim, Dtype, Epilogue, GemmConfig, GemmOp, GemmShape, Scales, Tuning,
};

/// Returns jobs that run on simulated GPUs and on real GPUs, and must give equal bits on both. Their shapes have whole
/// tiles, partial tiles, several rounds of tiles, and a single row.
pub fn common_jobs(world: u32) -> Vec<(String, GemmJob)> {
    const SHAPES: [(u64, u64, u64); 5] = [
        (128, 256, 256),
        (150, 264, 136),
        (1, 8, 8),
        (256, 520, 72),
        (77, 136, 256),
    ];
    let plain = Epilogue::default();
    let [finished, fp32] = [None, Some(Dtype::Fp32)].map(finished);
    let job = |op: GemmOp, index: usize, epilogue: Epilogue, dtype: Dtype| {
        let (m, n, k) = SHAPES[index];
        let layouts = [BLayout::Nk, BLayout::Kn];
        let config = GemmConfig {
            dtype,
            b_layout: layouts[index % 2],
            epilogue,
            ..GemmConfig::new(op)
        };
        static_job(world, config, GemmShape { m, n, k })
    };
    let usual = |(index, epilogue)| (index, epilogue, Dtype::Bf16);
    let jobs = (0..SHAPES.len()).map(|index| (index, plain));
    let jobs = jobs.chain([(1, finished), (1, fp32), (4, finished)]);
    let of_fp16 = [(1, finished), (3, plain), (4, fp32)];
    let of_fp16 = of_fp16.map(|(index, epilogue)| (index, epilogue, Dtype::Fp16));
    let jobs: Vec<_> = jobs.map(usual).chain(of_fp16).collect();
    let of = |op: GemmOp| {
        let jobs = jobs.iter();
        jobs.map(move |(index, epilogue, dtype)| job(op, *index, *epilogue, *dtype))
    };
    let jobs = GemmOp::ALL.into_iter().flat_map(of);
    jobs.chain(of_e4m3(world)).chain(of_swiglu(world)).collect()
}

/// Returns a job with these constant sizes, and its name.
fn static_job(world: u32, config: GemmConfig, shape: GemmShape) -> (String, GemmJob) {
    let GemmShape { m, n, k } = shape;
    let config = GemmConfig {
        m: Dim::Static(m),
        n: Dim::Static(n),
        k: Dim::Static(k),
        ..config
    };
    let (op, suffix) = (config.op.op().name(), config.suffix());
    let name = format!("{op}{suffix} of {m}x{n}x{k} on {world} ranks");
    (name, GemmJob::new(world, config, shape, 8))
}

/// Returns jobs of e4m3 with every kind of scales: whole and partial tiles and blocks, a single row, and more stages than a
/// window of scales has.
fn of_e4m3(world: u32) -> Vec<(String, GemmJob)> {
    let finished = finished(Some(Dtype::Fp32));
    let cases = [
        (Scales::None, (128, 256, 256), Epilogue::default()),
        (Scales::Tensor, (77, 136, 400), finished),
        (Scales::Row, (150, 264, 144), Epilogue::default()),
        (Scales::Row, (1, 8, 16), finished),
        (Scales::Block, (150, 264, 1168), finished),
        (Scales::Block, (1, 8, 16), Epilogue::default()),
    ];
    let job = |op: GemmOp, (scales, (m, n, k), epilogue)| {
        let config = GemmConfig {
            dtype: Dtype::E4m3,
            scales,
            b_layout: BLayout::Nk,
            epilogue,
            ..GemmConfig::new(op)
        };
        static_job(world, config, GemmShape { m, n, k })
    };
    let of = |op| cases.into_iter().map(move |case| job(op, case));
    GemmOp::ALL.into_iter().flat_map(of).collect()
}

/// Returns jobs with SwiGLU: whole and partial tiles, both layouts, a single row, and each type of A.
fn of_swiglu(world: u32) -> Vec<(String, GemmJob)> {
    let all = Epilogue {
        bias: true,
        residual: true,
        output: Some(Dtype::Fp32),
        ..swiglu()
    };
    let (kn, nk, narrow) = (BLayout::Kn, BLayout::Nk, Dtype::E4m3);
    let cases = [
        ((128, 256, 256), nk, (Dtype::Bf16, Scales::None), swiglu()),
        ((150, 264, 136), kn, (Dtype::Fp16, Scales::None), all),
        ((1, 8, 8), kn, (Dtype::Bf16, Scales::None), swiglu()),
        ((77, 136, 400), nk, (narrow, Scales::Tensor), all),
        ((150, 264, 144), nk, (narrow, Scales::Row), all),
        ((150, 200, 1168), nk, (narrow, Scales::Block), swiglu()),
    ];
    let job = |op: GemmOp, ((m, n, k), b_layout, (dtype, scales), epilogue)| {
        let config = GemmConfig {
            dtype,
            scales,
            b_layout,
            epilogue,
            ..GemmConfig::new(op)
        };
        static_job(world, config, GemmShape { m, n, k })
    };
    // The scales of rows and blocks of A do not travel to other ranks.
    let gathered = cases[..4].iter().map(|case| job(GemmOp::AgGemm, *case));
    let alone = cases.iter().map(|case| job(GemmOp::Gemm, *case));
    gathered.chain(alone).collect()
}

fn swiglu() -> Epilogue {
    Epilogue {
        swiglu: true,
        ..Epilogue::default()
    }
}

/// Numbers of rows of consecutive calls, up to 300: 0, 1, 300, and numbers that end within a tile or within a shard.
const ROWS: [u64; 7] = [299, 1, 0, 300, 128, 7, 65];

/// A tuning with tiles of this size.
fn tile(m: u32, n: u32) -> Tuning {
    Tuning {
        tile_m: Some(m),
        tile_n: Some(n),
        ..Tuning::default()
    }
}

/// A tuning in which ranks reduce in `shots` shots.
fn shots(shots: u32, tuning: Tuning) -> Tuning {
    Tuning {
        shots: Some(shots),
        ..tuning
    }
}

/// An epilogue with bias, residual and an activation that keeps whole numbers exact, and C in the type of A or in fp32.
fn finished(output: Option<Dtype>) -> Epilogue {
    Epilogue {
        bias: true,
        residual: true,
        activation: Activation::Relu,
        output,
        ..Epilogue::default()
    }
}

/// Returns jobs on one node whose calls have different numbers of rows: every exchange, both layouts of B, tiles of both
/// heights, shared tiles, several rounds, epilogues, and graphs.
pub fn with_rows(world: u32) -> Vec<(String, GemmJob)> {
    use GemmOp::{AgGemm, Gemm, GemmRs};
    let plain = Epilogue::default();
    let thirds = Tuning {
        split_k: Some(3),
        ..tile(64, 128)
    };
    let job =
        |op, tuning, epilogue, sizes, sms| rows_job(op, world, (tuning, epilogue), sizes, sms);
    let mut jobs = vec![
        (
            "shared tiles",
            job(GemmRs, tile(128, 128), plain, (264, 512), 7),
        ),
        (
            "fp16",
            job(GemmRs, tile(64, 128), finished(None), (136, 264), 4).fp16(),
        ),
        (
            "epilogue",
            job(AgGemm, tile(64, 128), finished(None), (136, 136), 4),
        ),
        (
            "rounds of tiles",
            job(Gemm, tile(64, 128), finished(None), (264, 136), 3),
        ),
        (
            "shared by three",
            job(Gemm, thirds, finished(Some(Dtype::Fp32)), (72, 264), 17).in_graph(),
        ),
        (
            "SwiGLU",
            job(Gemm, tile(128, 256), swiglu(), (264, 136), 8).in_graph(),
        ),
        (
            "SwiGLU of gathered rows",
            job(AgGemm, tile(64, 256), swiglu(), (136, 264), 8),
        ),
    ];
    if world > 1 {
        jobs.extend(gathered_rows(world));
        jobs.extend(reduced_rows(world));
    }
    let name = |(name, job): (&str, GemmJob)| {
        let op = job.config.op.op().name();
        (format!("{op}, {name}, on {world} ranks"), job)
    };
    jobs.into_iter().map(name).collect()
}

/// Returns jobs of `ag_gemm` in which CTAs that compute push, and CTAs that only communicate.
fn gathered_rows(world: u32) -> [(&'static str, GemmJob); 5] {
    let comm = |ctas, slices| Tuning {
        comm_ctas: Some(ctas),
        k_slices: Some(slices),
        ..tile(128, 128)
    };
    let few = Tuning {
        split_k: Some(3),
        ..tile(64, 128)
    };
    let job = |tuning, epilogue, sizes, sms| {
        rows_job(GemmOp::AgGemm, world, (tuning, epilogue), sizes, sms)
    };
    let plain = Epilogue::default();
    [
        ("pushed by all", job(comm(0, 2), plain, (136, 264), 3)),
        (
            "pushed by a CTA",
            job(comm(1, 1), finished(Some(Dtype::Fp32)), (264, 136), 4).in_graph(),
        ),
        ("shared by three", job(few, plain, (72, 264), 17)),
        (
            "scales of rows",
            job(comm(0, 2), plain, (136, 272), 3).scaled(Scales::Row),
        ),
        (
            "scales of blocks",
            job(comm(1, 1), plain, (136, 272), 4).scaled(Scales::Block),
        ),
    ]
}

/// Returns jobs of operators that reduce, in two shots and in one shot.
fn reduced_rows(world: u32) -> [(&'static str, GemmJob); 8] {
    use GemmOp::{GemmAr, GemmRs};
    let (same, fp32) = (finished(None), finished(Some(Dtype::Fp32)));
    let rounds = Tuning {
        round_tiles: Some(2),
        ..shots(2, tile(64, 128))
    };
    let one = shots(1, Tuning::default());
    let job =
        |op, tuning, epilogue, sizes, sms| rows_job(op, world, (tuning, epilogue), sizes, sms);
    // With fewer columns or ranks, sums are not forwarded.
    let relayed = if world == 8 { (136, 648) } else { (136, 136) };
    [
        (
            "two shots",
            job(GemmRs, shots(2, tile(128, 256)), fp32, (520, 72), 5),
        ),
        ("rounds", job(GemmRs, rounds, same, (264, 72), 4).in_graph()),
        (
            "results",
            job(GemmAr, shots(2, tile(128, 128)), same, (136, 136), 4),
        ),
        (
            "results in rounds",
            job(GemmAr, rounds, fp32, (264, 72), 3).in_graph(),
        ),
        ("packets", job(GemmRs, one, same, (136, 136), 4)),
        (
            "packets to all",
            job(GemmAr, one, fp32, (136, 136), 4).in_graph(),
        ),
        ("relayed packets", job(GemmAr, one, same, relayed, 4)),
        (
            "relayed packets of fp16",
            job(GemmAr, one, same, relayed, 4).fp16(),
        ),
    ]
}

/// Returns jobs on several nodes whose calls give the rows.
pub fn with_rows_across(nodes: u32, local_world: u32, faults: &Faults) -> Vec<(String, GemmJob)> {
    let world = nodes * local_world;
    let jobs = GemmOp::ALL.into_iter().map(|op| {
        let kernel = (tile(64, 128), Epilogue::default());
        let job = rows_job(op, world, kernel, (264, 136), 6);
        let job = match op {
            GemmOp::GemmRs => job.in_graph(),
            _ => job,
        };
        let name = format!("{} on {nodes}x{local_world}", op.op().name());
        (name, job.across(nodes, faults.clone()))
    });
    let kernel = (tile(64, 256), swiglu());
    let job = rows_job(GemmOp::AgGemm, world, kernel, (264, 136), 6);
    let name = format!("ag_gemm with SwiGLU on {nodes}x{local_world}");
    let job = (name, job.across(nodes, faults.clone()));
    jobs.chain([job]).collect()
}

fn rows_job(
    op: GemmOp,
    world: u32,
    (tuning, epilogue): (Tuning, Epilogue),
    (n, k): (u64, u64),
    sms: u32,
) -> GemmJob {
    let config = GemmConfig {
        m: Dim::Dynamic,
        n: Dim::Static(n),
        k: Dim::Static(k),
        b_layout: if n > k { BLayout::Nk } else { BLayout::Kn },
        epilogue,
        tuning,
        ..GemmConfig::new(op)
    };
    let shape = GemmShape { m: 300, n, k };
    GemmJob::new(world, config, shape, sms).with_rows(&ROWS)
}

/// Returns jobs of `gemm_ar` whose C is in symmetric memory: several rounds, gaps, a row, split K, epilogues, one shot, and
/// rows at run time.
pub fn symmetric(world: u32) -> Vec<(String, GemmJob)> {
    let (plain, same) = (Epilogue::default(), finished(None));
    let rounds = Tuning {
        round_tiles: Some(1),
        ..tile(64, 128)
    };
    let job = |tuning: Tuning, epilogue, (m, n, k): (u64, u64, u64), sms| {
        let config = GemmConfig {
            m: Dim::Static(m),
            n: Dim::Static(n),
            k: Dim::Static(k),
            epilogue,
            tuning,
            ..GemmConfig::new(GemmOp::GemmAr)
        };
        GemmJob::new(world, config, GemmShape { m, n, k }, sms)
    };
    let mut jobs = vec![("one tile", job(tile(128, 128), same, (77, 72, 136), 2))];
    if world > 1 {
        let two = |tuning| shots(2, tuning);
        let of_rows = |tuning, epilogue, sizes, sms| {
            rows_job(GemmOp::GemmAr, world, (two(tuning), epilogue), sizes, sms)
        };
        jobs.extend([
            ("gaps", job(two(tile(128, 128)), plain, (300, 264, 136), 4)),
            (
                "rounds",
                job(two(rounds), finished(Some(Dtype::Fp32)), (260, 264, 72), 3),
            ),
            ("a row", job(two(tile(64, 128)), same, (1, 520, 264), 3)),
            (
                "shared tiles",
                job(two(tile(128, 128)), plain, (128, 256, 512), 7),
            ),
            (
                "packets",
                job(shots(1, Tuning::default()), same, (9, 136, 136), 4),
            ),
            (
                "rows at run time",
                of_rows(tile(128, 128), same, (136, 136), 4),
            ),
            (
                "rows at run time in a graph",
                of_rows(rounds, finished(Some(Dtype::Fp32)), (264, 72), 3).in_graph(),
            ),
        ]);
    }
    let name = |(name, job): (&str, GemmJob)| {
        let name = format!("{name} in symmetric memory on {world} ranks");
        (name, job.symmetric())
    };
    jobs.into_iter().map(name).collect()
}
