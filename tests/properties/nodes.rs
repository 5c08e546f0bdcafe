//! Properties of plans for several nodes: traffic and memory grow no faster than necessary, and impossible configurations
//! are refused.

use crate::cases;
use mkernel_compile::render;
use mkernel_spec::abi::FLAG_STRIDE_BYTES;
use mkernel_spec::fabric::PUT_CHANNELS;
use mkernel_spec::plan::{
    CombineWorkspace, DispatchWorkspace, GemmWorkspace, MAX_PUT_BYTES, OpPlan,
};
use mkernel_spec::{
    AttentionConfig, AttentionOp, BLayout, CombineConfig, CombineOp, Device, Dim, DispatchConfig,
    DispatchOp, Field, GemmConfig, GemmOp, KernelConfig, KernelPlan, SizedSpec,
};
use proptest::prelude::*;
use proptest::sample::select;

fn config(op: GemmOp, (nodes, local): (u32, u32), (m, n, k): (u64, u64, u64)) -> KernelConfig {
    let gemm = GemmConfig {
        m: Dim::Static(m),
        n: Dim::Static(n),
        k: Dim::Static(k),
        b_layout: BLayout::Nk,
        ..GemmConfig::new(op)
    };
    KernelConfig {
        nodes,
        ..KernelConfig::new(nodes * local, gemm)
    }
}

fn plan(config: KernelConfig) -> KernelPlan {
    let spec = SizedSpec::validate(config).expect("possible");
    // The device has more memory than any GPU, so that the largest sizes fit.
    let device = Device {
        memory_bytes: 1 << 50,
        ..Device::h200()
    };
    KernelPlan::new(&spec, &device).unwrap_or_else(|found| panic!("{found}"))
}

