//! The limits of attention operators.

use super::config::{AttentionConfig, MAX_CACHED_ROWS, MAX_HEADS, MAX_SEQUENCES};
use crate::config::{Dim, Field, Scale};
use crate::diagnostic::Diagnostics;
use crate::limits::{MAX_DIM, MAX_ELEMS};
use crate::options::OperatorConfig;

/// The possible numbers of elements of a row of a head: 64 elements of two bytes are a line of the 128-byte swizzle,
/// and registers have room for 128.
const HEAD_DIMS: [u64; 2] = [64, 128];

/// Records every mistake.
pub(crate) fn check(config: &AttentionConfig, nodes: u32, found: &mut Diagnostics) {
    for (field, dim) in config.dims() {
        let Some(size) = dim.fixed() else { continue };
        if field == Field::HEAD_DIM {
            found.require(
                HEAD_DIMS.contains(&size),
                field,
                || format!("heads of {size} elements are not supported"),
                padding(size, config.scale),
            );
            continue;
        }
        found.require(
            (1..=MAX_DIM).contains(&size),
            field,
            || format!("{size} is not in 1..={MAX_DIM} (TMA coordinates are 32-bit)"),
            "use a size in that range",
        );
    }
    config.check_limits(found);
    check_heads(config, found);
    check_elems(config, found);
    if let Some(cached) = config.cached {
        check_cached(config, cached, found);
    }
    if config.packed {
        check_packed(config, nodes, found);
    } else if nodes > 1 {
        check_slots(config, found);
    }
    if let Some(scale) = config.scale.fixed() {
        found.require(
            scale > 0.0 && scale.is_finite(),
            Field::SCALE,
            || format!("{scale} is not a finite number above 0"),
            "use such a number, or negate Q",
        );
    }
    config.tuning.check_limits(found);
}

/// Returns the advice for heads of another size. Padding with zeros does not change the scores, but the default scale would be the
/// scale of the padded size.
fn padding(size: u64, scale: Scale) -> String {
    let Some(padded) = HEAD_DIMS.into_iter().find(|padded| size <= *padded) else {
        return "use 64 or 128".to_owned();
    };
    let mut help = format!("use {padded}, padding Q, K and V with zeros");
    if scale.fixed().is_none() && size > 0 {
        let usual = 1.0 / (size as f64).sqrt();
        help.push_str(&format!(
            ", and scale = {usual:.7}, which is 1/√{size}: the default becomes 1/√{padded}"
        ));
    }
    help
}

/// Ranks release slots to the rank that sends. Such credits do not cross between nodes.
fn check_slots(config: &AttentionConfig, found: &mut Diagnostics) {
    let sizes = (config.batch.fixed(), config.kv_heads.fixed());
    if let (Some(slots), (Some(batch), Some(kv_heads))) = (config.tuning.kv_slots, sizes) {
        let all = batch.saturating_mul(kv_heads);
        found.require(
            u64::from(slots) >= all,
            Field::KV_SLOTS,
            || format!("{slots} of {all} heads of K and V at a time: across nodes, heads don't take turns"),
            format!("use {all}, or leave it to the planner"),
        );
    }
}

/// Checks the requirements of packed sequences: one node, and room for keys of all heads.
fn check_packed(config: &AttentionConfig, nodes: u32, found: &mut Diagnostics) {
    found.require(
        nodes == 1,
        Field::PACKED,
        || {
            format!(
                "{} nodes: packed sequences are divided among the ranks of one node",
                nodes
            )
        },
        "use nodes = 1, or pad the sequences to one length and leave out packed",
    );
    if let Some(sequences) = config.batch.fixed() {
        found.require(
            sequences <= MAX_SEQUENCES,
            Field::BATCH,
            || format!("{sequences} packed sequences are more than {MAX_SEQUENCES}"),
            "make several calls",
        );
    }
    if let (Some(slots), Some(kv_heads)) = (config.tuning.kv_slots, config.kv_heads.fixed()) {
        found.require(
            u64::from(slots) >= kv_heads,
            Field::KV_SLOTS,
            || format!("{slots} of {kv_heads} heads of K and V at a time, but heads of packed sequences do not take turns"),
            format!("use {kv_heads}, or leave it to the planner"),
        );
    }
}

