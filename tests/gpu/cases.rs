//! The shapes and tunings that [`correctness`](crate::correctness) runs.

use crate::ranks::GemmProblem;
use mkernel::spec::BLayout::{self, Kn, Nk};
use mkernel::spec::{Activation, Dtype, Epilogue, GemmOp, GemmShape, Transfer, Tuning};

/// A problem, and the padding of its operands.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub problem: GemmProblem,
    /// The number of elements between the rows of A, B and C.
    pub pad: u64,
}

fn case(m: u64, n: u64, k: u64, layout: BLayout) -> Case {
    Case {
        problem: (GemmShape { m, n, k }, layout, Tuning::default()).into(),
        pad: 0,
    }
}

impl Case {
    fn of(mut self, op: GemmOp) -> Self {
        self.problem.op = op;
        self
    }

    fn tile(mut self, m: u32, n: u32) -> Self {
        (self.problem.tuning.tile_m, self.problem.tuning.tile_n) = (Some(m), Some(n));
        self
    }

    fn push(mut self, comm_ctas: u32, k_slices: u32) -> Self {
        self.problem.tuning.transfer = Some(Transfer::SmPush);
        (self.problem.tuning.comm_ctas, self.problem.tuning.k_slices) =
            (Some(comm_ctas), Some(k_slices));
        self
    }

    fn copied(mut self) -> Self {
        self.problem.tuning.transfer = Some(Transfer::CopyEngine);
        self
    }

    fn chunks(mut self, rows: u32) -> Self {
        self.problem.tuning.chunk_rows = Some(rows);
        self
    }

    fn stages(mut self, stages: u32) -> Self {
        self.problem.tuning.stages = Some(stages);
        self
    }

    fn group(mut self, rows: u32) -> Self {
        self.problem.tuning.group_m = Some(rows);
        self
    }

    fn rounds(mut self, tiles: u32) -> Self {
        self.problem.tuning.round_tiles = Some(tiles);
        self
    }

    fn paced(mut self, steps: u32) -> Self {
        self.problem.tuning.pace_steps = Some(steps);
        self
    }

    fn shots(mut self, shots: u32) -> Self {
        self.problem.tuning.shots = Some(shots);
        self
    }

    fn split(mut self, ctas: u32) -> Self {
        self.problem.tuning.split_k = Some(ctas);
        // By itself, the planner would use clusters for few rows.
        self.problem.tuning.cluster.get_or_insert(false);
        self
    }

    fn clustered(mut self, ctas: u32) -> Self {
        self.problem.tuning.cluster = Some(true);
        self.split(ctas)
    }

    fn finished(mut self, epilogue: Epilogue) -> Self {
        self.problem.epilogue = epilogue;
        self
    }

    fn strided(self) -> Self {
        self.padded(24)
    }

    fn padded(mut self, pad: u64) -> Self {
        self.pad = pad;
        self
    }
}

/// Returns all cases for `world` ranks.
pub fn cases(world: u32) -> Vec<Case> {
    let mut all = shapes();
    all.extend(tiles());
    if world > 1 {
        all.extend(transfers());
    }
    for op in [GemmOp::GemmRs, GemmOp::GemmAr, GemmOp::Gemm] {
        let smaller = shapes().into_iter().chain(tiles());
        all.extend(smaller.map(|case| case.of(op)));
    }
    if world > 1 {
        all.extend(reductions());
    }
    for op in GemmOp::ALL {
        // Whole rounds of tiles, and whole rounds that a partial round follows.
        all.push(case(4096, 4096, 1000, Kn).of(op).tile(128, 256).paced(4));
        all.push(case(4224, 2056, 520, Nk).of(op).tile(64, 128).paced(1));
    }
    for op in GemmOp::ALL {
        all.extend(splits(op, world));
        all.extend(epilogues(op, world));
        if !op.reduces() {
            all.extend(swiglu(op));
        }
    }
    all
}

/// Returns cases with tiles that several CTAs share: as many CTAs as a group has sub-tiles, fewer CTAs, and more CTAs.
fn splits(op: GemmOp, world: u32) -> Vec<Case> {
    let mut all = vec![
        case(16, 1032, 2056, Kn).of(op),
        case(1000, 264, 2056, Nk).of(op).tile(128, 256).split(3),
    ];
    for ctas in [2, 3, 4, 8] {
        all.push(case(17, 1032, 2056, Kn).of(op).tile(64, 128).split(ctas));
        let wide = case(77, 520, 1032, Nk).of(op).tile(64, 256).split(ctas);
        all.push(wide.strided());
        if !op.reduces() {
            let narrow = case(17, 1032, 2056, Kn).of(op).tile(64, 128);
            all.push(narrow.clustered(ctas));
            all.push(wide.strided().clustered(ctas));
        }
        if world > 1 && op.reduces() {
            all.extend([1, 2].map(|shots| wide.shots(shots)));
        }
    }
    all
}

