//! Properties of `ring_attention`: the keys that each tile of queries meets, the keys that ranks send and put, and the
//! slots.

mod checks;
mod kernel;
mod memory;
mod schedules;
mod sequence;

use kernel::{Case, Kernel, kernels, kernels_of};
use mkernel_spec::{
    AttentionConfig, AttentionOp, AttentionTuning, Device, Dim, KernelConfig, KernelPlan, Layout,
    Placement, SizedSpec,
};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use std::panic;

/// Generates plans, half of them with the length of a call at run time, or `None` if the options do not fit. Some calls
/// have cached rows.
fn plans() -> impl Strategy<Value = Option<Case>> {
    let seq = prop_oneof![
        1..=40_u64,
        1..=3000_u64,
        (1..=16_u64).prop_map(|tiles| tiles * 128)
    ];
    let heads = (1..=4_u64, 1..=4_u64).prop_map(|(kv_heads, each)| (kv_heads * each, kv_heads));
    let tuning = (
        option::of(select(&[1, 2, 5, 16][..])),
        option::of(select(&[1, 2, 3, 7][..])),
    );
    let one_node = select(&[1, 2, 4, 8][..]).prop_map(|world| (1, world));
    let several = (2..=4_u32, 1..=3_u32);
    let ranks = (
        prop_oneof![one_node, several],
        prop_oneof![1..=12_u32, Just(132)],
    );
    let how = (
        any::<bool>(),
        select(&Placement::ALL[..]),
        select(&Layout::ALL[..]),
        select(&[64, 128][..]),
    );
    // The rows of a call, in thousandths of the most rows; `None` if the plan knows the rows.
    let share = prop_oneof![Just(None), (0..=1000_u64).prop_map(Some), Just(Some(1000))];
    let cached = option::of(1..=1000_u32);
    (ranks, 1..=3_u64, (seq, share, cached), heads, how, tuning).prop_map(
        |((topology, sm_count), batch, (seq, share, cached), (heads, kv_heads), how, tuning)| {
            let (causal, placement, layout, head_dim) = how;
            let (comm_ctas, kv_slots) = tuning;
            let config = AttentionConfig {
                batch: Dim::Static(batch),
                seq: share.map_or(Dim::Static(seq), |_| Dim::UpTo(seq)),
                heads: Dim::Static(heads),
                kv_heads: Dim::Static(kv_heads),
                head_dim: Dim::Static(head_dim),
                layout,
                causal,
                placement,
                cached: cached.filter(|_| share.is_some()),
                tuning: AttentionTuning {
                    comm_ctas,
                    kv_slots: kv_slots.filter(|_| topology.0 == 1),
                },
                ..AttentionConfig::new(AttentionOp::RingAttention)
            };
            let device = Device {
                sm_count,
                ..Device::h200()
            };
            let (nodes, local_world) = topology;
            let config = KernelConfig {
                nodes,
                ..KernelConfig::new(nodes * local_world, config)
            };
            let spec = SizedSpec::validate(config).expect("valid");
            let rows = share.map(|share| (seq * share).div_ceil(1000));
            let plan = KernelPlan::new(&spec, &device).ok()?;
            Some(Case { plan, rows })
        },
    )
}

/// A named check of all ranks of a kernel.
type Check = (&'static str, fn(&[Kernel]));

/// The checks that hold for every kernel.
const CHECKS: &[Check] = &[
    ("tiles", checks::every_tile_of_queries_is_taken_once),
    (
        "sequence",
        sequence::tiles_and_keys_have_the_order_of_the_plan,
    ),
    ("chunks", checks::chunks_match_the_plan),
    ("keys", checks::a_tile_meets_all_its_keys_once),
    ("sent", checks::sent_keys_are_awaited),
    ("parts", checks::parts_are_sent_head_by_head),
    ("readers", checks::readers_are_the_tiles_that_meet_keys),
    ("puts", checks::awaited_tiles_are_put_once),
    ("turns", schedules::every_tile_is_computed),
];

/// The kernels belong to random plans.
#[test]
fn every_check_holds() {
    for kernels in kernels() {
        CHECKS.iter().for_each(|(_, check)| check(kernels));
    }
}

/// Mutations of device code: the text that is replaced, the new text, and the name of the check that must fail.
#[rustfmt::skip]
const MUTATIONS: &[(&str, &str, &str)] = &[
    ("head = first + within % heads;", "head = first;", "tiles"),
    ("row_tiles - 1 - within / heads);", "within / heads);", "sequence"),
    (": kChunks - 1 - rank;", ": kChunks - 2 - rank;", "chunks"),
    ("turn / Ranks::kLocalWorld) % Ranks::kNodes", "0) % Ranks::kNodes", "keys"),
    ("Sequence::template attends<Mask>(Sequence::chunk_of(rank, own), chunk) &&", "", "sent"),
    ("return {source, head / Config::kKvHeads, head %", "return {source, 0, head %", "parts"),
    ("if (!meets(rank, own, source)) continue;", "", "readers"),
    ("end > first_row ? (end - first_row +", "end > first_row ? (end - first_row -", "puts"),
];

/// Each check fails for at least one mutation.
#[test]
fn every_mutation_is_found() {
    let plan = [masked_on_two_nodes()];
    let holds = |kernels: &[Vec<Kernel>], check: fn(&[Kernel])| {
        panic::catch_unwind(|| check(&kernels[0])).is_ok()
    };
    let right = kernels_of(&plan, &[]);
    assert!(CHECKS.iter().all(|(_, check)| holds(&right, *check)));
    for (from, to, name) in MUTATIONS {
        let wrong = kernels_of(&plan, &[(from, to)]);
        let (_, check) = CHECKS
            .iter()
            .find(|(other, _)| other == name)
            .expect("a check");
        assert!(!holds(&wrong, *check), "{name} hold after {from}");
    }
}

/// Returns a plan with two batches and two heads of K and V. Chunks have several tiles, and the last tile is not full.
fn masked_on_two_nodes() -> Case {
    let config = AttentionConfig {
        batch: Dim::Static(2),
        seq: Dim::Static(4000),
        heads: Dim::Static(4),
        kv_heads: Dim::Static(2),
        head_dim: Dim::Static(64),
        causal: true,
        placement: Placement::Zigzag,
        ..AttentionConfig::new(AttentionOp::RingAttention)
    };
    let config = KernelConfig {
        nodes: 2,
        ..KernelConfig::new(4, config)
    };
    let spec = SizedSpec::validate(config).expect("valid");
    let plan = KernelPlan::new(&spec, &Device::h200()).expect("a plan");
    Case { plan, rows: None }
}
