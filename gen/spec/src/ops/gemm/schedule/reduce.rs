//! The messages of `gemm_rs` and `gemm_ar` across nodes: tiles in the order of mk/gemm/owner_rounds.cuh, puts of sums as
//! mk/comm/node_sums.cuh makes them, and results as mk/comm/results.cuh sends them.

use super::super::cost::whole_tile_us;
use super::super::op_plan::{GemmPlan, Reduction};
use super::super::reduce::internode::put_rows;
use super::super::spec::GemmSpec;
use super::parts::Parts;
use crate::device::Device;
use crate::parts::schedule::{Action, Expect, Lane, Pace, View};
use crate::roofline::{Bound, Traffic};

const COMPUTE: usize = 0;
const PUT: usize = 1;
const RELAY: usize = 2;

/// The counters of a rank.
#[derive(Clone, Copy)]
enum Count {
    /// Partial sums of the tiles that this rank reduces, by tile.
    Partials,
    /// Sums of other nodes for own tiles, by put.
    SumsIn,
    /// Tiles that can be put, by phase and put. The last phase has results.
    Ready,
    /// Results that a peer has put, by the distance of its node and put.
    Landed,
    /// Results of tiles of other ranks.
    Results,
}

pub(super) struct Reduce {
    parts: Parts,
    reduction: Reduction,
    /// Bytes of a tile of partial sums, and of a tile of results.
    sum_bytes: u64,
    result_bytes: u64,
    takes_rows: bool,
}

impl Reduce {
    pub fn new(
        (plan, reduction): (&GemmPlan, &Reduction),
        spec: GemmSpec<'_>,
        traffic: &Traffic,
        device: &Device,
    ) -> (Self, Pace) {
        let (costs, bound) = (device.costs(), Bound::new(traffic, device));
        let share = |of: f64| {
            if bound.link_us > 0.0 {
                of / bound.link_us
            } else {
                0.0
            }
        };
        let beside = share(bound.compute_us).min(1.0);
        let link_share = costs.push_share - costs.gemm.partials_share_loss * beside;
        let stores = (bound.link_us / link_share / bound.compute_us).min(1.0);
        let parts = Parts {
            plan: plan.clone(),
            topology: spec.topology,
            costs,
            warps: device.arch.spec().warps(),
            tile_us: whole_tile_us(
                plan,
                spec,
                1.0 + costs.gemm.store_loss * stores,
                traffic,
                device,
            ),
        };
        let pace = Pace {
            start_us: costs.launch_us,
            flag_us: costs.flag_us,
            link_share,
            nic_share: costs.nic_share,
        };
        let elems = u64::from(put_rows(spec, plan.tile) * plan.tile.n);
        let reduce = Self {
            parts,
            reduction: reduction.clone(),
            sum_bytes: elems * spec.types().partial.bytes(),
            result_bytes: elems * spec.types().c.bytes(),
            takes_rows: spec.takes_rows(),
        };
        (reduce, pace)
    }

    pub fn lanes(&self, sm_count: u32) -> Vec<Lane> {
        let ctas = sm_count - self.parts.plan.comm_ctas;
        let mut lanes = vec![Lane::new("compute", ctas), Lane::new("put", 1)];
        if self.reduction.results {
            lanes.push(Lane::new("relay", self.parts.senders()));
            lanes.push(Lane::new("collect", 1));
        }
        lanes
    }

    pub fn counters(&self) -> u32 {
        self.counter(Count::Results, 1)
    }

    fn counter(&self, count: Count, index: u32) -> u32 {
        let (puts, nodes) = (self.puts(), self.parts.topology.nodes);
        let partials = self.reduction.owner_tiles;
        let first = match count {
            Count::Partials => return index,
            Count::SumsIn => 0,
            Count::Ready => 1,
            Count::Landed => 1 + nodes,
            Count::Results => 1 + 2 * nodes,
        };
        partials + first * puts + index
    }

    /// The puts of a rank's tiles.
    const fn puts(&self) -> u32 {
        self.reduction
            .shard_tiles
            .div_ceil(self.reduction.put_tiles)
    }

    /// The tiles of a put.
    fn tiles(&self, put: u32) -> u32 {
        let Reduction {
            shard_tiles,
            put_tiles,
            ..
        } = self.reduction;
        put_tiles.min(shard_tiles - put * put_tiles)
    }

    pub fn action(&self, rank: u32, lane: usize, turn: u32) -> Option<Action> {
        let view = View::of(self.parts.topology, rank);
        match lane {
            COMPUTE => self.compute(view, turn),
            PUT => self.put(view, turn),
            RELAY => self.relay(view, turn),
            _ => (turn == 0).then(|| {
                let tiles = (self.parts.topology.world() - 1) * self.reduction.shard_tiles;
                Action {
                    work_us: self.parts.costs.gemm.result_us,
                    ..Action::after(self.counter(Count::Results, 0), tiles)
                }
            }),
        }
    }

