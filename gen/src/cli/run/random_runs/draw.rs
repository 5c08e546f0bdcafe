//! Random configurations of every operator.

use super::super::inputs::Random;
use mkernel::spec::{
    Activation, AttentionConfig, AttentionOp, AttentionTuning, BLayout, CollectiveConfig,
    CollectiveOp, CombineConfig, CombineOp, Device, Dim, DispatchConfig, DispatchOp, Dtype,
    Epilogue, Eps, GemmConfig, GemmOp, Layout, Norm, Placement, Problem, Protocol, Router, Scale,
    Scales, Scores, SizedSpec, SumEpilogue, Tuning,
};
use mkernel::{KernelConfig, KernelPlan};

/// A kernel, and the simulated GPUs that run it.
pub struct Drawn {
    pub config: KernelConfig,
    pub plan: KernelPlan,
    pub sms: u32,
    pub skew: u32,
}

/// The number of operators. Seeds take them in turn.
pub const OPS: u64 = 14;

/// Draws a configuration that has a plan.
pub fn draw(seed: u64) -> Drawn {
    let mut random = Draws(Random(seed), seed / OPS);
    for _ in 0..100 {
        let (nodes, world) = topology(&mut random);
        let config = KernelConfig {
            nodes,
            ..KernelConfig::new(world, problem(&mut random, seed % OPS, (nodes, world)))
        };
        let (sms, skew) = (random.between(3, 8) as u32, random.between(0, 100) as u32);
        let spec = SizedSpec::validate(config.clone());
        let plan = spec.and_then(|spec| KernelPlan::new(&spec, &Device::simulated(sms)));
        if let Ok(plan) = plan {
            return Drawn {
                config,
                plan,
                sms,
                skew,
            };
        }
    }
    panic!("seed {seed}: 100 configurations without a plan");
}

/// A generator with the draws that configurations need, and the number of earlier seeds of the same operator.
struct Draws(Random, u64);

impl Draws {
    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.0.below((most - least + 1) as usize) as u64
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.0.below(values.len())]
    }

    /// True in one of `times` draws.
    fn once_in(&mut self, times: u64) -> bool {
        self.between(1, times) == 1
    }

    /// One of the values in one of three draws, else none.
    fn perhaps<T: Copy>(&mut self, values: &[T]) -> Option<T> {
        self.once_in(3).then(|| self.one_of(values))
    }

    /// The types of elements take turns from seed to seed.
    fn dtype(&self, types: &[Dtype]) -> Dtype {
        types[self.1 as usize % types.len()]
    }

    /// A number of rows, mostly one that no world divides, given in the declaration or by each call.
    fn rows(&mut self, most: u64) -> Dim {
        let most = match self.between(0, 2) {
            0 => self.between(1, 9),
            _ => self.between(1, most),
        };
        match self.once_in(2) {
            true => Dim::UpTo(most),
            false => Dim::Static(most),
        }
    }

    /// Scales of elements of this type. They take turns from seed to seed. Operators have different scales, so that few seeds have
    /// every kind.
    fn scales(&self, dtype: Dtype, op: usize) -> Scales {
        match dtype {
            Dtype::E4m3 => Scales::ALL[(self.1 as usize + op) % Scales::ALL.len()],
            _ => Scales::None,
        }
    }

    /// A layout of the second factor that elements of this type may have.
    fn b_layout(&mut self, dtype: Dtype) -> BLayout {
        match dtype {
            Dtype::E4m3 => BLayout::Nk,
            _ => self.one_of(&[BLayout::Kn, BLayout::Nk]),
        }
    }

    /// A number of columns of factors with elements of this type.
    fn depth(&mut self, most: u64, dtype: Dtype) -> Dim {
        match (self.cols(most), dtype) {
            (Dim::Static(k), Dtype::E4m3) => Dim::Static(k.next_multiple_of(16)),
            (k, _) => k,
        }
    }

    /// A number of columns.
    fn cols(&mut self, most: u64) -> Dim {
        Dim::Static(8 * self.between(1, most / 8))
    }
}

/// Nodes and ranks.
fn topology(random: &mut Draws) -> (u32, u32) {
    match random.between(0, 3) {
        0 => random.one_of(&[(2, 2), (2, 4), (3, 3), (2, 6), (4, 8), (5, 5), (7, 7)]),
        _ => (1, random.one_of(&[1, 2, 4, 4, 8])),
    }
}

fn problem(random: &mut Draws, op: u64, (nodes, world): (u32, u32)) -> Problem {
    match op {
        0 => gemm(random, GemmOp::AgGemm).into(),
        1 => gemm(random, GemmOp::GemmRs).into(),
        2 => gemm(random, GemmOp::GemmAr).into(),
        3 => collective(random, CollectiveOp::AllReduce, world).into(),
        4 => collective(random, CollectiveOp::AllGather, world).into(),
        5 => collective(random, CollectiveOp::ReduceScatter, world).into(),
        6 => attention(random, nodes).into(),
        7 => dispatch(random, world).into(),
        8 => combine(random, world).into(),
        9 => gemm(random, GemmOp::Gemm).into(),
        10 => collective(random, CollectiveOp::Broadcast, world).into(),
        11 => moe_layer(random, world).into(),
        12 => gemm_combine(random, world).into(),
        _ => collective(random, CollectiveOp::AllToAll, world).into(),
    }
}

