//! Which keys tiles of queries meet, what ranks send and put; that slots are enough, and where they are.

mod kernel;
mod memory;
mod schedules;

use crate::cases;
use kernel::{Kernel, Keys, Tile};
use mkernel_spec::plan::TILE_ROWS;
use mkernel_spec::{
    AttentionConfig, AttentionOp, AttentionTuning, Device, Dim, KernelConfig, KernelPlan,
    KernelSpec, Layout, Placement,
};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::BTreeSet;

fn plans() -> impl Strategy<Value = Option<KernelPlan>> {
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
    (ranks, 1..=3_u64, seq, heads, how, tuning).prop_map(
        |((topology, sm_count), batch, seq, (heads, kv_heads), how, (comm_ctas, kv_slots))| {
            let (causal, placement, layout, head_dim) = how;
            let config = AttentionConfig {
                batch: Dim::Static(batch),
                seq: Dim::Static(seq),
                heads: Dim::Static(heads),
                kv_heads: Dim::Static(kv_heads),
                head_dim: Dim::Static(head_dim),
                layout,
                causal,
                placement,
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
            let spec = KernelSpec::validate(config).expect("valid");
            KernelPlan::new(&spec, &device).ok()
        },
    )
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn every_tile_of_queries_is_taken_once(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        for kernel in Kernel::all(&plan) {
            let taken: BTreeSet<Tile> = (0..kernel.body.tiles).map(|index| kernel.tile_at(index)).collect();
            prop_assert_eq!(taken.len() as u32, kernel.body.tiles);
            let shape = kernel.body.shape;
            for tile in taken {
                prop_assert!(u64::from(tile.batch) < shape.batch && u64::from(tile.head) < shape.heads);
                prop_assert!(tile.segment < kernel.segments() && tile.row < kernel.body.segment_tiles * TILE_ROWS);
            }
        }
    }

    /// Own keys first, of the others each that is attended to, once.
    #[test]
    fn a_tile_meets_all_its_keys_once(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        for kernel in Kernel::all(&plan) {
            for tile in kernel.tiles().into_iter().filter(|tile| (tile.batch, tile.head) == (0, 0)) {
                let met = kernel.walk(tile);
                let distinct: BTreeSet<Keys> = met.iter().copied().collect();
                prop_assert_eq!(distinct.len(), met.len(), "{:?}", tile);
                prop_assert_eq!(met[0].source, kernel.rank);
                let rows = kernel.segment_rows(kernel.rank, tile.segment).min(tile.row + TILE_ROWS);
                let last = kernel.chunk_of(kernel.rank, tile.segment) * kernel.body.segment_rows + rows - 1;
                for source in 0..kernel.world() {
                    for segment in 0..kernel.segments() {
                        for row in (0..kernel.segment_rows(source, segment)).step_by(TILE_ROWS as usize) {
                            let place = kernel.chunk_of(source, segment) * kernel.body.segment_rows + row;
                            let is_needed = !kernel.body.config.causal || place <= last;
                            prop_assert_eq!(distinct.contains(&Keys { source, segment, row }), is_needed);
                        }
                    }
                }
            }
        }
    }

    /// A rank awaits what is sent to it, and nothing else: so nothing arrives after its call.
    #[test]
    fn what_is_sent_is_awaited(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        let kernels = Kernel::all(&plan);
        for kernel in &kernels {
            let tiles = kernel.tiles().into_iter().filter(|tile| (tile.batch, tile.head) == (0, 0));
            let mut awaited: BTreeSet<Keys> = tiles.flat_map(|tile| kernel.walk(tile)).collect();
            awaited.retain(|keys| keys.source != kernel.rank);
            let others = kernels.iter().filter(|other| other.rank != kernel.rank);
            let sent: BTreeSet<Keys> = others.flat_map(|other| other.sent_to(kernel.rank)).collect();
            prop_assert_eq!(sent, awaited);
        }
    }

    /// All that a node's ranks await of another node's rank is put to its peer there, each tile once, behind the put that
    /// whoever relays it waits for; and nothing that none of them awaits.
    #[test]
    fn what_other_nodes_await_is_put_once(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        let Some(network) = &plan.network else { return Ok(()) };
        let topology = plan.spec.topology();
        let kernels = Kernel::all(&plan);
        let mut most = 0;
        for kernel in &kernels {
            let mut rows = 0;
            for node in (0..topology.nodes).filter(|node| *node != topology.node_of(kernel.rank)) {
                let mut put = BTreeSet::new();
                for index in 0..network.puts {
                    let (head, tiles) = kernel.put_to(node, index);
                    let bytes = tiles.len() as u64 * 2 * u64::from(kernel.body.tile_bytes());
                    prop_assert!(bytes <= network.put_bytes);
                    for keys in tiles {
                        prop_assert_eq!(kernel.put_of(head, keys), index);
                        prop_assert!(put.insert((head, keys)), "{:?} twice", keys);
                        rows += u64::from(TILE_ROWS.min(kernel.segment_rows(kernel.rank, keys.segment) - keys.row));
                    }
                }
                let readers = topology.first_of(node)..topology.first_of(node + 1);
                let awaited: BTreeSet<Keys> = readers.flat_map(|reader| kernel.sent_to(reader)).collect();
                let heads = 0..kernel.body.kv_heads() as u32;
                let awaited = heads.flat_map(|head| awaited.iter().map(move |keys| (head, *keys))).collect();
                prop_assert_eq!(put, awaited);
            }
            most = most.max(rows);
        }
        let row_bytes = 2 * kernels[0].body.shape.head_dim * 2;
        prop_assert_eq!(plan.traffic.nic_bytes, most * row_bytes);
    }
}
