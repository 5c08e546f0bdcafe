//! What the device code of kernels computes: tiles, keys, parts and puts. The host's compiler takes the headers that kernels
//! include and the text that instantiates them; a program prints what they compute.

use super::plans;
use crate::cases;
use mkernel_compile::{HostCxx, headers, render};
use mkernel_spec::plan::{AttentionPlan, Body, TILE_ROWS};
use mkernel_spec::{KernelPlan, Target};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use std::{fs, iter};

/// Plans whose kernels are compiled, at most; all of them in one program.
const PLANS: usize = 48;

/// A tile of queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct Tile {
    pub batch: u32,
    pub head: u32,
    /// The rank's chunk of the sequence, from 0.
    pub chunk: u32,
    /// The first row within it.
    pub row: u32,
}

/// A tile of keys of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct Keys {
    pub source: u32,
    pub chunk: u32,
    pub row: u32,
}

/// A rank's chunk of the sequence.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Chunk {
    pub number: u32,
    pub rows: u32,
}

/// 64 columns of a tile of K or V, the ranks that it is sent to, and the put that brings it to other nodes.
#[derive(Clone, Debug, Deserialize)]
pub struct Part {
    pub head: u32,
    pub chunk: u32,
    pub row: u32,
    pub index: u32,
    pub receivers: BTreeSet<u32>,
    pub put: u32,
}

/// A put: tiles of a chunk of a head, and by node whether it needs them.
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
    /// By tile of rows.
    blocks: Vec<Vec<Keys>>,
    readers: Vec<u32>,
    parts: Vec<Part>,
    puts: Vec<Put>,
}

/// One rank of a kernel.
pub struct Kernel {
    pub plan: KernelPlan,
    pub body: AttentionPlan,
    pub rank: u32,
    all_tiles: Vec<Tile>,
    computed: PrintedRank,
}

/// All ranks of each kernel.
pub fn kernels() -> &'static [Vec<Kernel>] {
    static KERNELS: LazyLock<Vec<Vec<Kernel>>> = LazyLock::new(compute);
    &KERNELS
}

fn compute() -> Vec<Vec<Kernel>> {
    let mut runner = TestRunner::new(cases());
    let trees = iter::repeat_with(|| plans().new_tree(&mut runner).expect("plans have no filter"));
    let plans: Vec<KernelPlan> = trees
        .take(PLANS.min(cases().cases as usize))
        .filter_map(|tree| tree.current())
        .collect();
    let printed = print(&plans);
    assert_eq!(printed.len(), plans.len());
    plans.into_iter().zip(printed).map(ranks).collect()
}

fn ranks((plan, printed): (KernelPlan, Printed)) -> Vec<Kernel> {
    let Body::Attention(body) = plan.body.clone() else {
        panic!("attention")
    };
    let rank = |(rank, computed)| Kernel {
        plan: plan.clone(),
        body: body.clone(),
        rank,
        all_tiles: printed.tiles.clone(),
        computed,
    };
    (0..).zip(printed.ranks).map(rank).collect()
}

/// Compiles and runs the program.
fn print(plans: &[KernelPlan]) -> Vec<Printed> {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in headers(Target::Simulator) {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("in the folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }
    let probe = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/properties/attention/probe.hpp");
    let mut program = fs::read_to_string(probe).expect("the probe");
    for (number, plan) in plans.iter().enumerate() {
        let source = render(plan).expect("a plan renders").text;
        let start = source.find("struct Config").expect("what is instantiated");
        let end = source.find("using Roles").expect("roles");
        let names = "using mk::u32;\nusing mk::u64;\nusing mk::u8;\n";
        write!(
            program,
            "namespace k{number} {{\n{names}{}\n}}\n",
            &source[start..end]
        )
        .expect("memory");
    }
    program.push_str("int main() {\n");
    for number in 0..plans.len() {
        writeln!(
            program,
            "Probe<k{number}::Kernel>::print();\nstd::puts(\"\");"
        )
        .expect("memory");
    }
    program.push_str("}\n");
    fs::write(folder.path().join("probe.cpp"), program).expect("a file");

    let cxx =
        HostCxx::load().unwrap_or_else(|error| panic!("this test needs a C++ compiler: {error}"));
    let compiled = Command::new(cxx.program())
        .args(["-std=c++20", "-O0", "-w", "-I.", "probe.cpp", "-o", "probe"])
        .current_dir(&folder)
        .output()
        .expect("the compiler runs");
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let output = Command::new(folder.path().join("probe"))
        .output()
        .expect("it runs");
    let text = String::from_utf8(output.stdout).expect("ASCII");
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

impl Kernel {
    pub fn world(&self) -> u32 {
        self.plan.spec.world()
    }

    pub fn chunks(&self) -> &[Chunk] {
        &self.computed.chunks
    }

    /// All tiles, in the order in which they are taken.
    pub fn all_tiles(&self) -> &[Tile] {
        &self.all_tiles
    }

    /// Those that have rows on this rank.
    pub fn tiles(&self) -> Vec<Tile> {
        let has_rows = |tile: &Tile| tile.row < self.chunks()[tile.chunk as usize].rows;
        let tiles = self.all_tiles.iter().copied();
        tiles.filter(has_rows).collect()
    }

    /// The keys of a tile, in order.
    pub fn blocks(&self, tile: Tile) -> &[Keys] {
        let row_tile = tile.chunk * self.body.segment_tiles + tile.row / TILE_ROWS;
        &self.computed.blocks[row_tile as usize]
    }

    pub fn parts(&self) -> &[Part] {
        &self.computed.parts
    }

    /// Tiles of keys of this rank that it sends to `peer`, of each head.
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

    /// The tiles of a put to the node.
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

    /// Ranks whose keys a tile meets, but its own.
    pub fn sources(&self, tile: Tile) -> BTreeSet<usize> {
        let sources = self.blocks(tile).iter().map(|keys| keys.source);
        sources
            .filter(|source| *source != self.rank)
            .map(|source| source as usize)
            .collect()
    }

    /// Tiles of a head of K and V that are counted as readers of `source`.
    pub fn readers(&self, source: usize) -> usize {
        self.computed.readers[source] as usize
    }

    pub fn kv_head(&self, tile: Tile) -> u32 {
        let shape = self.body.shape;
        tile.batch * shape.kv_heads as u32 + tile.head / (shape.heads / shape.kv_heads) as u32
    }
}