proptest! {
    #![proptest_config(cases())]

    /// Traffic, puts and memory of GEMM plans have their smallest possible order of growth, for 2 to 64 nodes of 1 to 8
    /// ranks.
    #[test]
    fn gemm_plans_grow_no_faster_than_necessary(
        op in select(&[GemmOp::AgGemm, GemmOp::GemmRs, GemmOp::GemmAr][..]),
        nodes in 2..=64u32,
        local in 1..=8u32,
        m in prop_oneof![1..=300u64, 1..=20_000u64],
        (n, k) in ((1..=256u64).prop_map(|vecs| vecs * 8), (1..=256u64).prop_map(|vecs| vecs * 8)),
    ) {
        let plan = plan(config(op, (nodes, local), (m, n, k)));
        let gemm = plan.gemm().expect("a GEMM");
        let network = plan.body().network.as_ref().expect("several nodes");
        prop_assert!(render(&plan).is_ok());
        prop_assert!(network.put_bytes <= MAX_PUT_BYTES && network.puts > 0);
        prop_assert!(network.channels <= PUT_CHANNELS);
        prop_assert!(plan.launch().grid_ctas <= plan.device.sm_count && gemm.comm_ctas > 0);

        let (peers, ranks) = (u64::from(nodes - 1), u64::from(nodes * local));
        let shard_rows = m.div_ceil(u64::from(nodes * local));
        let results = op == GemmOp::GemmAr;
        let row_bytes = 2 * match op {
            GemmOp::AgGemm => k,
            _ if results => 2 * n,
            _ => n,
        };
        // A byte crosses once for each pair of nodes.
        prop_assert_eq!(plan.body().traffic.nic_bytes, peers * shard_rows * row_bytes);
        let near = u64::from(nodes * (local - 1));
        prop_assert_eq!(plan.body().traffic.link_bytes, near * shard_rows * row_bytes);

        // The workspace has two buffers of gathered rows or of sums, rounded up to tiles, and flags.
        let tile = (u64::from(gemm.tile.m), u64::from(gemm.tile.n));
        let (rows, cols) = match op {
            GemmOp::AgGemm => (m, k),
            GemmOp::GemmRs => (shard_rows.next_multiple_of(tile.0) * u64::from(nodes * local), n.next_multiple_of(tile.1)),
            _ => {
                let tiles = (m.div_ceil(tile.0) * n.div_ceil(tile.1)).next_multiple_of(u64::from(nodes * local));
                (tiles * tile.0, tile.1)
            }
        };
        let all = 2 * rows * cols * 2;
        let data = match op {
            GemmOp::AgGemm => all,
            GemmOp::GemmRs => all + 2 * all,
            _ => 2 * all + 2 * all,
        };
        let of = |id| plan.body().region(id).map_or(0, |region| region.bytes);
        let tail = of(GemmWorkspace::split_sums) + of(GemmWorkspace::split_ready);
        let flags = of(GemmWorkspace::chunk_ready) + of(GemmWorkspace::partial_ready) + of(GemmWorkspace::result_ready) + of(GemmWorkspace::put_ready) + of(GemmWorkspace::arrived);
        prop_assert!(plan.workspace_bytes() <= data + tail + flags + 16 * 1024, "{:?}", plan.body().workspace);
        let tiles = rows.div_ceil(tile.0.min(8)) * cols.div_ceil(tile.1.min(8));
        prop_assert!(of(GemmWorkspace::arrived) == u64::from(network.channels) * peers * FLAG_STRIDE_BYTES);
        prop_assert!(flags <= (2 + 4 * tiles + 2 * m + 2 * peers + ranks) * 2 * FLAG_STRIDE_BYTES);
    }

    /// In `dispatch_gemm`, traffic and memory are what the tokens need.
    #[test]
    fn dispatch_plans_grow_no_faster_than_necessary(
        nodes in 2..=64u32,
        local in 1..=8u32,
        each in 1..=2u64,
        top_k in 1..=2u64,
        max_tokens in prop_oneof![1..=40u64, 1..=20_000u64],
        hidden in (1..=1024u64).prop_map(|vecs| vecs * 8),
    ) {
        let ranks = u64::from(nodes * local);
        let experts = DispatchConfig {
            experts: Dim::Static(ranks * each),
            top_k: Dim::Static(top_k),
            max_tokens: Dim::Static(max_tokens),
            hidden: Dim::Static(hidden),
            intermediate: Dim::Static(64),
            max_rows: Some(100_000),
            ..DispatchConfig::new(DispatchOp::DispatchGemm)
        };
        let plan = plan(KernelConfig { nodes, ..KernelConfig::new(nodes * local, experts) });
        let OpPlan::Dispatch(op_plan) = &plan.body().op_plan else { panic!("of experts") };
        let network = plan.body().network.as_ref().expect("several nodes");
        prop_assert!(render(&plan).is_ok());
        prop_assert!(network.put_bytes <= MAX_PUT_BYTES);
        let internode = op_plan.internode.as_ref().expect("several nodes");
        let chunks = internode.chunks;
        prop_assert!(chunks.chunk_tokens % u64::from(op_plan.block_tokens) == 0);
        prop_assert!(chunks.room_tokens % chunks.chunk_tokens == 0);
        prop_assert!(u64::from(network.puts - 1) * chunks.chunk_tokens >= max_tokens);

        // A token crosses the network once for each node that has one of its experts.
        let (peers, token_bytes) = (u64::from(nodes - 1), hidden * 2);
        let most = max_tokens * token_bytes;
        prop_assert!(plan.body().traffic.nic_bytes <= most * peers.min(top_k));
        prop_assert!(plan.body().traffic.link_bytes <= most * u64::from(nodes * (local - 1)));
        prop_assert!(local > 1 || plan.body().traffic.link_bytes == 0);

        // The workspace has room for a token per row, for the rank's tokens once per expert, and for four times the tokens of a
        // rank from other nodes, or three chunks of each node.
        let of = |id| plan.body().region(id).map_or(0, |region| region.bytes);
        let elsewhere = if op_plan.acknowledges() { 0 } else { peers };
        prop_assert_eq!(of(DispatchWorkspace::segments), ((ranks - 1 - elsewhere) * max_tokens).clamp(1, 100_000) * token_bytes);
        prop_assert_eq!(of(DispatchWorkspace::outgoing), peers.min(top_k) * most);
        prop_assert_eq!(of(DispatchWorkspace::landed), peers * chunks.room_tokens * token_bytes);
        let share = if peers <= 4 { max_tokens } else { 4 * max_tokens / peers };
        prop_assert!(chunks.room_tokens < share.max(3 * chunks.chunk_tokens) + chunks.chunk_tokens);
        prop_assert_eq!(of(DispatchWorkspace::arrived), u64::from(network.channels) * peers * FLAG_STRIDE_BYTES);
        prop_assert!(of(DispatchWorkspace::packets_in) <= 2 * peers * (4 * (op_plan.count_words() + max_tokens * (1 + top_k)) + 16));
    }

    /// Exactly the numbers of nodes and ranks that do not fit each other are refused.
    #[test]
    fn impossible_topologies_are_refused(nodes in 0..=2000u32, world in 0..=2000u32) {
        let mut config = config(GemmOp::GemmRs, (2, 2), (64, 64, 64));
        (config.nodes, config.world) = (nodes, world);
        let possible = match nodes {
            1 => [1, 2, 4, 8].contains(&world),
            _ => (1..=1024).contains(&nodes) && world % nodes == 0 && (1..=8).contains(&(world / nodes)),
        };
        match SizedSpec::validate(config) {
            Ok(spec) => {
                prop_assert!(possible);
                let topology = spec.topology();
                prop_assert_eq!((topology.nodes, topology.world()), (nodes, world));
            }
            Err(found) => {
                prop_assert!(!possible, "{}", found);
                prop_assert!(found.iter().all(|v| [Field::NODES, Field::WORLD].contains(&v.field)));
            }
        }
    }
}

