//! Generators of random configurations, devices and plans of GEMM operators.

use mkernel_spec::plan::{Body, GemmPlan};
use mkernel_spec::{
    Activation, BLayout, Device, Dim, Dtype, Epilogue, GemmConfig, GemmOp, KernelConfig,
    KernelPlan, SizedSpec, Transfer, Tuning,
};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Generates configurations whose sizes are in bounds. The tuning may not fit the sizes.
pub fn configs() -> impl Strategy<Value = KernelConfig> {
    let tuned = (sizes(), epilogues()).prop_flat_map(|(mut config, epilogue)| {
        let gemm = gemm_config(&mut config);
        gemm.epilogue = with_one_activation(epilogue, gemm.op);
        tuning(gemm.op).prop_map(move |mut tuning| {
            let mut config = config.clone();
            if gemm_config(&mut config).epilogue.swiglu {
                tuning.tile_n = tuning.tile_n.filter(|n| *n == 256);
            }
            gemm_config(&mut config).tuning = tuning;
            config
        })
    });
    prop_oneof![7 => tuned, 1 => select(corners())]
}

/// Returns configurations at limits of the planner.
fn corners() -> Vec<KernelConfig> {
    let push = |(m, n, k), tune: fn(&mut Tuning)| {
        let mut config = config(GemmOp::AgGemm, 2, (m, n, k), BLayout::Nk);
        let tuning = &mut gemm_config(&mut config).tuning;
        tuning.transfer = Some(Transfer::SmPush);
        tune(tuning);
        config
    };
    vec![
        // Pieces of 256 rows in chunks of 384.
        push((16_384, 512, 128), |t| {
            (t.comm_ctas, t.k_slices, t.chunk_rows) = (Some(1), Some(1), Some(384));
        }),
        // Rows longer than a pushing warp's shared memory, and a last slice shorter than the first.
        push((256, 256, 32_776), |t| {
            (t.comm_ctas, t.k_slices) = (Some(4), Some(2));
        }),
        // A pipeline that is smaller than the memory of pushing warps.
        push((1024, 512, 1024), |t| {
            (t.tile_m, t.tile_n, t.stages) = (Some(64), Some(128), Some(2));
            t.comm_ctas = Some(8);
        }),
        // Chunks larger than a shard.
        push((1000, 512, 1024), |t| t.chunk_rows = Some(16_384)),
        // More row tiles per group than in a shard.
        push((2560, 512, 1024), |t| t.group_m = Some(64)),
    ]
}

/// Generates configurations without tuning.
pub fn sizes() -> impl Strategy<Value = KernelConfig> {
    let m = prop_oneof![
        1..=300_u64,
        // Shards of whole tiles. The last shard may not be full.
        (1..=24_u64, 0..8_u64).prop_map(|(tiles, less)| tiles * 1024 - less),
        1..=20_000_u64,
    ];
    let n = prop_oneof![1..=40_u64, 1..=512_u64].prop_map(|vecs| vecs * 8);
    let k = prop_oneof![
        (1..=40_u64).prop_map(|vecs| vecs * 8),
        (1..=1024_u64).prop_map(|vecs| vecs * 8),
        select(&[64, 128, 512, 1024, 4096, 16_384][..]),
    ];
    (ops(), worlds(), (m, n, k), layouts())
        .prop_map(|(op, world, shape, layout)| config(op, world, shape, layout))
}

/// Generates configurations with sizes of any magnitude. Tensor maps cannot address some of them.
pub fn sizes_of_any_magnitude() -> impl Strategy<Value = KernelConfig> {
    let size = || (0..32_u32, any::<u64>()).prop_map(|(bits, random)| random >> (63 - bits));
    let vecs = || size().prop_map(|size| size.next_multiple_of(8));
    (ops(), worlds(), (size(), vecs(), vecs()), layouts())
        .prop_map(|(op, world, shape, layout)| config(op, world, shape, layout))
}

pub fn config(
    op: GemmOp,
    world: u32,
    (m, n, k): (u64, u64, u64),
    b_layout: BLayout,
) -> KernelConfig {
    let config = GemmConfig {
        m: Dim::Static(m),
        n: Dim::Static(n),
        k: Dim::Static(k),
        b_layout,
        // Half of all sizes.
        symmetric_result: op == GemmOp::GemmAr && (m + n / 8).is_multiple_of(2),
        symmetric_a: op == GemmOp::AgGemm && (m + n / 8).is_multiple_of(2),
        ..GemmConfig::new(op)
    };
    KernelConfig::new(world, config)
}

