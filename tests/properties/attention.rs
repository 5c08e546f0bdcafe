//! Which keys tiles of queries meet, what ranks send and put, and that slots are enough: the index arithmetic of
//! `templates/ops/ring_attention.cu.tera` and `templates/parts/put_keys.cu.tera` with the numbers of the plan. Change both.

use crate::cases;
use mkernel_spec::plan::{AttentionPlan, Body, TILE_ROWS};
use mkernel_spec::{
    AttentionConfig, AttentionOp, AttentionTuning, Device, Dim, KernelConfig, KernelPlan,
    KernelSpec, Layout, Placement, Topology,
};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::BTreeSet;

/// A tile of queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Tile {
    batch: u32,
    head: u32,
    segment: u32,
    row: u32,
}

/// A tile of keys of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Keys {
    source: u32,
    segment: u32,
    row: u32,
}

/// One rank of a rendered kernel.
struct Kernel<'a> {
    plan: &'a KernelPlan,
    body: &'a AttentionPlan,
    rank: u32,
}

impl<'a> Kernel<'a> {
    fn all(plan: &'a KernelPlan) -> Vec<Self> {
        let Body::Attention(body) = &plan.body else {
            panic!("attention")
        };
        let ranks = 0..plan.spec.world();
        ranks.map(|rank| Self { plan, body, rank }).collect()
    }

    fn world(&self) -> u32 {
        self.plan.spec.world()
    }

    fn segments(&self) -> u32 {
        self.body.config.placement.segments()
    }

    fn chunk_of(&self, rank: u32, segment: u32) -> u32 {
        self.body
            .config
            .placement
            .chunk_of(self.world(), rank, segment)
    }

    fn segment_rows(&self, rank: u32, segment: u32) -> u32 {
        let before = u64::from(self.chunk_of(rank, segment)) * u64::from(self.body.segment_rows);
        let left = self.body.shape.seq.saturating_sub(before);
        left.min(u64::from(self.body.segment_rows)) as u32
    }

    fn tile_at(&self, index: u32) -> Tile {
        let body = self.body;
        let all = (body.shape.batch * body.shape.heads) as u32;
        let heads = body.shape.heads as u32;
        let per_group = body.group_heads * body.row_tiles;
        let first = index / per_group * body.group_heads;
        let in_group = body.group_heads.min(all - first);
        let within = index % per_group;
        let head = first + within % in_group;
        let tile = body.row_tiles - 1 - within / in_group;
        Tile {
            batch: head / heads,
            head: head % heads,
            segment: tile / body.segment_tiles,
            row: tile % body.segment_tiles * TILE_ROWS,
        }
    }

    fn is_empty(&self, tile: Tile) -> bool {
        tile.row >= self.segment_rows(self.rank, tile.segment)
    }

    /// Whose keys come as the `turn`th.
    fn source(&self, turn: u32) -> u32 {
        let Topology { nodes, local_world } = self.plan.spec.topology();
        let node = (self.rank / local_world + nodes - turn / local_world) % nodes;
        node * local_world + (self.rank + local_world - turn % local_world) % local_world
    }

    /// The keys of a tile, in order.
    fn walk(&self, tile: Tile) -> Vec<Keys> {
        let segments = self.segments();
        let mut keys = Vec::new();
        for span in 0..segments * self.world() {
            let source = self.source(span / segments);
            let segment = (tile.segment + span) % segments;
            let own = self.chunk_of(self.rank, tile.segment);
            let theirs = self.chunk_of(source, segment);
            let end = match self.body.config.causal {
                true if theirs > own => 0,
                true if theirs == own => {
                    (tile.row + TILE_ROWS).min(self.segment_rows(self.rank, tile.segment))
                }
                _ => self.segment_rows(source, segment),
            };
            let rows = (0..end).step_by(TILE_ROWS as usize);
            keys.extend(rows.map(|row| Keys {
                source,
                segment,
                row,
            }));
        }
        keys
    }

    fn attends(&self, rank: u32, chunk: u32) -> bool {
        (0..self.segments()).any(|segment| {
            self.segment_rows(rank, segment) > 0
                && (!self.body.config.causal || self.chunk_of(rank, segment) > chunk)
        })
    }

