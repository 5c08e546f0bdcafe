//! The tiles, keys, parts and puts of kernels, as computed by their device code. A program of the host includes the headers
//! of the kernels and the text that instantiates them, and prints the results.

use super::plans;
use crate::cases;
use crate::host_program;
use mkernel_compile::{CudaSource, render};
use mkernel_spec::plan::{AttentionPlan, OpPlan, TILE_ROWS};
use mkernel_spec::{Arch, Backend, KernelPlan};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::iter;
use std::sync::LazyLock;

/// The largest number of plans whose kernels are compiled. All kernels are in one program.
const PLANS: usize = 48;

/// A tile of queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct Tile {
    pub batch: u32,
    pub head: u32,
    /// The number of the chunk among the chunks of its rank.
    pub chunk: u32,
    /// The first row within the chunk.
    pub row: u32,
}

/// A tile of keys of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct Keys {
    pub source: u32,
    pub chunk: u32,
    pub row: u32,
}

/// A chunk of the sequence that a rank has.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Chunk {
    pub number: u32,
    pub rows: u32,
}

/// A part of a tile of K or V with 64 columns, the ranks to which it is sent, and the put that transfers it to other nodes.
#[derive(Clone, Debug, Deserialize)]
pub struct Part {
    pub head: u32,
    pub chunk: u32,
    pub row: u32,
    pub index: u32,
    pub receivers: BTreeSet<u32>,
    pub put: u32,
}

/// A put of tiles of a chunk of a head, and for each node whether it needs the tiles.
#[derive(Clone, Debug, Deserialize)]
pub struct Put {
    pub head: u32,
    chunk: u32,
    row: u32,
    tiles: u32,
    nodes: Vec<bool>,
}

#[derive(Debug, Deserialize)]
struct Printed {
    tiles: Vec<Tile>,
    ranks: Vec<PrintedRank>,
}

#[derive(Clone, Debug, Deserialize)]
struct PrintedRank {
    chunks: Vec<Chunk>,
    /// The values by tile of rows.
    blocks: Vec<Vec<Keys>>,
    readers: Vec<u32>,
    parts: Vec<Part>,
    puts: Vec<Put>,
}

/// A plan, and the rows of one call if the length is given at run time.
#[derive(Clone, Debug)]
pub struct Case {
    pub plan: KernelPlan,
    pub rows: Option<u64>,
}

/// One rank of a kernel in one call.
pub struct Kernel {
    pub plan: KernelPlan,
    /// The plan of attention with the sizes of the call.
    pub op_plan: AttentionPlan,
    /// Whether the call has the length of the plan.
    pub has_most_rows: bool,
    pub rank: u32,
    all_tiles: Vec<Tile>,
    computed: PrintedRank,
}

/// Returns all ranks of each kernel.
pub fn kernels() -> &'static [Vec<Kernel>] {
    static KERNELS: LazyLock<Vec<Vec<Kernel>>> = LazyLock::new(compute);
    &KERNELS
}

fn compute() -> Vec<Vec<Kernel>> {
    let mut runner = TestRunner::new(cases());
    let trees = iter::repeat_with(|| plans().new_tree(&mut runner).expect("plans have no filter"));
    let plans: Vec<Case> = trees
        .take(PLANS.min(cases().cases as usize))
        .filter_map(|tree| tree.current())
        .collect();
    kernels_of(&plans, &[])
}

/// Returns the ranks of the kernels of these plans, after edits of their text and of their headers.
pub fn kernels_of(plans: &[Case], edits: &[(&str, &str)]) -> Vec<Vec<Kernel>> {
    let mut program = probe(plans).with_headers();
    let of_table = "return load_shared(sequence.cached + rank * sizeof(u32));";
    let of_call = "return 1 + (Config::kCallCached + 131 * rank) % Config::kCachedRows;";
    assert!(program.contains(of_table), "{of_table}");
    program = program.replace(of_table, of_call);
    for (from, to) in edits {
        assert!(program.contains(from), "{from}");
        program = program.replace(from, to);
    }
    let output = host_program::output(&[("probe.cpp", &program)]);
    let text = String::from_utf8(output.stdout).expect("ASCII");
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let printed: Vec<Printed> = text.lines().map(parse).collect();
    assert_eq!(printed.len(), plans.len());
    plans.iter().zip(printed).map(ranks).collect()
}

/// Returns a program that prints the results of each kernel of these plans in one line.
fn probe(plans: &[Case]) -> CudaSource {
    let mut text = include_str!("probe.hpp").to_owned();
    for (number, Case { plan, rows }) in plans.iter().enumerate() {
        let mut source = render(plan).expect("a plan renders").text;
        if let Some(rows) = rows {
            let most = "static constexpr u32 kMaxRows";
            // Ranks have different numbers of cached rows, if there are any.
            let call = format!("kCallRows = {rows}, kCallCached = 7 * {rows}");
            let both = format!("static constexpr u32 {call};\n  {most}");
            source = source.replace(most, &both);
        }
        let start = source.find("struct Config").expect("a configuration");
        let end = source.find("using Roles").expect("roles");
        let names = "using mk::u32;\nusing mk::u64;\nusing mk::u8;\n";
        let kernel = &source[start..end];
        write!(text, "namespace k{number} {{\n{names}{kernel}\n}}\n").expect("memory");
    }
    text.push_str("int main() {\n");
    for number in 0..plans.len() {
        writeln!(text, "Probe<k{number}::Kernel>::print();\nstd::puts(\"\");").expect("memory");
    }
    text.push_str("}\n");
    CudaSource {
        id: "probe".into(),
        arch: Arch::Sm90a,
        backend: Backend::HostCxx,
        text,
    }
}

