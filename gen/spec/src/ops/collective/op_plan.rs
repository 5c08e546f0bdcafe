//! The part of a plan that only collectives have.

use super::config::{CollectiveConfig, CollectiveOp, CollectiveShape, Protocol, VEC_BYTES};
use crate::ops::gemm::Scales;
use crate::topology::Topology;
use serde::Serialize;

/// Threads of a CTA that sends packets. The number is small, so that small tensors are spread over several SMs.
pub(super) const LL_THREADS: u32 = 256;

/// The part of a plan that only collectives have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CollectivePlan {
    /// The configuration of the operator.
    pub config: CollectiveConfig,
    /// The sizes of the problem.
    pub shape: CollectiveShape,
    /// The protocol by which data travels.
    pub protocol: Protocol,
    /// The number of shots in which `all_reduce` adds up with [`Protocol::Ll`]: 1 or 2; 0 in all other plans.
    pub shots: u32,
    /// The ranks that have shards; `None` if all ranks do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owners: Option<Owners>,
    /// Vectors of every shard, perhaps fewer in the last shards: the vectors of a rank's rows or, for `all_reduce` and
    /// `broadcast`, an equal share for each rank with a shard.
    pub shard_vecs: u64,
    /// Vectors that a warp moves under one flag with [`Protocol::Simple`]; 0 with other protocols.
    pub chunk_vecs: u64,
    /// Vectors of a lane that are under way at a time; 0 with [`Protocol::Ll`].
    pub unroll: u32,
    /// Vectors whose parts a lane adds up at a time; 0 if sums are not computed by chunks.
    pub reduce_unroll: u32,
    /// Chunks of a put across nodes; 0 on one node.
    pub put_chunks: u64,
    /// Warps of every CTA that send, add up, collect and forward; all 0 with [`Protocol::Ll`].
    pub warps: StepWarps,
    /// The normalisation of rows; `None` if rows are not normalised.
    pub norm: Option<RowWarps>,
}

/// The ranks that have shards of the tensor of a broadcast: consecutive local ranks on the root's node, where local rank 0 follows
/// the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Owners {
    /// The rank with the first shard.
    pub first: u32,
    /// The number of the ranks.
    pub count: u32,
}

impl Owners {
    /// The root alone, which sends its tensor to all ranks.
    pub(super) const fn root(root: u32) -> Self {
        let first = root;
        Self { first, count: 1 }
    }

    /// The ranks to which the root sends shards, and which send their shards to all ranks. No rank then sends more than the
    /// tensor. Across nodes, the root also has a shard, the last one, so that the NICs of all ranks share the tensor.
    pub(super) const fn relays(root: u32, topology: Topology) -> Self {
        let local = topology.local_world;
        let first = root - root % local + (root + 1) % local;
        let count = match (topology.nodes, local) {
            (1, 2..) => local - 1,
            _ => local,
        };
        Self { first, count }
    }
}

/// The division of the rows that warps normalise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RowWarps {
    /// Warps that share a row.
    pub warps: u32,
    /// Vectors of a row that each lane has, perhaps fewer in the last lanes.
    pub lane_vecs: u32,
}

impl RowWarps {
    /// A warp for each row.
    #[must_use]
    pub const fn one(row_vecs: u64) -> Self {
        Self {
            warps: 1,
            lane_vecs: row_vecs.div_ceil(32) as u32,
        }
    }

    /// Warps that hold `rows` rows of `row_vecs` vectors in registers, out of `all_warps`. With few rows a lane has one
    /// vector, as without a norm. Warps of a row wait for each other, so a row has at most `all_warps` warps.
    #[must_use]
    pub fn in_registers(rows: u64, row_vecs: u64, all_warps: u64) -> Self {
        const USUAL_LANE_VECS: u64 = 4;
        let lanes = 32 * all_warps;
        let spread = (rows * row_vecs).div_ceil(lanes).min(USUAL_LANE_VECS);
        let least = row_vecs.div_ceil(lanes);
        let warps = row_vecs.div_ceil(32 * spread.max(least));
        Self {
            warps: warps as u32,
            lane_vecs: row_vecs.div_ceil(32 * warps) as u32,
        }
    }
}

/// The number of warps of a CTA for each step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StepWarps {
    /// Warps that send own chunks to the peers of the node.
    pub push: u32,
    /// Warps that add up.
    pub reduce: u32,
    /// Warps that copy chunks of other ranks to the result.
    pub collect: u32,
    /// Warps that forward chunks that other nodes have put.
    pub relay: u32,
}

impl CollectivePlan {
    /// Vectors of the tensor.
    #[must_use]
    pub const fn vecs(&self) -> u64 {
        self.shape.m * self.row_vecs()
    }

    /// The plan with the same design for calls of `rows` rows.
    #[must_use]
    pub(crate) fn with_rows(&self, rows: u64, world: u32) -> Self {
        let mut fewer = self.clone();
        fewer.shape.m = rows;
        fewer.shard_vecs = match (self.config.op, self.owners) {
            (_, Some(owners)) => fewer.vecs().div_ceil(owners.count.into()),
            (CollectiveOp::AllReduce, None) => fewer.vecs().div_ceil(world.into()),
            _ => fewer.shape.shard_rows(world) * fewer.row_vecs(),
        };
        fewer
    }