#[test]
fn options_for_one_node_are_refused_on_several() {
    let mut several = config(GemmOp::AgGemm, (2, 2), (64, 64, 64));
    let tuning = &mut several.problem.gemm_mut().expect("a GEMM").tuning;
    tuning.comm_ctas = Some(0);
    tuning.k_slices = Some(2);
    let found = SizedSpec::validate(several).expect_err("two mistakes");
    let fields: Vec<_> = found.iter().map(|v| v.field).collect();
    assert_eq!(fields, [Field::COMM_CTAS, Field::K_SLICES], "{found}");
}

fn combine(nodes: u32, local: u32, max_tokens: u64, hidden: u64) -> KernelConfig {
    let combine = CombineConfig {
        experts: Dim::Static(8 * u64::from(nodes * local)),
        top_k: Dim::Static(4),
        max_tokens: Dim::Static(max_tokens),
        hidden: Dim::Static(hidden),
        ..CombineConfig::new(CombineOp::Combine)
    };
    KernelConfig {
        nodes,
        ..KernelConfig::new(nodes * local, combine)
    }
}

/// A row crosses the network at most once for each token and node that the token's entries can reach. Without `max_rows` the
/// memory of a rank grows with the number of ranks times tokens, as do the rows that it may have.
#[test]
fn combine_puts_a_row_per_token_and_node() {
    for (nodes, local, max_tokens, hidden) in [
        (2, 1, 1, 8),
        (2, 8, 4096, 7168),
        (3, 5, 100, 200),
        (16, 8, 1024, 2048),
        (64, 2, 512, 7168),
    ] {
        let spec =
            SizedSpec::validate(combine(nodes, local, max_tokens, hidden)).expect("possible");
        let plan = KernelPlan::new(&spec, &Device::h200()).expect("a plan");
        let (peers, ranks) = (u64::from(nodes - 1), u64::from(nodes * local));
        let (rows, entries) = (max_tokens * hidden * 2, max_tokens * 4);
        let reached = peers.min(4);
        assert!(plan.body().traffic.nic_bytes <= reached * (rows + entries * 8));
        let network = plan.body().network.as_ref().expect("puts");
        assert!(network.put_bytes <= MAX_PUT_BYTES && network.puts >= 2);
        let of = |id| plan.body().region(id).map_or(0, |region| region.bytes);
        let partials = if local > 1 { ranks * rows } else { 0 };
        assert_eq!(of(CombineWorkspace::kept_partials), partials);
        assert_eq!(of(CombineWorkspace::sums_in), reached * rows);
        assert!(of(CombineWorkspace::sums_out) <= 4 * rows + 2 * peers * MAX_PUT_BYTES);
        let channels = u64::from(network.channels);
        assert_eq!(
            of(CombineWorkspace::arrived),
            channels * peers * FLAG_STRIDE_BYTES
        );
        assert_eq!(of(CombineWorkspace::token_counts), 2 * ranks * 48);
        assert_eq!(of(CombineWorkspace::topk_packets), 2 * ranks * entries * 16);
        assert!(of(CombineWorkspace::lists_in) <= 2 * peers * (32 + entries * 8 + 16));
    }
    let small = SizedSpec::validate(combine(2, 2, 64, 64)).expect("possible");
    let found = KernelPlan::new(&small, &Device::simulated(1)).expect_err("one SM");
    let fields: Vec<_> = found.iter().map(|v| v.field).collect();
    assert_eq!(fields, [Field::NODES], "{found}");
}

fn attention(seq: u64, kv_slots: Option<u32>) -> KernelConfig {
    let mut attention = AttentionConfig {
        batch: Dim::Static(2),
        seq: Dim::Static(seq),
        heads: Dim::Static(16),
        kv_heads: Dim::Static(8),
        head_dim: Dim::Static(128),
        ..AttentionConfig::new(AttentionOp::RingAttention)
    };
    attention.tuning.kv_slots = kv_slots;
    KernelConfig {
        nodes: 2,
        ..KernelConfig::new(4, attention)
    }
}

/// On several nodes, K and V always have slots for all heads. Fewer slots are possible on one node only.
#[test]
fn attention_on_several_nodes_keeps_all_heads() {
    let found = SizedSpec::validate(attention(4096, Some(3))).expect_err("a ring");
    let fields: Vec<_> = found.iter().map(|v| v.field).collect();
    assert_eq!(fields, [Field::KV_SLOTS], "{found}");
    assert!(found.to_string().contains("3 of 16 heads"), "{found}");
    assert!(SizedSpec::validate(attention(4096, Some(16))).is_ok());

    let large = SizedSpec::validate(attention(1 << 22, None)).expect("a valid configuration");
    let found = KernelPlan::new(&large, &Device::h200()).expect_err("too much memory");
    let fields: Vec<_> = found.iter().map(|v| v.field).collect();
    assert_eq!(fields, [Field::SEQ], "{found}");

    let small = SizedSpec::validate(attention(4096, None)).expect("possible");
    assert!(KernelPlan::new(&small, &Device::simulated(1)).is_ok());
}