/// Returns the part of the configuration for a GEMM operator, which all of these configurations have.
pub fn gemm_config(config: &mut KernelConfig) -> &mut GemmConfig {
    config.problem.gemm_mut().expect("a GEMM")
}

/// Returns the GEMM part of a plan.
pub fn gemm(plan: &KernelPlan) -> &GemmPlan {
    plan.gemm().expect("a GEMM")
}

/// Generates operators. `ag_gemm` is as frequent as the two operators that reduce together.
fn ops() -> impl Strategy<Value = GemmOp> {
    select(
        &[
            GemmOp::AgGemm,
            GemmOp::AgGemm,
            GemmOp::GemmRs,
            GemmOp::GemmAr,
            GemmOp::Gemm,
        ][..],
    )
}

fn worlds() -> impl Strategy<Value = u32> {
    select(&[1, 2, 4, 8][..])
}

fn epilogues() -> impl Strategy<Value = Epilogue> {
    let some = (
        any::<bool>(),
        any::<bool>(),
        select(&Activation::ALL[..]),
        select(&[None, Some(Dtype::Fp32)][..]),
        any::<bool>(),
    )
        .prop_map(|(bias, residual, activation, output, swiglu)| Epilogue {
            bias,
            residual,
            activation,
            swiglu,
            output,
            ..Epilogue::default()
        });
    prop_oneof![1 => Just(Epilogue::default()), 1 => some]
}

/// The epilogue without the options that SwiGLU excludes, or without SwiGLU.
fn with_one_activation(mut epilogue: Epilogue, op: GemmOp) -> Epilogue {
    epilogue.swiglu &= !op.reduces();
    if epilogue.swiglu {
        epilogue.activation = Activation::None;
    }
    epilogue
}

fn layouts() -> impl Strategy<Value = BLayout> {
    select(&[BLayout::Kn, BLayout::Nk][..])
}

fn tuning(op: GemmOp) -> impl Strategy<Value = Tuning> {
    let mostly_none = |values: &'static [u32]| option::weighted(0.3, select(values));
    let core = (
        mostly_none(&[64, 128]),
        mostly_none(&[64, 128, 256]),
        mostly_none(&[2, 3, 4, 5, 6, 8, 12]),
        mostly_none(&[1, 2, 3, 8, 64]),
        mostly_none(&[0, 1, 7, 16, 1 << 20]),
        mostly_none(&[1, 2, 3, 4, 5, 8, 16]),
        option::weighted(0.1, any::<bool>()),
    );
    let exchange = (
        option::of(select(&Transfer::ALL[..])),
        mostly_none(&[0, 1, 4, 8, 16, 100]),
        mostly_none(&[1, 2, 4, 8]),
        mostly_none(&[128, 256, 384, 1024, 4096]),
    );
    let sum = (mostly_none(&[1, 2, 7, 32, 4096]), mostly_none(&[1, 2]));
    (core, exchange, sum).prop_map(move |(core, exchange, (round_tiles, shots))| {
        let (tile_m, tile_n, stages, group_m, pace_steps, split_k, cluster) = core;
        let (transfer, comm_ctas, k_slices, chunk_rows) = exchange;
        let tuning = Tuning {
            tile_m,
            tile_n,
            stages,
            group_m,
            pace_steps,
            split_k,
            cluster: cluster.filter(|_| !op.reduces()),
            ..Tuning::default()
        };
        if op.reduces() {
            return Tuning {
                round_tiles: round_tiles.filter(|_| shots != Some(1)),
                shots,
                ..tuning
            };
        }
        if !op.communicates() {
            return tuning;
        }
        Tuning {
            transfer,
            comm_ctas,
            k_slices,
            chunk_rows,
            ..tuning
        }
    })
}

/// Generates the default device, and devices with other numbers of SMs and other sizes of shared memory.
pub fn devices() -> impl Strategy<Value = Device> {
    let sm_count = prop_oneof![3 => Just(132), 1 => 1..=160_u32];
    let smem_bytes = prop_oneof![3 => Just(232_448), 1 => 100_000..=232_448_u32];
    (sm_count, smem_bytes).prop_map(|(sm_count, smem_bytes)| Device {
        sm_count,
        smem_bytes,
        ..Device::h200()
    })
}

