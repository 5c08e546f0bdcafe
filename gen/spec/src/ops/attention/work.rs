//! The amounts of attention that ranks compute and send.

use super::config::AttentionShape;
use super::op_plan::AttentionPlan;
use crate::roofline::Traffic;
use crate::topology::Topology;

/// The largest amount of each kind on any rank. The amounts of packed sequences are at most the amounts of one sequence that
/// has all rows. Calls have the most cached rows.
pub(super) fn traffic(op_plan: &AttentionPlan, topology: Topology) -> Traffic {
    let AttentionShape {
        seq,
        heads,
        kv_heads,
        head_dim,
        ..
    } = op_plan.shape;
    let batch = op_plan.batches();
    let world = topology.world();
    let ranks: Vec<RankWork> = (0..world)
        .map(|rank| work(op_plan, topology, rank))
        .collect();
    let most = |of: fn(&RankWork) -> u64| ranks.iter().map(of).max().unwrap_or(0);
    let row_bytes = head_dim * op_plan.config.dtype.bytes();
    Traffic {
        nic_bytes: batch * kv_heads * 2 * row_bytes * most(|work| work.put_rows),
        link_bytes: batch * kv_heads * 2 * row_bytes * most(|work| work.sent_rows),
        memory_bytes: batch
            * row_bytes
            * (2 * heads * most(|work| work.rows) + 2 * kv_heads * (seq + cached(op_plan, world))),
        flops: 4 * batch * heads * head_dim * most(|work| work.pairs),
        factors: op_plan.config.dtype,
    }
}

/// The most cached rows of a sequence, over all ranks.
fn cached(op_plan: &AttentionPlan, world: u32) -> u64 {
    op_plan.cached_rows() * u64::from(world)
}

/// The amounts of one rank for each head.
struct RankWork {
    /// Rows of the rank.
    rows: u64,
    /// Pairs of a query of the rank and a key that the query attends to.
    pairs: u64,
    /// Rows of K that the rank sends inside its node, by receiver: own rows and forwarded rows.
    sent_rows: u64,
    /// Rows of K that the rank puts, by node.
    put_rows: u64,
}