fn gemm(random: &mut Draws, op: GemmOp) -> GemmConfig {
    let normalises = op.reduces() && random.once_in(4);
    let with_epilogue = random.once_in(2);
    let swiglu = !op.reduces() && random.once_in(3);
    let quantises_sums = !op.reduces() && random.once_in(4);
    let epilogue = Epilogue {
        swiglu,
        bias: with_epilogue && random.once_in(2),
        residual: with_epilogue && random.once_in(2),
        activation: match with_epilogue && !swiglu {
            true => random.one_of(&Activation::ALL),
            false => Activation::None,
        },
        output: match with_epilogue && !normalises && !quantises_sums {
            true => random.one_of(&[None, Some(Dtype::Fp32)]),
            false => None,
        },
        norm: if normalises { Norm::Rms } else { Norm::None },
        result_scales: match normalises {
            true => random.one_of(&Scales::OF_ROWS),
            false if quantises_sums => Scales::Block,
            false => Scales::None,
        },
        ..Epilogue::default()
    };
    let dtype = random.dtype(&Dtype::GEMM_FACTORS);
    let scales = random.scales(dtype, op as usize);
    GemmConfig {
        m: random.rows(150),
        n: match epilogue.quantises() {
            true => random.depth(300, Dtype::E4m3),
            false => random.cols(300),
        },
        k: random.depth(200, dtype),
        b_layout: random.b_layout(dtype),
        scales,
        symmetric_result: op == GemmOp::GemmAr && random.once_in(3),
        symmetric_a: op == GemmOp::AgGemm
            && random.once_in(3)
            && matches!(scales, Scales::None | Scales::Tensor),
        epilogue,
        tuning: Tuning {
            tile_m: random.perhaps(&[64, 128]),
            tile_n: random.perhaps(match (swiglu, quantises_sums) {
                (true, _) => &[256],
                (false, true) => &[128, 256],
                (false, false) => &[64, 128, 256],
            }),
            shots: random.perhaps(&[1, 2]).filter(|_| op.reduces()),
            split_k: random.perhaps(&[1, 2, 3]),
            ..Tuning::default()
        },
        dtype,
        ..GemmConfig::new(op)
    }
}

fn collective(random: &mut Draws, op: CollectiveOp, world: u32) -> CollectiveConfig {
    let is_rooted = op == CollectiveOp::Broadcast;
    let normalises = op == CollectiveOp::AllReduce && random.once_in(2);
    let epilogue = SumEpilogue {
        bias: normalises && random.once_in(2),
        residual: normalises && random.once_in(2),
        norm: if normalises { Norm::Rms } else { Norm::None },
        eps: random.one_of(&[Eps::default(), Eps::new(1e-2)]),
        result_scales: random.one_of(&Scales::OF_ROWS),
    };
    let dtype = match op.reduces() {
        true => random.dtype(&Dtype::RESULTS),
        false => random.dtype(&Dtype::FLOATS),
    };
    let scales = match random.scales(dtype, op as usize) {
        Scales::Tensor => Scales::None,
        scales => scales,
    };
    let n = match normalises && epilogue.quantises() {
        true => random.depth(600, Dtype::E4m3),
        false => random.depth(600, dtype),
    };
    CollectiveConfig {
        m: random.rows(60),
        n,
        dtype,
        scales,
        protocol: random.perhaps(&[Protocol::Ll, Protocol::Simple]),
        shots: random
            .perhaps(&[1, 2])
            .filter(|_| op == CollectiveOp::AllReduce),
        symmetric_result: op.may_store_to_results() && scales == Scales::None && random.once_in(3),
        root: is_rooted.then(|| random.between(0, u64::from(world) - 1) as u32),
        epilogue: match normalises {
            true => epilogue,
            false => SumEpilogue::default(),
        },
        ..CollectiveConfig::new(op)
    }
}

fn attention(random: &mut Draws, nodes: u32) -> AttentionConfig {
    let (packed, is_cached) = match nodes {
        1 => [(false, false), (false, true), (true, false)][random.1 as usize % 3],
        _ => (false, random.once_in(2)),
    };
    let cached = is_cached.then(|| random.between(1, 300) as u32);
    let (kv_heads, group) = (random.between(1, 2), random.between(1, 2));
    AttentionConfig {
        batch: Dim::Static(random.between(1, 3)),
        seq: match (random.rows(150), packed) {
            (Dim::UpTo(most), true) => Dim::Static(most),
            (Dim::Static(most), false) if cached.is_some() => Dim::UpTo(most),
            (rows, _) => rows,
        },
        cached,
        heads: Dim::Static(kv_heads * group),
        kv_heads: Dim::Static(kv_heads),
        head_dim: Dim::Static(random.one_of(&[64, 128])),
        layout: random.one_of(&[Layout::Bshd, Layout::Bhsd]),
        causal: random.once_in(2),
        placement: random.one_of(&Placement::ALL),
        packed,
        scale: random.one_of(&[Scale::default(), Scale::new(0.3)]),
        lse: random.1 % 3 != 1,
        tuning: AttentionTuning {
            kv_slots: random.perhaps(&[1, 2]),
            ..AttentionTuning::default()
        },
        dtype: random.dtype(&Dtype::FACTORS),
        ..AttentionConfig::new(AttentionOp::RingAttention)
    }
}

