//! The limits of a collective.

use super::config::{CollectiveConfig, CollectiveOp, MAX_LL_KIB, Protocol};
use crate::config::{Dim, Dtype, Eps, Field};
use crate::diagnostic::Diagnostics;
use crate::limits::{DIM_STEP, MAX_DIM};
use crate::ops::gemm::{Scales, narrow};
use crate::options::OperatorConfig;

/// The most bytes of a tensor that packets carry.
pub const MAX_LL_BYTES: u64 = (MAX_LL_KIB as u64) << 10;

/// The largest size of a tensor. Kernels number its vectors of 16 bytes in 31 bits.
const MAX_BYTES: u64 = 1 << 35;

/// Records every mistake.
pub(crate) fn check(config: &CollectiveConfig, world: u32, nodes: u32, found: &mut Diagnostics) {
    for (field, dim) in config.dims() {
        let Some(size) = dim.fixed() else { continue };
        found.require(
            (1..=MAX_DIM).contains(&size),
            field,
            || format!("{size} is not in 1..={MAX_DIM}"),
            "use a size in that range",
        );
    }
    let step = config.dtype.stride_step().max(DIM_STEP);
    if let Some(n) = config.n.fixed() {
        found.require(
            n.is_multiple_of(step),
            Field::N,
            || format!("{n} is not a multiple of {step} (rows are read in vectors of 16 bytes)"),
            "pad it, or pass the tensor in another shape: an all_reduce may be of one row",
        );
    }
    config.check_limits(found);
    check_narrow(config, found);
    let shape = config.shape().filter(|shape| shape.n <= MAX_DIM);
    let bytes = shape.map(|shape| shape.m.saturating_mul(config.sent_row_bytes(shape.n)));
    if let Some(bytes) = bytes {
        found.require(
            bytes <= MAX_BYTES,
            Field::M,
            || format!("the tensor has {bytes} bytes, more than {MAX_BYTES}"),
            "use several calls",
        );
    }
    found.require(
        !config.symmetric_result || config.op.may_store_to_results(),
        Field::SYMMETRIC_RESULT,
        || {
            format!(
                "ranks of {} do not store to each other's results",
                config.op
            )
        },
        "remove it",
    );
    found.require(
        config.buckets.is_none() || !matches!(config.m, Dim::Static(_)),
        Field::BUCKETS,
        || "a kernel for one number of rows has one plan".to_owned(),
        "write m = \"dynamic\", or remove it",
    );
    check_root(config, world, found);
    check_epilogue(config, found);
    check_protocol(config, nodes, bytes, found);
}

/// Checks elements of one byte, and their scales.
fn check_narrow(config: &CollectiveConfig, found: &mut Diagnostics) {
    let (op, dtype) = (config.op, config.dtype);
    narrow::check_scales(found, dtype, config.scales);
    found.require(
        !op.reduces() || dtype != Dtype::E4m3,
        Field::DTYPE,
        || {
            format!(
                "{op} adds elements, and each sum rounded to {dtype} would be wrong by up to 6 %"
            )
        },
        "use \"bf16\"; with a norm, all_reduce makes rows of e4m3 if result_scales is given",
    );
    found.require(
        !config.symmetric_result || config.scales == Scales::None,
        Field::SYMMETRIC_RESULT,
        || "ranks of a node compare the places of Y alone, so they cannot store to each other's y_scales".to_owned(),
        "remove it, or the scales",
    );
}

fn check_root(config: &CollectiveConfig, world: u32, found: &mut Diagnostics) {
    let Some(root) = config.root else { return };
    found.require(
        config.op == CollectiveOp::Broadcast,
        Field::ROOT,
        || format!("all ranks of {} give a part of the result", config.op),
        "remove it",
    );
    found.require(
        world <= 1 || root < world,
        Field::ROOT,
        || format!("there is no rank {root} among {world} ranks"),
        "use the number of a rank, from 0 on",
    );
}

fn check_epilogue(config: &CollectiveConfig, found: &mut Diagnostics) {
    let (op, epilogue) = (config.op, config.epilogue);
    if epilogue.normalises() {
        found.require(
            op == CollectiveOp::AllReduce,
            Field::NORM,
            || format!("the rows of {op} are not normalised: only all_reduce has whole sums on every rank"),
            "remove it, or use all_reduce",
        );
        found.require(
            !config.symmetric_result,
            Field::SYMMETRIC_RESULT,
            || "rows are normalised before they become the result, so no rank stores to another rank's result".to_owned(),
            "remove it, or the norm",
        );
        epilogue.eps.check(found);
        epilogue.check_limits(found);
        if epilogue.quantises() {
            narrow::check_result_cols(found, config.n.fixed(), DIM_STEP);
        }
        return;
    }
    let given = [
        (Field::BIAS, epilogue.bias),
        (Field::RESIDUAL, epilogue.residual),
        (Field::EPS, epilogue.eps != Eps::default()),
        (Field::RESULT_SCALES, epilogue.quantises()),
    ];
    for (field, given) in given {
        found.require(
            !given,
            field,
            || "a collective has it only with a norm".to_owned(),
            "remove it, or add norm = \"rms\"",
        );
    }
}

