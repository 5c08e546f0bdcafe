//! The rows that experts get from ranks, and the sums that ranks get from experts. Routing is known only in a call, so the numbers
//! are averages.

use super::canvas::{Canvas, rank_colour};
use super::grid::{Cell, Grid};
use mkernel_spec::Topology;
use mkernel_spec::plan::{CombinePlan, DispatchPlan, ExpectedRouting};
use std::ops::Range;

/// The rank whose experts are drawn.
const RANK: u32 = 0;

pub fn draw_dispatch(canvas: &mut Canvas, plan: &DispatchPlan, topology: Topology) {
    let world = topology.world();
    let experts = plan.local_experts(world) as u32;
    canvas.title(&match plan.dispatches() {
        true => format!("The tokens that unlock tiles of the experts of rank {RANK}"),
        false => format!("The ranks to which rows of the experts of rank {RANK} return"),
    });
    let across = match &plan.internode {
        Some(internode) => format!(
            " A rank puts a token once to each other node, {} tokens at a time, and a rank there forwards it.",
            internode.chunks.chunk_tokens
        ),
        None => String::new(),
    };
    let returns = match plan.returns() {
        true => {
            " When the hidden rows of an expert are complete, tiles of its down projection follow, whose rows return to their tokens."
        }
        false => "",
    };
    let arrives = format!(
        "The rows of an expert lie rank by rank. CTAs take tiles of {} rows from a counter, expert by expert, in each expert the tiles of near rows first. A tile waits for the tokens of its rows: ranks send {} tokens under one flag.{across}{returns} Numbers are rows if experts are chosen evenly.",
        plan.tile.m, plan.block_tokens
    );
    let leaves = format!(
        "The rows of an expert lie rank by rank. CTAs take tiles of {} rows from a counter, expert by expert, in each expert the rows of the next rank first. Numbers are rows if experts are chosen evenly.",
        plan.tile.m
    );
    canvas.note(if plan.dispatches() { &arrives } else { &leaves });
    let rows = plan.expected_routing(topology).expert_rows / f64::from(world);
    let of_expert =
        |expert| (0..world).map(move |source| cell((expert, source), source, world, rows));
    Grid {
        size: (experts, world),
        cells: (0..experts).flat_map(of_expert).collect(),
        names: (0..experts)
            .map(|expert| name(expert, "expert", RANK * experts + expert))
            .collect(),
        axes: (
            String::new(),
            "rows from the tokens of each rank".to_owned(),
        ),
        ..Grid::default()
    }
    .draw(canvas);
    canvas.legend_of_ranks(world);
}

pub fn draw_combine(canvas: &mut Canvas, plan: &CombinePlan, topology: Topology) {
    let world = topology.world();
    canvas.title("The ranks whose sums tokens wait for");
    let across = match &plan.internode {
        Some(internode) => format!(
            " Sums for another node are added up there first, and travel {} at a time.",
            internode.chunks.chunk_tokens
        ),
        None => String::new(),
    };
    canvas.note(&format!(
        "Each rank adds up its results of a token's experts and sends the sum to the token's rank, which adds up the sums of all ranks in a fixed order.{across} Numbers are tokens with an expert on the rank if experts are chosen evenly."
    ));
    let shape = plan.shape;
    let alone = Topology {
        nodes: 1,
        local_world: world,
    };
    let tokens = match world {
        1 => shape.max_tokens as f64,
        // Every token goes to an equal share of the other ranks.
        _ => {
            ExpectedRouting::of(alone, shape.experts, shape.top_k, shape.max_tokens).sent_tokens
                / f64::from(world - 1)
        }
    };
    let of_rank = |to| (0..world).map(move |from| cell((to, from), from, world, tokens));
    Grid {
        size: (world, world),
        cells: (0..world).flat_map(of_rank).collect(),
        names: (0..world).map(|to| name(to, "to rank", to)).collect(),
        axes: (String::new(), "sums from each rank".to_owned()),
        ..Grid::default()
    }
    .draw(canvas);
    canvas.legend_of_ranks(world);
}

fn cell(at: (u32, u32), source: u32, world: u32, count: f64) -> Cell {
    Cell {
        at,
        fill: rank_colour(source, world),
        text: format!("{count:.0}"),
    }
}

fn name(row: u32, what: &str, number: u32) -> (Range<f64>, String) {
    let place = f64::from(row);
    (place..place + 1.0, format!("{what} {number}"))
}