    fn compute(&self, view: View, turn: u32) -> Option<Action> {
        let (slot, us, completes) = self.parts.work(turn)?;
        let (owner, index) = self.tile(slot);
        let computed = Action {
            before_us: us,
            ..Action::default()
        };
        if !completes {
            return Some(computed);
        }
        if owner > 0 {
            let partials = self.counter(Count::Partials, index);
            let messages = vec![view.store(owner, self.sum_bytes, partials)];
            return Some(Action {
                messages,
                ..computed
            });
        }
        Some(self.own(view, computed, index))
    }

    /// Adds up a tile that this rank reduces.
    fn own(&self, view: View, computed: Action, index: u32) -> Action {
        let (topology, costs) = (self.parts.topology, self.parts.costs);
        let Reduction {
            shard_tiles,
            put_tiles,
            results,
            ..
        } = self.reduction;
        let (phase, put) = (index / shard_tiles, index % shard_tiles / put_tiles);
        let is_own = phase == topology.peers();
        let expect = |counter, count| Some(Expect { counter, count });
        let sources = topology.local_world - 1 + if is_own { topology.peers() } else { 0 };
        let loaded = u64::from(sources) * self.sum_bytes;
        let mut action = Action {
            expects: [
                expect(
                    self.counter(Count::Partials, index),
                    topology.local_world - 1,
                ),
                None,
            ],
            work_us: costs.gemm.owner_add_us + loaded as f64 / costs.gemm.sums_gb_s / 1e3,
            ..computed
        };
        if is_own {
            action.expects[1] = expect(self.counter(Count::SumsIn, put), topology.peers());
        }
        if is_own && results {
            action.messages = view.to_node(self.result_bytes, |_| self.counter(Count::Results, 0));
        }
        if !is_own || results {
            action.raises = Some(self.counter(Count::Ready, phase * self.puts() + put));
        }
        action
    }

    /// The distance of a tile's owner, and the tile's index among the tiles of the owner, as `OwnerRounds` in
    /// mk/gemm/owner_rounds.cuh.
    fn tile(&self, slot: u32) -> (u32, u32) {
        let Reduction {
            owners,
            owner_tiles,
            round_tiles,
            ..
        } = self.reduction;
        if round_tiles >= owner_tiles {
            return ((1 + slot / owner_tiles) % owners, slot % owner_tiles);
        }
        let peers = owners - 1;
        if slot < peers * round_tiles {
            return (1 + slot / round_tiles, slot % round_tiles);
        }
        let rounds = owner_tiles.div_ceil(round_tiles);
        let own_from = peers * owner_tiles + (rounds - 2) * round_tiles;
        if slot >= own_from {
            return (0, slot - peers * owner_tiles);
        }
        let later = slot - peers * round_tiles;
        let first = (1 + later / (owners * round_tiles)) * round_tiles;
        let tiles = round_tiles.min(owner_tiles - first);
        let within = later % (owners * round_tiles);
        match within < peers * tiles {
            true => (1 + within / tiles, first + within % tiles),
            false => (0, first - round_tiles + within - peers * tiles),
        }
    }

    /// Puts the sums of each node's tiles, and then the results to all peers.
    fn put(&self, view: View, turn: u32) -> Option<Action> {
        let (peers, puts) = (self.parts.topology.peers(), self.puts());
        let begins = if self.takes_rows { peers } else { 0 };
        if turn < begins {
            return Some(view.begin(1 + turn, 0));
        }
        let turn = turn - begins;
        if turn < peers * puts {
            let (phase, put) = (turn / puts, turn % puts);
            let bytes = u64::from(self.tiles(put)) * self.sum_bytes;
            return Some(Action {
                messages: view.put(1 + phase, bytes, 0, |_| self.counter(Count::SumsIn, put)),
                ..Action::after(self.counter(Count::Ready, turn), self.tiles(put))
            });
        }
        let turn = turn - peers * puts;
        if !self.reduction.results {
            return None;
        }
        if turn < begins {
            return Some(view.begin(1 + turn, 1));
        }
        let (put, ahead) = ((turn - begins) / peers, 1 + (turn - begins) % peers);
        (put < puts).then(|| {
            let bytes = u64::from(self.tiles(put)) * self.result_bytes;
            let messages = view.put(ahead, bytes, 1, |back| {
                self.counter(Count::Landed, back * puts + put)
            });
            let ready = self.counter(Count::Ready, peers * puts + put);
            Action {
                messages,
                ..Action::after(ready, self.tiles(put))
            }
        })
    }

    fn relay(&self, view: View, turn: u32) -> Option<Action> {
        let peers = self.parts.topology.peers();
        let (index, ahead) = (turn / peers, view.ahead_to_peer(turn % peers));
        let copies = u64::from(self.parts.topology.local_world - 1);
        let landed = ahead * self.puts() + index / self.reduction.put_tiles;
        (index < self.reduction.shard_tiles).then(|| Action {
            work_us: self.parts.store_us(self.result_bytes * copies),
            messages: view.to_node(self.result_bytes, |_| self.counter(Count::Results, 0)),
            raises: Some(self.counter(Count::Results, 0)),
            ..Action::after(self.counter(Count::Landed, landed), 1)
        })
    }
}