    /// Tiles of keys of this rank that it sends to `peer`, of each head.
    fn sent_to(&self, peer: u32) -> BTreeSet<Keys> {
        let tile = |tile: u32| Keys {
            source: self.rank,
            segment: tile / self.body.segment_tiles,
            row: tile % self.body.segment_tiles * TILE_ROWS,
        };
        let tiles = (0..self.body.row_tiles).map(tile);
        tiles
            .filter(|keys| {
                keys.row < self.segment_rows(self.rank, keys.segment)
                    && self.attends(peer, self.chunk_of(self.rank, keys.segment))
            })
            .collect()
    }

    /// Whether a rank of the node attends to keys of the chunk.
    fn node_attends(&self, node: u32, chunk: u32) -> bool {
        let topology = self.plan.spec.topology();
        let mut ranks = topology.first_of(node)..topology.first_of(node + 1);
        ranks.any(|rank| self.attends(rank, chunk))
    }

    /// Put `index` of this rank to the node: of which head, and its tiles.
    fn put_to(&self, node: u32, index: u32) -> (u32, Vec<Keys>) {
        let body = self.body;
        let of_segment = body.segment_tiles.div_ceil(body.put_tiles);
        let segments = self.segments();
        let (head, segment) = (index / of_segment / segments, index / of_segment % segments);
        let first = index % of_segment * body.put_tiles * TILE_ROWS;
        let end = (first + body.put_tiles * TILE_ROWS).min(self.segment_rows(self.rank, segment));
        let tiles = (first..end).step_by(TILE_ROWS as usize).map(|row| Keys {
            source: self.rank,
            segment,
            row,
        });
        match self.node_attends(node, self.chunk_of(self.rank, segment)) {
            true => (head, tiles.collect()),
            false => (head, Vec::new()),
        }
    }

    /// The put that brings a tile of this rank's.
    fn put_of(&self, head: u32, keys: Keys) -> u32 {
        let body = self.body;
        let of_segment = body.segment_tiles.div_ceil(body.put_tiles);
        (head * self.segments() + keys.segment) * of_segment
            + keys.row / (body.put_tiles * TILE_ROWS)
    }

    /// Ranks whose keys a tile meets, but its own.
    fn sources(&self, tile: Tile) -> BTreeSet<usize> {
        let sources = self.walk(tile).into_iter().map(|keys| keys.source);
        sources
            .filter(|source| *source != self.rank)
            .map(|source| source as usize)
            .collect()
    }

    /// Tiles of a head of K and V that meet keys of `source`.
    fn readers(&self, source: usize) -> usize {
        let of_first = |tile: &&Tile| self.kv_head(**tile) == 0;
        let tiles = self.tiles();
        let of_first = tiles.iter().filter(of_first);
        of_first
            .filter(|tile| self.sources(**tile).contains(&source))
            .count()
    }

    fn kv_head(&self, tile: Tile) -> u32 {
        let shape = self.body.shape;
        tile.batch * shape.kv_heads as u32 + tile.head / (shape.heads / shape.kv_heads) as u32
    }

    fn tiles(&self) -> Vec<Tile> {
        let tiles = (0..self.body.tiles).map(|index| self.tile_at(index));
        tiles.filter(|tile| !self.is_empty(*tile)).collect()
    }
}

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

/// Ranks that take tiles, and send heads of K and V, in order: until nothing more happens.
struct Run<'a> {
    kernels: &'a [Kernel<'a>],
    /// By rank: tiles that no CTA has taken, last first.
    waiting: Vec<Vec<Tile>>,
    /// By rank: tiles that CTAs have taken.
    taken: Vec<Vec<Tile>>,
    /// By rank: heads of K and V that it has sent.
    sent: Vec<u32>,
    /// By reader, source and slot: tiles that have met the source's keys there.
    told: Vec<Vec<Vec<usize>>>,
}

