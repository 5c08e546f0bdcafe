//! The sizes of tensors of rivals, and notes about rivals that are not measured.

use super::*;
use mkernel::KernelConfig;
use mkernel::spec::{
    CollectiveConfig, Device, Dim, Epilogue, GemmConfig, SizedSpec, config::Problem,
};

fn planned(world: u32, nodes: u32, problem: impl Into<Problem>) -> KernelPlan {
    let config = KernelConfig {
        nodes,
        ..KernelConfig::new(world, problem)
    };
    let spec = SizedSpec::validate(config).expect("valid");
    KernelPlan::new(&spec, &Device::default()).expect("a plan")
}

fn gemm(op: GemmOp, m: u64) -> GemmConfig {
    GemmConfig {
        m: Dim::Static(m),
        n: Dim::Static(1024),
        k: Dim::Static(512),
        b_layout: BLayout::Nk,
        ..GemmConfig::new(op)
    }
}

fn names(rivals: &[Rival]) -> Vec<&str> {
    rivals.iter().map(|rival| rival.name.as_str()).collect()
}

/// Whether each tensor that a rival reads or writes exists and is large enough.
fn check_memory(plan: &KernelPlan, rival: &Rival) {
    let operand_bytes = |wanted| {
        let mut specs = plan.operands().iter();
        let spec = specs
            .find(|spec| spec.operand == wanted)
            .expect("an operand");
        spec.rows.on(0) * spec.cols * spec.dtype.bytes()
    };
    let needs = |place: Place, bytes: u64| {
        let has = match place {
            Place::Own(index) => rival.own[index].bytes,
            Place::Operand(operand) => operand_bytes(operand),
        };
        assert!(
            has >= bytes,
            "{rival:?}: {place:?} has {has} of {bytes} bytes"
        );
    };
    let world = u64::from(plan.spec.world());
    for step in &rival.steps {
        match step {
            Step::Product(of) => {
                let GemmShape { m, n, k } = of.shape;
                needs(of.a, m * k * of.factors.bytes());
                needs(Place::Operand(Operand::B), n * k * of.factors.bytes());
                needs(of.c, m * n * of.result.bytes());
            }
            Step::Collective(of) => {
                let bytes = of.elems * of.dtype.bytes();
                let (from, to) = match of.op {
                    CollectiveOp::AllReduce | CollectiveOp::Broadcast => (1, 1),
                    CollectiveOp::AllGather => (1, world),
                    CollectiveOp::ReduceScatter => (world, 1),
                    CollectiveOp::AllToAll => (world, world),
                };
                needs(of.from, from * bytes);
                needs(of.to, to * bytes);
            }
        }
    }
}

#[test]
fn tensors_of_rivals_are_large_enough() {
    for world in [1, 2, 4] {
        for op in GemmOp::ALL {
            if op == GemmOp::Gemm && world > 1 {
                continue;
            }
            let plan = planned(world, 1, gemm(op, 256));
            let (rivals, notes) = of(&plan);
            assert_eq!(notes.len(), 1, "{op:?}: {notes:?}");
            rivals.iter().for_each(|rival| check_memory(&plan, rival));
        }
        for op in CollectiveOp::ALL {
            let config = CollectiveConfig {
                m: Dim::Static(64),
                n: Dim::Static(128),
                ..CollectiveConfig::new(op)
            };
            let plan = planned(world, 1, config);
            let (rivals, _) = of(&plan);
            assert_eq!(names(&rivals), ["NCCL"]);
            check_memory(&plan, &rivals[0]);
        }
    }
}

#[test]
fn a_collective_follows_or_precedes_the_product() {
    let of_op = |op, m| of(&planned(4, 1, gemm(op, m)));
    let (rivals, _) = of_op(GemmOp::AgGemm, 256);
    assert_eq!(names(&rivals), ["NCCL, then cuBLAS", "cuBLAS alone"]);
    assert_eq!(rivals[1].own[1].filled_with, Some(Operand::A));
    let (rivals, _) = of_op(GemmOp::GemmRs, 256);
    assert_eq!(names(&rivals), ["cuBLAS, then NCCL", "cuBLAS alone"]);
    let Step::Collective(scatter) = rivals[0].steps[1] else {
        panic!("{rivals:?}");
    };
    assert_eq!(
        (scatter.op, scatter.elems),
        (CollectiveOp::ReduceScatter, 64 * 1024)
    );
    let (rivals, _) = of(&planned(1, 1, gemm(GemmOp::Gemm, 256)));
    assert_eq!(names(&rivals), ["cuBLAS"]);
}

#[test]
fn rivals_that_cannot_be_measured_are_named() {
    let (rivals, notes) = of(&planned(4, 1, gemm(GemmOp::GemmRs, 30)));
    assert_eq!(names(&rivals), ["cuBLAS alone"]);
    assert!(
        notes[1].contains("30 rows are not a multiple of 4 ranks"),
        "{notes:?}"
    );
    let (rivals, _) = of(&planned(4, 1, gemm(GemmOp::GemmAr, 30)));
    assert_eq!(names(&rivals), ["cuBLAS, then NCCL", "cuBLAS alone"]);
    let (rivals, notes) = of(&planned(4, 2, gemm(GemmOp::GemmAr, 256)));
    assert_eq!(names(&rivals), ["cuBLAS alone"]);
    assert!(notes[1].contains("between 2 nodes"), "{notes:?}");
    let narrow = GemmConfig {
        dtype: Dtype::E4m3,
        ..gemm(GemmOp::Gemm, 256)
    };
    let (rivals, notes) = of(&planned(1, 1, narrow));
    assert!(rivals.is_empty() && notes[1].contains("e4m3"), "{notes:?}");
    let scaled = |op| GemmConfig {
        dtype: Dtype::E4m3,
        scales: Scales::Row,
        ..gemm(op, 256)
    };
    let (rivals, _) = of(&planned(1, 1, scaled(GemmOp::Gemm)));
    assert_eq!(
        names(&rivals),
        ["cuBLASLt", "cuBLASLt with fast accumulation"]
    );
    let plan = planned(4, 1, scaled(GemmOp::GemmAr));
    let (rivals, _) = of(&plan);
    assert_eq!(names(&rivals)[0], "cuBLASLt, then NCCL");
    assert_eq!(rivals.len(), 4);
    rivals.iter().for_each(|rival| check_memory(&plan, rival));
    let (rivals, notes) = of(&planned(4, 1, scaled(GemmOp::AgGemm)));
    assert!(
        rivals.is_empty() && notes[1].contains("gemm_rs"),
        "{notes:?}"
    );
    let wide = GemmConfig {
        epilogue: Epilogue {
            swiglu: true,
            ..Epilogue::default()
        },
        ..gemm(GemmOp::Gemm, 256)
    };
    let (rivals, notes) = of(&planned(1, 1, wide));
    let Step::Product(product) = rivals[0].steps[0] else {
        panic!("{rivals:?}");
    };
    assert_eq!(product.shape.n, 2048, "gate and up");
    assert!(notes[1].contains("without the epilogue"), "{notes:?}");
}