/// Returns cases with every epilogue: with whole and partial tiles, and with tiles that several CTAs share.
fn epilogues(op: GemmOp, world: u32) -> Vec<Case> {
    let mut all = Vec::new();
    for (index, activation) in Activation::ALL.into_iter().enumerate() {
        for output in [None, Some(Dtype::Fp32)] {
            let epilogue = |bias, residual| Epilogue {
                bias,
                residual,
                activation,
                output,
                ..Epilogue::default()
            };
            let (n, layout) = [(1032, Kn), (1024, Nk)][index % 2];
            let finished = |m, epilogue| case(m, n, 520, layout).of(op).finished(epilogue);
            let both = epilogue(true, true);
            all.push(finished(1000, both).tile(128, 256).strided());
            all.push(finished(777, epilogue(true, false)).tile(64, 256));
            all.push(finished(2048, epilogue(false, true)).tile(128, 128));
            all.push(finished(9, both));
            if world > 1 && op.reduces() {
                all.push(finished(1531, both).tile(128, 256).shots(2).strided());
                all.push(finished(64, both).tile(64, 128).shots(1).strided());
            }
        }
    }
    all
}

/// Returns cases with SwiGLU: with each tile, shared tiles, and columns of C that end inside a tile.
fn swiglu(op: GemmOp) -> Vec<Case> {
    let epilogue = |bias, output| Epilogue {
        bias,
        residual: bias,
        swiglu: true,
        output,
        ..Epilogue::default()
    };
    let (plain, all) = (epilogue(false, None), epilogue(true, Some(Dtype::Fp32)));
    let of = |m, n, k, layout, epilogue| case(m, n, k, layout).of(op).finished(epilogue);
    vec![
        of(1000, 1032, 520, Kn, all).tile(128, 256).strided(),
        of(2048, 1024, 1032, Nk, plain).tile(128, 128),
        of(777, 520, 392, Nk, all).tile(64, 256).strided(),
        of(9, 264, 2056, Kn, all),
        of(17, 1032, 2056, Nk, plain).tile(64, 256).split(3),
        of(200, 520, 2056, Kn, all).tile(128, 256).split(2),
        of(17, 1032, 2056, Nk, all).tile(64, 256).clustered(4),
        of(4096, 2056, 1000, Kn, plain).tile(128, 256).paced(4),
    ]
}

/// Returns cases with every kind of reduction.
fn reductions() -> Vec<Case> {
    let mut all = Vec::new();
    for (m, n) in [(128, 256), (128, 128), (64, 256), (64, 128), (128, 64)] {
        for rounds in [1, 3, 1000] {
            let (rs, ar) = (GemmOp::GemmRs, GemmOp::GemmAr);
            all.push(case(1531, 584, 200, Kn).of(rs).tile(m, n).rounds(rounds));
            all.push(
                case(777, 584, 200, Nk)
                    .of(ar)
                    .tile(m, n)
                    .shots(2)
                    .rounds(rounds)
                    .strided(),
            );
        }
        if (m, n) != (128, 256) {
            let op = GemmOp::GemmRs;
            all.push(case(201, 584, 456, Nk).of(op).tile(m, n).shots(1));
            let op = GemmOp::GemmAr;
            all.push(case(200, 584, 456, Kn).of(op).tile(m, n).shots(1).strided());
        }
    }
    for m in [1, 2, 16, 64, 65, 256] {
        all.push(case(m, 1024, 1024, Nk).of(GemmOp::GemmRs));
        all.push(case(m, 1024, 1024, Nk).of(GemmOp::GemmRs).shots(1));
        all.push(case(m, 1024, 1024, Nk).of(GemmOp::GemmAr).shots(1));
        all.push(case(m, 1024, 1024, Kn).of(GemmOp::GemmAr).shots(2));
    }
    // The last round of tiles is shared by several CTAs, after whole rounds.
    for rounds in [8, 32, 1 << 20] {
        let op = GemmOp::GemmRs;
        all.push(
            case(4096, 1544, 1032, Nk)
                .of(op)
                .tile(128, 256)
                .rounds(rounds),
        );
        let op = GemmOp::GemmAr;
        all.push(
            case(4100, 1544, 1032, Kn)
                .of(op)
                .shots(2)
                .tile(128, 256)
                .rounds(rounds),
        );
    }
    all
}