    /// Vectors of a row, with its scales.
    #[must_use]
    pub const fn row_vecs(&self) -> u64 {
        self.config.sent_row_bytes(self.shape.n) / VEC_BYTES
    }

    /// Vectors of a row of X whose elements share a scale in Y; `None` if Y has no scales.
    #[must_use]
    pub const fn scale_vecs(&self) -> Option<u64> {
        match self.config.epilogue.result_scales.shared_by(self.shape.n) {
            None => None,
            Some(cols) => Some(cols * self.config.dtype.bytes() / VEC_BYTES),
        }
    }

    /// Whether warps that share a row send each other the greatest magnitudes of their parts of the row.
    #[must_use]
    pub fn shares_magnitudes(&self) -> bool {
        let of_row = self.config.epilogue.result_scales == Scales::Row;
        of_row && self.norm.is_some_and(|norm| norm.warps > 1)
    }

    /// Bytes of the tensor, with its scales.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.vecs() * VEC_BYTES
    }

    /// Chunks of a full shard.
    #[must_use]
    pub const fn shard_chunks(&self) -> u64 {
        match self.chunk_vecs {
            0 => 0,
            vecs => self.shard_vecs.div_ceil(vecs),
        }
    }

    /// Whether some ranks have no shard.
    #[must_use]
    pub const fn has_idle_ranks(&self, world: u32) -> bool {
        self.vecs().div_ceil(self.shard_vecs) < world as u64
    }

    /// Whether ranks store directly to each other's results, which lie in symmetric memory.
    #[must_use]
    pub const fn stores_to_results(&self, topology: Topology) -> bool {
        self.config.symmetric_result
            && matches!(self.protocol, Protocol::Simple)
            && topology.nodes == 1
            && self.sends_shards(topology)
    }

    /// Whether each call gives the rows.
    #[must_use]
    pub const fn takes_rows(&self) -> bool {
        self.config.m.is_given_at_run_time()
    }

    /// Whether ranks signal each other that they have begun a call. Signals are needed where some pairs of ranks may exchange
    /// no data, where the calls of all ranks must have equal numbers of rows, and where results of earlier calls may be in use
    /// until the call begins.
    #[must_use]
    pub const fn announces_begin(&self, topology: Topology) -> bool {
        let world = topology.world();
        self.takes_rows() && world > 1
            || self.has_idle_ranks(world) && !self.reduces_all()
            || self.stores_to_results(topology)
    }

    /// Whether ranks compare the places of their results in symmetric memory. Ranks compare places wherever they announce
    /// calls, even if this plan does not store to results of other ranks, since plans for more rows may do so.
    #[must_use]
    pub const fn compares_places(&self, topology: Topology) -> bool {
        self.config.symmetric_result && topology.nodes == 1 && self.announces_begin(topology)
    }

    /// Whether the root sends shards to other ranks, which forward them.
    #[must_use]
    pub const fn scatters(&self, topology: Topology) -> bool {
        self.owners.is_some()
            && matches!(self.protocol, Protocol::Simple)
            && topology.local_world > 1
    }

    /// The number of ranks that have shards.
    #[must_use]
    pub const fn sources(&self, topology: Topology) -> u32 {
        match self.owners {
            Some(owners) => owners.count,
            None => topology.world(),
        }
    }

    /// Whether every rank adds up all vectors.
    #[must_use]
    pub const fn reduces_all(&self) -> bool {
        self.shots == 1
    }

    /// Whether shards travel to all ranks, or on one rank to the warps that normalise rows of them.
    #[must_use]
    pub const fn sends_shards(&self, topology: Topology) -> bool {
        let to_rows = topology.world() > 1 || self.norm.is_some();
        to_rows && self.config.op.gathers() && !self.reduces_all()
    }

    /// The channel on which shards are put; it follows the channel of sums.
    #[must_use]
    pub const fn channels(&self) -> u16 {
        match self.config.op {
            CollectiveOp::AllReduce => 2,
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every vector of a row has a lane, every warp of a row has a vector, and the warps of a row run at the same time.
    #[test]
    fn warps_share_rows_without_gaps() {
        for rows in [1, 3, 16, 64, 1000] {
            for row_vecs in [1, 31, 32, 33, 129, 640, 1000, 1024, 16032, 262_144] {
                for all_warps in [8, 16, 1056] {
                    let RowWarps { warps, lane_vecs } =
                        RowWarps::in_registers(rows, row_vecs, all_warps);
                    let (warps, lanes) = (u64::from(warps), 32 * u64::from(lane_vecs));
                    let case = format!("{rows} rows of {row_vecs} vectors, {all_warps} warps");
                    assert!((1..=all_warps).contains(&warps), "{case}: {warps}");
                    assert!((warps - 1) * lanes < row_vecs, "{case}: {warps}, {lanes}");
                    assert!(row_vecs <= warps * lanes, "{case}: {warps}, {lanes}");
                }
            }
        }
    }

    #[test]
    fn few_rows_have_a_vector_for_each_lane() {
        let of = |rows| RowWarps::in_registers(rows, 1024, 1056);
        let (few, more) = (of(16), of(64));
        assert_eq!((few.warps, few.lane_vecs), (32, 1));
        assert_eq!((more.warps, more.lane_vecs), (16, 2));
    }
}
