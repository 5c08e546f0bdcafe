//! A simulation of the ranks of `ring_attention` in random order, which shows that the slots suffice and no rank waits
//! forever.

use super::kernel::{Kernel, Tile};

/// The state of ranks that take tiles and send heads of K and V in their order, until no rank can continue.
struct Run<'a> {
    kernels: &'a [Kernel],
    /// The tiles of each rank that no CTA has taken, in reverse order.
    waiting: Vec<Vec<Tile>>,
    /// The tiles of each rank that CTAs have taken.
    taken: Vec<Vec<Tile>>,
    /// The number of heads of K and V that each rank has sent.
    sent: Vec<u32>,
    /// The number of tiles that have met the keys in a slot, by reader, source and slot.
    told: Vec<Vec<Vec<usize>>>,
}

impl<'a> Run<'a> {
    fn new(kernels: &'a [Kernel]) -> Self {
        let tiles: Vec<Vec<Tile>> = kernels.iter().map(Kernel::tiles).collect();
        let slots = vec![0; kernels[0].op_plan.kv_slots.max(1) as usize];
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

    /// Advances `rank` as far as possible, and returns whether it has advanced.
    fn turn(&mut self, rank: usize) -> bool {
        let kernel = &self.kernels[rank];
        let heads = kernel.op_plan.kv_heads() as u32;
        let mut happened = false;
        while self.sent[rank] < heads && self.may_send(rank) {
            self.sent[rank] += 1;
            happened = true;
        }
        // On one node, CTAs that send compute only after they have sent everything. On several nodes, CTAs compute
        // meanwhile.
        let crosses = kernel.plan.body().network.is_some();
        let sending = if !crosses && self.sent[rank] < heads {
            kernel.op_plan.push_ctas
        } else {
            0
        };
        while self.taken[rank].len() < (kernel.plan.launch().grid_ctas - sending) as usize {
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
            let slot = (kernel.kv_head(*tile) % kernel.op_plan.kv_slots.max(1)) as usize;
            for source in kernel.sources(*tile) {
                self.told[rank][source][slot] += 1;
            }
        }
        happened || !done.is_empty()
    }

    /// Returns whether all peers have a free slot for the next head.
    fn may_send(&self, rank: usize) -> bool {
        let kernel = &self.kernels[rank];
        let (slots, head) = (kernel.op_plan.kv_slots.max(1), self.sent[rank]);
        let earlier = (head / slots) as usize;
        let is_free = |peer: usize| {
            peer == rank
                || kernel.sent_to(peer as u32).is_empty()
                || self.told[peer][rank][(head % slots) as usize]
                    >= earlier * self.kernels[peer].readers(rank)
        };
        let may_send = (0..self.kernels.len()).all(is_free);
        // All tiles that need the previous contents of the slot have read them.
        let is_late = |peer: usize, tile: &Tile| {
            let reader = &self.kernels[peer];
            reader.kv_head(*tile) + slots == head && reader.sources(*tile).contains(&rank)
        };
        for peer in (0..self.kernels.len()).filter(|_| may_send && head >= slots) {
            let mut left = self.waiting[peer].iter().chain(&self.taken[peer]);
            assert!(
                !left.any(|tile| is_late(peer, tile)),
                "{:?}",
                kernel.op_plan
            );
        }
        may_send
    }

    fn has_come(&self, rank: usize, tile: Tile) -> bool {
        let kernel = &self.kernels[rank];
        let is_there = |source: usize| self.sent[source] > kernel.kv_head(tile);
        kernel.sources(tile).into_iter().all(is_there)
    }
}

/// No rank waits forever, even with one slot.
pub fn every_tile_is_computed(kernels: &[Kernel]) {
    let mut run = Run::new(kernels);
    while (0..kernels.len()).any(|rank| run.turn(rank)) {}
    let heads = kernels[0].op_plan.kv_heads() as u32;
    let (plan, sent) = (&kernels[0].plan.id, &run.sent);
    assert!(
        sent.iter().all(|sent| *sent == heads),
        "{sent:?} of {heads} heads sent: {plan}"
    );
    assert!(
        run.waiting.iter().chain(&run.taken).all(Vec::is_empty),
        "{plan}"
    );
}