/// The sizes that both halves of a mixture of experts have: experts, top-k, tokens and the most rows.
fn routes(random: &mut Draws, world: u32) -> (Dim, Dim, Dim, Option<u32>) {
    let experts = u64::from(world) * random.between(1, 3);
    let top_k = random.between(1, experts.min(4));
    let max_tokens = random.between(1, 30);
    let max_rows = random.once_in(3).then(|| random.between(1, 40) as u32);
    let sizes = [experts, top_k, max_tokens].map(Dim::Static);
    (sizes[0], sizes[1], sizes[2], max_rows)
}

fn dispatch(random: &mut Draws, world: u32) -> DispatchConfig {
    let (experts, top_k, max_tokens, max_rows) = routes(random, world);
    let dtype = random.dtype(&Dtype::GEMM_FACTORS);
    let quantises = random.once_in(3);
    DispatchConfig {
        experts,
        top_k,
        max_tokens,
        max_rows,
        hidden: random.depth(200, dtype),
        intermediate: match quantises {
            true => random.depth(200, Dtype::E4m3),
            false => random.cols(200),
        },
        b_layout: random.b_layout(dtype),
        swiglu: random.once_in(2),
        result_scales: if quantises {
            Scales::Block
        } else {
            Scales::None
        },
        tile_m: random.perhaps(if quantises { &[128] } else { &[64, 128] }),
        split_k: random.perhaps(&[1, 2]),
        scales: random.scales(dtype, 1),
        dtype,
        router: router(random, experts, top_k),
        ..DispatchConfig::new(DispatchOp::DispatchGemm)
    }
}

/// Kernels that choose experts take turns with kernels to which the caller passes experts.
fn router(random: &mut Draws, experts: Dim, top_k: Dim) -> Router {
    let scores = Scores::ALL[random.1 as usize % Scores::ALL.len()];
    let (Dim::Static(experts), Dim::Static(top_k)) = (experts, top_k) else {
        return Router::default();
    };
    if scores == Scores::Given {
        return Router::default();
    }
    let divisors: Vec<u64> = (1..=experts)
        .filter(|of| experts.is_multiple_of(*of))
        .collect();
    let groups = random.perhaps(&divisors);
    let least = groups.map(|groups| top_k.div_ceil(experts / groups));
    Router {
        scores,
        logits: random.perhaps(&[Dtype::Fp32]),
        score_bias: random.once_in(2),
        groups: groups.map(|groups| groups as u32),
        top_groups: groups
            .zip(least)
            .map(|(most, least)| random.between(least, most) as u32),
        renormalise: random.once_in(2),
        score_scale: random.perhaps(&[Scale::new(2.5)]),
    }
}

fn moe_layer(random: &mut Draws, world: u32) -> DispatchConfig {
    let dtype = random.dtype(&Dtype::GEMM_FACTORS);
    let layer = DispatchConfig {
        op: DispatchOp::MoeLayer,
        dtype,
        b_layout: random.b_layout(dtype),
        scales: Scales::None,
        swiglu: true,
        split_k: None,
        ..dispatch(random, world)
    };
    match dtype {
        Dtype::E4m3 => DispatchConfig {
            scales: Scales::Block,
            intermediate: Dim::Static([128, 256][random.once_in(2) as usize]),
            tile_m: None,
            ..layer
        },
        _ => layer,
    }
}

fn gemm_combine(random: &mut Draws, world: u32) -> DispatchConfig {
    let (experts, top_k, max_tokens, max_rows) = routes(random, world);
    let dtype = random.dtype(&Dtype::GEMM_FACTORS);
    DispatchConfig {
        experts,
        top_k,
        max_tokens,
        max_rows,
        hidden: random.cols(300),
        intermediate: random.depth(200, dtype),
        b_layout: random.b_layout(dtype),
        tile_m: random.perhaps(&[64, 128]),
        scales: random.scales(dtype, 1),
        dtype,
        ..DispatchConfig::new(DispatchOp::GemmCombine)
    }
}

fn combine(random: &mut Draws, world: u32) -> CombineConfig {
    let (experts, top_k, max_tokens, max_rows) = routes(random, world);
    CombineConfig {
        experts,
        top_k,
        max_tokens,
        max_rows,
        hidden: random.cols(400),
        low_latency_tokens: random.perhaps(&[0, 4]),
        dtype: random.dtype(&Dtype::FACTORS),
        ..CombineConfig::new(CombineOp::Combine)
    }
}