fn check_protocol(
    config: &CollectiveConfig,
    nodes: u32,
    bytes: Option<u64>,
    found: &mut Diagnostics,
) {
    found.require(
        config.packet_kib.is_none() || config.protocol.is_none() && config.shots.is_none(),
        Field::PACKET_KIB,
        || "with a given protocol or number of shots there is no choice to limit".to_owned(),
        "remove it, or protocol and shots",
    );
    if config.protocol == Some(Protocol::Ll) {
        found.require(
            nodes == 1,
            Field::PROTOCOL,
            || "packets travel over NVLink alone".to_owned(),
            "remove it, or use one node",
        );
        found.require(
            bytes.is_none_or(|bytes| bytes <= MAX_LL_BYTES),
            Field::PROTOCOL,
            || {
                let bytes = bytes.unwrap_or(0);
                format!("packets are for tensors of at most {MAX_LL_BYTES} bytes, not of {bytes}")
            },
            "use \"simple\"",
        );
    }
    found.require(
        config.shots.is_none()
            || config.op == CollectiveOp::AllReduce
                && config.protocol != Some(Protocol::Simple)
                && nodes == 1,
        Field::SHOTS,
        || "only all_reduce by packets, on one node, has a choice of shots".to_owned(),
        "remove it",
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{KernelConfig, Norm, SumEpilogue};
    use crate::spec::KernelSpec;

    fn mistakes(world: u32, nodes: u32, config: CollectiveConfig) -> Vec<&'static str> {
        let kernel = KernelConfig {
            nodes,
            ..KernelConfig::new(world, config)
        };
        let found = KernelSpec::validate(kernel).expect_err("mistakes");
        found.iter().map(|v| v.field.name()).collect()
    }

    #[test]
    fn every_mistake_is_said_at_once() {
        let config = CollectiveConfig {
            m: Dim::Static(0),
            n: Dim::Static(12),
            dtype: Dtype::Int32,
            shots: Some(3),
            ..CollectiveConfig::new(CollectiveOp::AllGather)
        };
        assert_eq!(
            mistakes(2, 1, config),
            ["m", "n", "dtype", "shots", "shots"]
        );
        let packets = CollectiveConfig {
            protocol: Some(Protocol::Ll),
            ..CollectiveConfig::new(CollectiveOp::AllReduce)
        };
        assert_eq!(mistakes(4, 2, packets), ["protocol"]);
        let large = CollectiveConfig {
            m: Dim::Static(4096),
            n: Dim::Static(4096),
            ..packets
        };
        assert_eq!(mistakes(2, 1, large), ["protocol"]);
        let scattered = CollectiveConfig {
            symmetric_result: true,
            ..CollectiveConfig::new(CollectiveOp::ReduceScatter)
        };
        assert_eq!(mistakes(2, 1, scattered), ["symmetric_result"]);
        let rooted = |root, op| CollectiveConfig {
            root: Some(root),
            symmetric_result: true,
            ..CollectiveConfig::new(op)
        };
        let broadcast = rooted(2, CollectiveOp::Broadcast);
        assert_eq!(mistakes(2, 1, broadcast), ["symmetric_result", "root"]);
        let gathered = rooted(0, CollectiveOp::AllGather);
        assert_eq!(mistakes(2, 1, gathered), ["root"]);
        let one_size = CollectiveConfig {
            m: Dim::Static(16),
            buckets: Some(2),
            ..CollectiveConfig::new(CollectiveOp::AllReduce)
        };
        assert_eq!(mistakes(2, 1, one_size), ["buckets"]);
    }

    #[test]
    fn scales_of_a_result_need_a_norm_and_rows_of_whole_vectors() {
        let of = |norm, result_scales| CollectiveConfig {
            n: Dim::Static(1032),
            epilogue: SumEpilogue {
                norm,
                result_scales,
                ..SumEpilogue::default()
            },
            ..CollectiveConfig::new(CollectiveOp::AllReduce)
        };
        let alone = of(Norm::None, Scales::Block);
        assert_eq!(mistakes(2, 1, alone), ["result_scales"]);
        let narrow = of(Norm::Rms, Scales::Row);
        assert_eq!(mistakes(2, 1, narrow), ["n"]);
        let whole = of(Norm::Rms, Scales::Tensor);
        assert_eq!(mistakes(2, 1, whole), ["result_scales", "n"]);
    }

    #[test]
    fn elements_of_one_byte_travel_in_whole_vectors_and_are_not_added() {
        let of = |op, n, scales| CollectiveConfig {
            n: Dim::Static(n),
            dtype: Dtype::E4m3,
            scales,
            symmetric_result: op == CollectiveOp::AllGather,
            ..CollectiveConfig::new(op)
        };
        let gathered = of(CollectiveOp::AllGather, 1032, Scales::Row);
        assert_eq!(mistakes(2, 1, gathered), ["n", "symmetric_result"]);
        for op in [CollectiveOp::AllReduce, CollectiveOp::ReduceScatter] {
            assert_eq!(mistakes(2, 1, of(op, 1040, Scales::None)), ["dtype"]);
        }
        let of_all = of(CollectiveOp::Broadcast, 1040, Scales::Tensor);
        assert_eq!(mistakes(2, 1, of_all), ["scales"]);
        let wide = CollectiveConfig {
            dtype: Dtype::Fp16,
            ..of(CollectiveOp::AllToAll, 1032, Scales::Block)
        };
        assert_eq!(mistakes(2, 1, wide), ["scales"]);
    }

    #[test]
    fn every_mistake_in_an_epilogue_is_said_at_once() {
        let of = |op, epilogue| CollectiveConfig {
            epilogue,
            ..CollectiveConfig::new(op)
        };
        let addends = SumEpilogue {
            bias: true,
            residual: true,
            eps: Eps::new(1e-5),
            ..SumEpilogue::default()
        };
        let reduced = of(CollectiveOp::AllReduce, addends);
        assert_eq!(mistakes(2, 1, reduced), ["bias", "residual", "eps"]);
        for eps in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e-40] {
            let epilogue = SumEpilogue {
                norm: Norm::Rms,
                eps: Eps::new(eps),
                ..addends
            };
            assert_eq!(
                mistakes(2, 1, of(CollectiveOp::ReduceScatter, epilogue)),
                ["norm", "eps"],
                "{eps}"
            );
        }
    }
}