impl<'a> Run<'a> {
    fn new(kernels: &'a [Kernel<'a>]) -> Self {
        let tiles: Vec<Vec<Tile>> = kernels.iter().map(Kernel::tiles).collect();
        let slots = vec![0; kernels[0].body.kv_slots.max(1) as usize];
        Self {
            kernels,
            told: vec![vec![slots; kernels.len()]; kernels.len()],
            waiting: tiles
                .into_iter()
                .map(|tiles| tiles.into_iter().rev().collect())
                .collect(),
            taken: vec![Vec::new(); kernels.len()],
            sent: vec![0; kernels.len()],
        }
    }

    /// A turn of `rank`; whether anything happened.
    fn turn(&mut self, rank: usize) -> bool {
        let kernel = &self.kernels[rank];
        let heads = kernel.body.kv_heads() as u32;
        let mut happened = false;
        while self.sent[rank] < heads && self.may_send(rank) {
            self.sent[rank] += 1;
            happened = true;
        }
        // Those that send compute when they are done; across nodes, meanwhile.
        let crosses = kernel.plan.network.is_some();
        let sending = if !crosses && self.sent[rank] < heads {
            kernel.body.push_ctas
        } else {
            0
        };
        while self.taken[rank].len() < (kernel.plan.grid_ctas - sending) as usize {
            let Some(tile) = self.waiting[rank].pop() else {
                break;
            };
            self.taken[rank].push(tile);
            happened = true;
        }
        let (done, taken) = std::mem::take(&mut self.taken[rank])
            .into_iter()
            .partition::<Vec<_>, _>(|tile| self.has_come(rank, *tile));
        self.taken[rank] = taken;
        for tile in &done {
            let slot = (kernel.kv_head(*tile) % kernel.body.kv_slots.max(1)) as usize;
            for source in kernel.sources(*tile) {
                self.told[rank][source][slot] += 1;
            }
        }
        happened || !done.is_empty()
    }

    /// Whether the next head has room at all peers that it goes to.
    fn may_send(&self, rank: usize) -> bool {
        let kernel = &self.kernels[rank];
        let (slots, head) = (kernel.body.kv_slots.max(1), self.sent[rank]);
        let earlier = (head / slots) as usize;
        let is_free = |peer: usize| {
            peer == rank
                || kernel.sent_to(peer as u32).is_empty()
                || self.told[peer][rank][(head % slots) as usize]
                    >= earlier * self.kernels[peer].readers(rank)
        };
        let may_send = (0..self.kernels.len()).all(is_free);
        // Whoever is to read what was there has done so.
        let is_late = |peer: usize, tile: &Tile| {
            let reader = &self.kernels[peer];
            reader.kv_head(*tile) + slots == head && reader.sources(*tile).contains(&rank)
        };
        for peer in (0..self.kernels.len()).filter(|_| may_send && head >= slots) {
            let mut left = self.waiting[peer].iter().chain(&self.taken[peer]);
            assert!(!left.any(|tile| is_late(peer, tile)), "{:?}", kernel.body);
        }
        may_send
    }

    fn has_come(&self, rank: usize, tile: Tile) -> bool {
        let kernel = &self.kernels[rank];
        let is_there = |source: usize| self.sent[source] > kernel.kv_head(tile);
        kernel.sources(tile).into_iter().all(is_there)
    }
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

    /// However few slots there are, no rank waits for ever.
    #[test]
    fn every_tile_is_computed(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        let kernels = Kernel::all(&plan);
        let mut run = Run::new(&kernels);
        while (0..kernels.len()).any(|rank| run.turn(rank)) {}
        let heads = kernels[0].body.kv_heads() as u32;
        prop_assert!(run.sent.iter().all(|sent| *sent == heads), "{:?} of {heads} heads sent", run.sent);
        prop_assert!(run.waiting.iter().chain(&run.taken).all(Vec::is_empty), "{:?}", plan.body);
    }

    #[test]
    fn memory_is_that_of_the_slots(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        let kernel = &Kernel::all(&plan)[0];
        prop_assert!(plan.smem_bytes <= plan.device.smem_bytes);
        prop_assert!(plan.grid_ctas <= plan.device.sm_count);
        for regions in [&plan.smem, &plan.workspace.regions] {
            for pair in regions.windows(2) {
                prop_assert!(pair[0].offset_bytes + pair[0].bytes <= pair[1].offset_bytes, "{pair:?}");
            }
        }
        let slots = plan.workspace.regions.iter().find(|region| region.name == "slots");
        let bytes = slots.map_or(0, |region| region.bytes);
        prop_assert_eq!(bytes, if kernel.world() == 1 { 0 } else { kernel.body.slot_bytes(kernel.world()) });
        // Pushing warps have buffers of 64 columns of a tile where queries and keys will be.
        let room = plan.smem.iter().find(|region| region.name == "barriers").expect("barriers");
        prop_assert!(u64::from(kernel.body.push_warps) * 16_384 <= room.offset_bytes);
    }
}