/// Checks the requirements of cached rows: lengths at run time, and sequences that are not packed.
fn check_cached(config: &AttentionConfig, cached: u32, found: &mut Diagnostics) {
    found.require(
        (1..=MAX_CACHED_ROWS).contains(&cached),
        Field::CACHED,
        || format!("{cached} is not in 1..={MAX_CACHED_ROWS}"),
        "use a value in that range, or leave it out if no call has cached rows",
    );
    found.require(
        !config.packed,
        Field::CACHED,
        || "packed sequences have no cached rows".to_owned(),
        "leave out packed, and give each sequence a batch; batches may have different numbers of cached rows",
    );
    if let (Dim::Static(rows), false) = (config.seq, config.packed) {
        found.require(
            false,
            Field::SEQ,
            || format!("{rows} rows in every call: cached rows are for calls that give their rows"),
            format!("use ..={rows}; a call that gives no number has all {rows} rows"),
        );
    }
    if let Some(batch) = config.batch.fixed() {
        found.require(
            batch <= MAX_SEQUENCES,
            Field::BATCH,
            || format!("{batch} sequences with cached rows are more than {MAX_SEQUENCES}"),
            "make several calls",
        );
    }
}

fn check_heads(config: &AttentionConfig, found: &mut Diagnostics) {
    let (heads, kv_heads) = (config.heads.fixed(), config.kv_heads.fixed());
    if let (Some(heads), Some(kv_heads @ 1..)) = (heads, kv_heads) {
        found.require(
            heads.is_multiple_of(kv_heads),
            Field::KV_HEADS,
            || format!("{heads} heads cannot share {kv_heads} heads of K and V evenly"),
            "use a divisor of the heads",
        );
    }
    if let (Some(batch), Some(heads)) = (config.batches().fixed(), heads) {
        found.require(
            batch.saturating_mul(heads) <= MAX_HEADS,
            Field::BATCH,
            || format!("{batch} batches of {heads} heads are more than {MAX_HEADS} heads"),
            "split the batch",
        );
    }
}