fn ranks((Case { plan, rows }, printed): (&Case, Printed)) -> Vec<Kernel> {
    let OpPlan::Attention(mut op_plan) = plan.body().op_plan.clone() else {
        panic!("attention")
    };
    let has_most_rows = rows.is_none_or(|rows| rows == op_plan.shape.seq);
    if let Some(rows) = rows {
        let segments = op_plan.config.placement.segments();
        op_plan.shape.seq = *rows;
        op_plan.segment_rows = rows.div_ceil(u64::from(plan.spec.world() * segments)) as u32;
        op_plan.segment_tiles = op_plan.segment_rows.div_ceil(TILE_ROWS);
        op_plan.row_tiles = op_plan.segment_tiles * segments;
        op_plan.tiles = (op_plan.shape.batch * op_plan.shape.heads) as u32 * op_plan.row_tiles;
    }
    let rank = |(rank, computed)| Kernel {
        plan: plan.clone(),
        op_plan: op_plan.clone(),
        has_most_rows,
        rank,
        all_tiles: printed.tiles.clone(),
        computed,
    };
    (0..).zip(printed.ranks).map(rank).collect()
}

impl Kernel {
    pub fn world(&self) -> u32 {
        self.plan.spec.world()
    }

    /// Returns the chunks of the call, followed by cached rows.
    pub fn key_chunks(&self) -> &[Chunk] {
        &self.computed.chunks
    }

    /// Returns the chunks of the call.
    pub fn chunks(&self) -> &[Chunk] {
        let segments = self.op_plan.config.placement.segments();
        &self.computed.chunks[..segments as usize]
    }

    /// Returns the number of tiles of keys of a head: tiles of the call, and the most cached tiles of a rank.
    pub fn key_tiles(kernels: &[Self]) -> u32 {
        let kernel = &kernels[0];
        let cached = kernels
            .iter()
            .flat_map(|of| &of.key_chunks()[of.chunks().len()..]);
        let most = cached.map(|chunk| chunk.rows).max().unwrap_or(0);
        match kernel.op_plan.row_tiles {
            0 => 0,
            of_call => of_call + most.div_ceil(TILE_ROWS),
        }
    }

    /// Returns all tiles in the order in which CTAs take them.
    pub fn all_tiles(&self) -> &[Tile] {
        &self.all_tiles
    }

    /// Returns the tiles that have rows on this rank.
    pub fn tiles(&self) -> Vec<Tile> {
        let has_rows = |tile: &Tile| tile.row < self.chunks()[tile.chunk as usize].rows;
        let tiles = self.all_tiles.iter().copied();
        tiles.filter(has_rows).collect()
    }

    /// Returns the blocks of keys that a tile meets, in order.
    pub fn blocks(&self, tile: Tile) -> &[Keys] {
        let row_tile = tile.chunk * self.op_plan.segment_tiles + tile.row / TILE_ROWS;
        &self.computed.blocks[row_tile as usize]
    }

    pub fn parts(&self) -> &[Part] {
        &self.computed.parts
    }

    /// Returns the tiles of keys that this rank sends to `peer` for each head.
    pub fn sent_to(&self, peer: u32) -> BTreeSet<Keys> {
        let sent = self
            .parts()
            .iter()
            .filter(|part| part.receivers.contains(&peer));
        sent.map(|part| Keys {
            source: self.rank,
            chunk: part.chunk,
            row: part.row,
        })
        .collect()
    }

    pub fn puts(&self) -> &[Put] {
        &self.computed.puts
    }

    /// Returns the tiles of a put to the node.
    pub fn put_to(&self, node: u32, put: &Put) -> Vec<Keys> {
        let tiles = if put.nodes[node as usize] {
            put.tiles
        } else {
            0
        };
        let tile = |tile| Keys {
            source: self.rank,
            chunk: put.chunk,
            row: put.row + tile * TILE_ROWS,
        };
        (0..tiles).map(tile).collect()
    }

    /// Returns the other ranks whose keys a tile meets.
    pub fn sources(&self, tile: Tile) -> BTreeSet<usize> {
        let sources = self.blocks(tile).iter().map(|keys| keys.source);
        sources
            .filter(|source| *source != self.rank)
            .map(|source| source as usize)
            .collect()
    }

    /// Returns the number of tiles of a head of K and V that the device code counts as readers of `source`.
    pub fn readers(&self, source: usize) -> usize {
        self.computed.readers[source] as usize
    }

    pub fn kv_head(&self, tile: Tile) -> u32 {
        let shape = self.op_plan.shape;
        tile.batch * shape.kv_heads as u32 + tile.head / (shape.heads / shape.kv_heads) as u32
    }
}