fn work(op_plan: &AttentionPlan, topology: Topology, rank: u32) -> RankWork {
    let world = topology.world();
    let (seq, placement) = (op_plan.shape.seq, op_plan.config.placement);
    let chunks = |rank| {
        let ranges = placement.rows_of(world, rank, seq).into_iter();
        ranges.map(|rows| (rows.start, rows.end - rows.start))
    };
    let mut done = RankWork {
        rows: 0,
        pairs: 0,
        sent_rows: 0,
        put_rows: 0,
    };
    // Ranks of a node, except `rank`, that attend to keys from row `first` on.
    let needs = |node: u32, first: u64| {
        let all = topology.first_of(node)..topology.first_of(node + 1);
        let attends = move |peer: &u32| {
            let mut theirs = chunks(*peer).filter(|(_, rows)| *rows > 0);
            *peer != rank && theirs.any(|(later, _)| !op_plan.config.causal || later > first)
        };
        all.filter(attends).count() as u64
    };
    let node = topology.node_of(rank);
    for (first, rows) in chunks(rank).filter(|(_, rows)| *rows > 0) {
        done.rows += rows;
        done.pairs += match op_plan.config.causal {
            true => rows * first + rows * (rows + 1) / 2,
            false => rows * seq,
        };
        done.pairs += rows * cached(op_plan, world);
        let others = (0..topology.nodes).filter(|other| *other != node);
        let needing = others.filter(|other| needs(*other, first) > 0).count();
        done.put_rows += rows * needing as u64;
    }
    for source in (0..topology.nodes).map(|of| topology.first_of(of) + topology.local_of(rank)) {
        for (first, rows) in chunks(source) {
            done.sent_rows += rows * needs(node, first);
        }
    }
    // Every rank that has rows attends to all cached rows: the cached rows of this rank, and the cached rows that it
    // forwards.
    let readers_on = |node: u32| {
        let all = topology.first_of(node)..topology.first_of(node + 1);
        let has_rows = |peer: &u32| chunks(*peer).any(|(_, rows)| rows > 0);
        all.filter(|peer| *peer != rank).filter(has_rows).count() as u64
    };
    let others = (0..topology.nodes).filter(|other| *other != node);
    let needing = others.filter(|other| readers_on(*other) > 0).count() as u64;
    done.put_rows += op_plan.cached_rows() * needing;
    done.sent_rows += op_plan.cached_rows() * u64::from(topology.nodes) * readers_on(node);
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{AttentionConfig, AttentionOp, Dim, Placement};
    use crate::device::Device;
    use crate::ops::attention::plan;
    use crate::parts::BodyPlan;

    fn one_node(world: u32) -> Topology {
        Topology {
            nodes: 1,
            local_world: world,
        }
    }

    fn plan(world: u32, seq: u64, causal: bool, placement: Placement) -> BodyPlan<AttentionPlan> {
        let config = AttentionConfig {
            batch: Dim::Static(1),
            seq: Dim::Static(seq),
            heads: Dim::Static(4),
            kv_heads: Dim::Static(2),
            head_dim: Dim::Static(128),
            causal,
            placement,
            ..AttentionConfig::new(AttentionOp::RingAttention)
        };
        let shape = config.shape().expect("sizes");
        plan::plan(&config, shape, one_node(world), &Device::h200()).expect("a plan")
    }

    /// Every pair counts once at every length. Every row is sent once to each rank that needs the row.
    #[test]
    fn ranks_share_all_pairs() {
        for world in [1, 2, 4, 8] {
            for seq in [1, 7, 100, 129, 1000, 4096] {
                for placement in Placement::ALL {
                    for causal in [false, true] {
                        let op_plan = plan(world, seq, causal, placement).op_plan;
                        let ranks: Vec<_> = (0..world)
                            .map(|rank| work(&op_plan, one_node(world), rank))
                            .collect();
                        let rows: u64 = ranks.iter().map(|work| work.rows).sum();
                        let pairs: u64 = ranks.iter().map(|work| work.pairs).sum();
                        assert_eq!(rows, seq);
                        assert_eq!(
                            pairs,
                            if causal {
                                seq * (seq + 1) / 2
                            } else {
                                seq * seq
                            }
                        );
                        let sent: u64 = ranks.iter().map(|work| work.sent_rows).sum();
                        assert!(
                            sent <= seq * u64::from(world - 1),
                            "{world} {seq} {placement}"
                        );
                    }
                }
            }
        }
    }

    /// A row is sent once to a node, and from there to each other rank of the node; with a mask, only to ranks that
    /// have later rows.
    #[test]
    fn a_row_crosses_to_a_node_once() {
        let op_plan = plan(8, 8192, false, Placement::Contiguous).op_plan;
        let (nodes, local_world) = (2, 4);
        let topology = Topology { nodes, local_world };
        for rank in 0..8 {
            let work = work(&op_plan, topology, rank);
            assert_eq!((work.put_rows, work.sent_rows), (1024, 2 * 3 * 1024));
        }
        let op_plan = plan(8, 8192, true, Placement::Contiguous).op_plan;
        let work = |rank| work(&op_plan, topology, rank);
        assert_eq!((work(3).put_rows, work(4).put_rows), (1024, 0));
        // Rank 4 sends its own rows and the rows of rank 0 to three ranks each. Rank 7 sends its own rows to no rank,
        // and the rows of rank 3 to three ranks.
        assert_eq!((work(4).sent_rows, work(7).sent_rows), (6 * 1024, 3 * 1024));
        assert_eq!((work(0).sent_rows, work(3).sent_rows), (3 * 1024, 0));
    }

    #[test]
    fn zigzag_gives_all_ranks_equal_work_with_a_mask() {
        let op_plan = plan(8, 8192, true, Placement::Zigzag).op_plan;
        let pairs: Vec<u64> = (0..8)
            .map(|rank| work(&op_plan, one_node(8), rank).pairs)
            .collect();
        assert!(
            pairs.iter().all(|of_rank| *of_rank == pairs[0]),
            "{pairs:?}"
        );
        let op_plan = plan(8, 8192, true, Placement::Contiguous).op_plan;
        let sent = |rank| work(&op_plan, one_node(8), rank).sent_rows;
        assert_eq!(
            (sent(0), sent(7)),
            (7 * 1024, 0),
            "nobody needs the last rows"
        );
    }

    #[test]
    fn a_plan_stays_in_its_memory() {
        for world in [1, 2, 4, 8] {
            let plan = plan(world, 5000, true, Placement::Zigzag);
            assert!(plan.smem_bytes <= Device::h200().smem_bytes);
            let ends = |regions: &[crate::parts::Region]| {
                regions
                    .windows(2)
                    .all(|pair| pair[0].offset_bytes + pair[0].bytes <= pair[1].offset_bytes)
            };
            assert!(ends(&plan.smem) && ends(&plan.workspace.regions));
            assert_eq!(plan.op_plan.stages, 2);
        }
    }
}
