//! The shards and chunks of the tensor of a collective.

use super::canvas::{Canvas, rank_colour};
use super::grid::{Cell, Grid};
use mkernel_spec::plan::CollectivePlan;
use mkernel_spec::{CollectiveOp, Topology};

pub fn draw(canvas: &mut Canvas, plan: &CollectivePlan, topology: Topology) {
    let world = topology.world();
    canvas.title("The shards of the tensor");
    if world == 1 {
        canvas.note("One rank has the whole tensor, and nothing travels.");
        return;
    }
    if plan.reduces_all() {
        canvas.note(
            "None: every rank sends its tensor to all ranks in packets, and adds up everything.",
        );
        return;
    }
    canvas.note(&how(plan));
    let owners = owners(plan, topology);
    let vecs = plan.vecs();
    let chunk_vecs = if plan.chunk_vecs == 0 {
        plan.shard_vecs
    } else {
        plan.chunk_vecs
    };
    let mut cells = Vec::new();
    for (row, owner) in (0..).zip(&owners) {
        let first = u64::from(row) * plan.shard_vecs;
        let end = (first + plan.shard_vecs).min(vecs);
        for (col, _) in (0..).zip((first..end).step_by(chunk_vecs as usize)) {
            cells.push(Cell {
                at: (row, col),
                fill: rank_colour(*owner, world),
                text: col.to_string(),
            });
        }
    }
    let names = (0..).zip(&owners).map(|(row, owner)| {
        let place = f64::from(row);
        (place..place + 1.0, format!("rank {owner}"))
    });
    Grid {
        size: (owners.len() as u32, plan.shard_chunks().max(1) as u32),
        cells,
        names: names.collect(),
        axes: ("owner".to_owned(), "chunks of the shard".to_owned()),
        ..Grid::default()
    }
    .draw(canvas);
    canvas.legend_of_ranks(world);
}

/// The way of the shards, in sentences.
fn how(plan: &CollectivePlan) -> String {
    let how = match plan.config.op {
        CollectiveOp::AllReduce => {
            "The owner of a shard adds up the vectors of all ranks, and sends the sums to all ranks."
        }
        CollectiveOp::ReduceScatter => {
            "The owner of a shard adds up the vectors of all ranks, and keeps the sums."
        }
        CollectiveOp::AllGather => "The owner of a shard sends it to all ranks.",
        CollectiveOp::AllToAll => "Every rank sends each shard of its tensor to the shard's owner.",
        CollectiveOp::Broadcast => {
            "The root sends each shard to its owner, which sends it to all ranks."
        }
    };
    let chunks = match plan.shard_chunks() {
        0 => "Data travels in packets that carry their own marks, so that a thread waits for its own vectors only.".to_owned(),
        chunks => format!(
            "A shard has {chunks} chunks of up to {} bytes. A warp moves a chunk and then raises the chunk's flag, for which only the readers of this chunk wait.",
            plan.chunk_vecs * 16
        ),
    };
    format!("{how} {chunks}")
}

/// The ranks that have shards, in the order of their shards.
fn owners(plan: &CollectivePlan, topology: Topology) -> Vec<u32> {
    match plan.owners {
        Some(owners) => {
            let node = topology.first_of(topology.node_of(owners.first));
            let local = |i| (topology.local_of(owners.first) + i) % topology.local_world;
            (0..owners.count).map(|i| node + local(i)).collect()
        }
        None => (0..topology.world()).collect(),
    }
}