/// Returns cases of `ag_gemm` with partial tiles in every dimension, down to one row and K = 8, and with ranks without
/// rows.
fn shapes() -> Vec<Case> {
    vec![
        case(1, 8, 8, Nk),
        case(1, 520, 200, Kn),
        case(5, 264, 72, Nk).strided(),
        case(9, 136, 1000, Kn),
        case(77, 1096, 136, Nk),
        case(100, 136, 1000, Kn).strided(),
        case(513, 264, 520, Nk),
        case(777, 72, 2056, Kn),
        case(1000, 1000, 1000, Nk).strided(),
        case(1000, 1000, 1000, Kn),
        case(1023, 512, 1000, Kn).strided(),
        case(1024, 512, 4096, Nk),
        case(2048, 8, 8, Kn),
        case(2048, 1096, 520, Kn).strided(),
        case(3000, 328, 968, Nk),
        case(4096, 264, 4104, Kn),
        case(4096, 1024, 1024, Nk).strided(),
        case(4099, 1544, 264, Nk),
        case(4096, 2056, 520, Kn).group(1),
    ]
}

/// Returns cases with every tile, for shards of whole tiles and for other shards.
fn tiles() -> Vec<Case> {
    let mut all = Vec::new();
    for (m, n) in [(128, 256), (128, 128), (64, 256), (64, 128), (128, 64)] {
        all.push(case(777, 328, 392, Kn).tile(m, n).strided());
        all.push(case(777, 328, 392, Nk).tile(m, n));
        all.push(case(2048, 584, 456, Kn).tile(m, n));
        all.push(case(2048, 584, 456, Nk).tile(m, n).stages(2));
    }
    all
}

/// Returns cases with every way of transfer between ranks.
fn transfers() -> Vec<Case> {
    vec![
        case(1000, 520, 1032, Kn).push(0, 1),
        case(1000, 520, 1032, Nk).push(4, 2),
        case(1000, 520, 1032, Kn).push(8, 4).strided(),
        case(640, 264, 4104, Nk).push(16, 8),
        case(640, 264, 4104, Kn).push(0, 8).strided(),
        case(2048, 2048, 512, Nk).push(8, 2),
        case(4096, 512, 1032, Nk).push(0, 4).strided(),
        case(4096, 512, 1032, Kn).push(16, 1),
        case(4096, 1024, 1032, Kn).push(4, 4).strided(),
        case(4096, 520, 1032, Nk).push(8, 1).chunks(256),
        case(8192, 264, 2056, Kn).push(0, 1),
        case(512, 136, 72, Kn).copied(),
        case(1024, 1096, 4104, Nk).copied(),
        case(2048, 512, 512, Kn).copied(),
        case(4096, 1024, 1032, Nk).copied().strided(),
        case(8192, 264, 520, Kn).copied().chunks(256),
        case(8192, 1024, 512, Nk).copied().tile(128, 256),
        case(8192, 520, 1032, Kn).copied().strided(),
        // The driver might copy narrow or unaligned pitches by a kernel, which could not start beside a grid on all SMs.
        case(1024, 136, 520, Nk).copied().padded(8),
        case(2048, 520, 512, Kn).copied().padded(40),
        case(4096, 264, 1032, Nk).copied().padded(1032),
        case(8192, 136, 72, Nk).copied().padded(8),
    ]
}

/// Tests without a GPU, which check that all cases are possible and that the helper kernels compile.
#[cfg(test)]
mod tests {
    use super::*;
    use mkernel::spec::spec::WORLDS;
    use mkernel::{KernelPlan, spec::Device};
    use mkernel_compile::{CudaSource, Nvrtc};
    use mkernel_spec::{Arch, Backend};

    #[test]
    fn every_case_has_a_plan() {
        for world in WORLDS {
            for case in cases(world) {
                let plan = KernelPlan::new(&case.problem.spec(world), &Device::h200());
                plan.unwrap_or_else(|error| panic!("world {world}, {case:?}: {error}"));
            }
        }
        // The project requires at least 60 cases on a host with four GPUs.
        let count: usize = [1, 2, 4].map(|world| cases(world).len()).iter().sum();
        assert!(count >= 60, "{count} cases");
    }

    #[test]
    fn the_helper_kernels_compile() {
        let nvrtc =
            Nvrtc::load().unwrap_or_else(|error| panic!("this test needs libnvrtc: {error}"));
        let source = CudaSource {
            id: "lab".into(),
            arch: Arch::Sm90a,
            backend: Backend::Nvrtc,
            text: mkernel_testing::lab::KERNELS.into(),
        };
        nvrtc
            .compile(&source)
            .unwrap_or_else(|error| panic!("{error}"));
    }
}