/// Returns a plan with several rounds of tiles, tiles that CTAs share, and a shard that ends inside a tile.
pub fn gemm_rs_in_rounds() -> KernelPlan {
    let mut config = config(GemmOp::GemmRs, 2, (4000, 2176, 2048), BLayout::Nk);
    let tuning = &mut gemm_config(&mut config).tuning;
    (tuning.tile_m, tuning.tile_n) = (Some(128), Some(128));
    (tuning.shots, tuning.round_tiles) = (Some(2), Some(16));
    let spec = SizedSpec::validate(config).expect("valid");
    KernelPlan::new(&spec, &Device::h200()).expect("a plan")
}

/// Returns a plan whose only round has `split_k` CTAs for each tile.
pub fn gemm_with_shared_tiles(
    op: GemmOp,
    (tile_m, tile_n): (u32, u32),
    split_k: u32,
) -> KernelPlan {
    let mut config = config(op, 2, (40, 200, 2048), BLayout::Nk);
    let tuning = &mut gemm_config(&mut config).tuning;
    (tuning.tile_m, tuning.tile_n) = (Some(tile_m), Some(tile_n));
    (tuning.shots, tuning.split_k) = (op.reduces().then_some(2), Some(split_k));
    let spec = SizedSpec::validate(config).expect("valid");
    let plan = KernelPlan::new(&spec, &Device::h200()).expect("a plan");
    assert_eq!(gemm(&plan).order.tail_splits, split_k);
    plan
}

/// Generates plans from [`configs`] and [`devices`], or `None` if the tuning does not fit.
pub fn plans() -> impl Strategy<Value = Option<KernelPlan>> {
    (configs(), devices()).prop_map(|(config, device)| {
        let spec = SizedSpec::validate(config).ok()?;
        KernelPlan::new(&spec, &device).ok()
    })
}

/// Generates plans with rows at run time. A plan with buckets is replaced by the plan of one bucket.
pub fn plans_with_rows() -> impl Strategy<Value = Option<KernelPlan>> {
    (configs(), devices(), any::<Index>()).prop_map(|(mut config, device, bucket)| {
        let gemm = gemm_config(&mut config);
        let most = gemm.m.fixed()?;
        gemm.m = Dim::UpTo(most);
        let spec = SizedSpec::validate(config).ok()?;
        let plan = KernelPlan::new(&spec, &device).ok()?;
        let body = bucket.index(plan.bodies.len());
        Some(alone(&plan, &plan.bodies[body]))
    })
}

/// Returns the plan of a kernel with only this body.
fn alone(plan: &KernelPlan, body: &Body) -> KernelPlan {
    let mut config = plan.spec.config().clone();
    gemm_config(&mut config).m = body.gemm().expect("a GEMM").config.m;
    KernelPlan {
        id: body.id.clone(),
        spec: SizedSpec::validate(config).expect("valid"),
        device: plan.device.clone(),
        bodies: vec![body.clone()],
        tuned: None,
    }
}

/// Returns a plan for `nodes` nodes of `local_world` ranks, with rows at run time.
pub fn rows_of_nodes(op: GemmOp, (nodes, local_world): (u32, u32), most: u64) -> KernelPlan {
    let mut config = KernelConfig {
        nodes,
        ..config(op, nodes * local_world, (most, 1160, 520), BLayout::Nk)
    };
    gemm_config(&mut config).m = Dim::UpTo(most);
    let spec = SizedSpec::validate(config).expect("valid");
    let plan = KernelPlan::new(&spec, &Device::h200()).expect("a plan");
    alone(&plan, plan.body())
}

/// Returns a plan for `nodes` nodes of `local_world` ranks.
pub fn gemm_of_nodes(
    op: GemmOp,
    (nodes, local_world): (u32, u32),
    shape: (u64, u64, u64),
) -> KernelPlan {
    let config = KernelConfig {
        nodes,
        ..config(op, nodes * local_world, shape, BLayout::Nk)
    };
    let spec = SizedSpec::validate(config).expect("valid");
    KernelPlan::new(&spec, &Device::h200()).expect("a plan")
}