/// Each size may be valid while their product exceeds the limit of a tensor.
fn check_elems(config: &AttentionConfig, found: &mut Diagnostics) {
    let sizes = [config.batches(), config.seq, config.heads, config.head_dim];
    let sizes: Option<Vec<u64>> = sizes.iter().map(|dim| dim.fixed()).collect();
    let elems = sizes.map(|sizes| sizes.into_iter().fold(1, u64::saturating_mul));
    if let Some(elems) = elems {
        found.require(
            elems <= MAX_ELEMS,
            Field::SEQ,
            || format!("Q has {elems} elements over all ranks, more than {MAX_ELEMS}"),
            "split the batch or the heads",
        );
    }
    let sizes = [config.batch, config.kv_heads, config.head_dim];
    let sizes: Option<Vec<u64>> = sizes.iter().map(|dim| dim.fixed()).collect();
    if let (Some(cached), Some(sizes)) = (config.cached, sizes) {
        let elems = sizes.into_iter().fold(cached.into(), u64::saturating_mul);
        found.require(
            elems <= MAX_ELEMS,
            Field::CACHED,
            || format!("K has {elems} cached elements on each rank, more than {MAX_ELEMS}"),
            "prepare for fewer cached rows, or split the batch or the heads",
        );
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{AttentionConfig, AttentionOp, Dim, KernelConfig, Scale};
    use crate::spec::KernelSpec;

    #[test]
    fn every_mistake_is_said_at_once() {
        let config = AttentionConfig {
            batch: Dim::Static(0),
            seq: Dim::Static(1 << 40),
            heads: Dim::Static(12),
            kv_heads: Dim::Static(5),
            head_dim: Dim::Static(96),
            ..AttentionConfig::new(AttentionOp::RingAttention)
        };
        let found = KernelSpec::validate(KernelConfig::new(8, config)).expect_err("mistakes");
        let fields: Vec<_> = found.iter().map(|v| v.field.name()).collect();
        assert_eq!(fields, ["batch", "seq", "head_dim", "kv_heads"], "{found}");
    }

    #[test]
    fn advice_on_odd_heads_keeps_the_scale() {
        let help = |head_dim, scale: Option<f32>| {
            let mut config = AttentionConfig {
                head_dim: Dim::Static(head_dim),
                ..AttentionConfig::new(AttentionOp::RingAttention)
            };
            if let Some(scale) = scale {
                config.scale = Scale::new(scale);
            }
            let found = KernelSpec::validate(KernelConfig::new(8, config)).expect_err("odd");
            found.iter().next().expect("one").help.clone()
        };
        let usual = help(96, None);
        assert!(usual.starts_with("use 128, padding"), "{usual}");
        assert!(
            usual.contains("scale = 0.1020621, which is 1/√96"),
            "{usual}"
        );
        assert!(help(40, None).starts_with("use 64, padding"));
        assert!(!help(96, Some(0.1)).contains("scale"));
        assert_eq!(help(256, None), "use 64 or 128");
    }

    #[test]
    fn tensors_that_no_gpu_holds_are_refused() {
        let config = AttentionConfig {
            batch: Dim::Static(1 << 12),
            seq: Dim::Static(1 << 20),
            heads: Dim::Static(1 << 12),
            kv_heads: Dim::Static(1),
            head_dim: Dim::Static(64),
            ..AttentionConfig::new(AttentionOp::RingAttention)
        };
        let found = KernelSpec::validate(KernelConfig::new(8, config)).expect_err("mistakes");
        let fields: Vec<_> = found.iter().map(|v| v.field.name()).collect();
        assert_eq!(fields, ["batch", "seq"], "{found}");
    }

    #[test]
    fn packed_sequences_need_one_node_and_room_for_all_heads() {
        let mut config = AttentionConfig {
            batch: Dim::Static(5000),
            seq: Dim::Static(4096),
            heads: Dim::Static(4),
            kv_heads: Dim::Static(2),
            head_dim: Dim::Static(64),
            packed: true,
            ..AttentionConfig::new(AttentionOp::RingAttention)
        };
        config.tuning.kv_slots = Some(1);
        let on_nodes = |nodes, config: AttentionConfig| {
            KernelSpec::validate(KernelConfig {
                nodes,
                ..KernelConfig::new(4, config)
            })
        };
        let found = on_nodes(2, config).expect_err("mistakes");
        let fields: Vec<_> = found.iter().map(|v| v.field.name()).collect();
        assert_eq!(fields, ["packed", "batch", "kv_slots"], "{found}");
        config.batch = Dim::Static(1024);
        config.tuning.kv_slots = Some(2);
        on_nodes(1, config).expect("valid");
    }
    #[test]
    fn every_mistake_of_cached_rows_is_said_at_once() {
        let config = AttentionConfig {
            batch: Dim::Static(2000),
            seq: Dim::Static(64),
            heads: Dim::Static(4),
            kv_heads: Dim::Static(2),
            head_dim: Dim::Static(64),
            cached: Some(0),
            ..AttentionConfig::new(AttentionOp::RingAttention)
        };
        let validate = |config: AttentionConfig| KernelSpec::validate(KernelConfig::new(4, config));
        let found = validate(config).expect_err("mistakes");
        let fields: Vec<_> = found.iter().map(|v| v.field.name()).collect();
        assert_eq!(fields, ["cached", "seq", "batch"], "{found}");
        let right = AttentionConfig {
            batch: Dim::Static(1024),
            seq: Dim::UpTo(64),
            cached: Some(4096),
            ..config
        };
        validate(right).expect("valid");
        let packed = AttentionConfig {
            packed: true,
            ..right
        };
        let found = validate(packed).expect_err("packed");
        let fields: Vec<_> = found.iter().map(|v| v.field.name()).collect();
        assert_eq!(fields, ["cached"], "{found}");
    }
}
