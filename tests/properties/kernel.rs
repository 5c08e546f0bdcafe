//! The index arithmetic of a rendered kernel, in Rust: what `templates/parts/*.cu.tera` and `templates/ops/*.cu.tera`
//! do with the constants of its `namespace cfg`, under the same names.
//!
//! Constants are read from the text, not from the plan, so that what is checked is what the GPU would run. Whether a
//! constant is there tells which code was rendered. Arithmetic is in u32 as in the kernel; debug builds panic where it
//! would wrap.

use mkernel_compile::CudaSource;
use mkernel_spec::GemmOp;
use std::collections::HashMap;
use std::ops::Range;

/// Warps of a CTA.
pub const WARPS: u32 = 12;
/// Columns of a sub-tile of the result.
pub const SUB_COLS: u32 = 64;

/// A tile of the result, counted in tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tile {
    pub row: u32,
    pub col: u32,
    /// The rank that adds it up, and its number among that rank's tiles, where tiles have owners.
    pub owner: u32,
    pub index: u32,
}

/// What a CTA computes at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    pub tile: Tile,
    /// Steps of K.
    pub steps: Range<u32>,
    /// Of a tile that CTAs share: which such tile, and which part of its K.
    pub shared: Option<(u32, u32)>,
}

/// What one warp stores before it counts.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub chunk: u32,
    pub slice: u32,
    pub row: u32,
}

/// One rank of a rendered kernel.
pub struct Kernel {
    constants: HashMap<String, u64>,
    /// Whether rows of A are gathered, or shares of the sum scattered or not.
    op: GemmOp,
    pub rank: u32,
}

impl Kernel {
    /// Reads the constants of `source`.
    pub fn read(source: &CudaSource, rank: u32) -> Self {
        let mut constants = HashMap::new();
        for line in source.text.lines() {
            let Some(rest) = line.strip_prefix("constexpr u") else {
                continue;
            };
            let declaration = rest.split(';').next().and_then(|d| d.split_once(' '));
            let (name, value) = declaration
                .and_then(|(_, d)| d.split_once(" = "))
                .expect("a declaration `constexpr TYPE NAME = VALUE;`");
            if let Ok(value) = value.parse() {
                constants.insert(name.to_owned(), value);
            }
        }
        let op = GemmOp::ALL
            .into_iter()
            .find(|op| source.id.starts_with(op.name()))
            .expect("an operator");
        Self {
            constants,
            op,
            rank,
        }
    }

    /// A constant that may not have been rendered.
    pub fn find_u64(&self, name: &str) -> Option<u64> {
        self.constants.get(name).copied()
    }

    /// The same, of 32 bits.
    pub fn find(&self, name: &str) -> Option<u32> {
        self.find_u64(name)
            .map(|value| value.try_into().expect("a u32 holds its value"))
    }

    /// A constant.
    pub fn get(&self, name: &str) -> u32 {
        self.find(name)
            .unwrap_or_else(|| panic!("the kernel has no {name}"))
    }

    // ---- templates/parts/gemm.cu.tera ----

    /// Units of a compute CTA, in the order in which its roles take them.
    pub fn units_of(&self, cta: u32) -> Vec<Unit> {
        let index = cta - self.find("kCommCtas").unwrap_or(0);
        (index..self.get("kUnits"))
            .step_by(self.get("kComputeCtas") as usize)
            .map(|i| self.unit_at(i))
            // Gaps of the order.
            .filter(|unit| unit.tile.row < self.get("kRowTiles"))
            .collect()
    }

    fn unit_at(&self, index: u32) -> Unit {
        let steps = self.get("kSteps");
        let whole = |index| Unit {
            tile: self.tile_at(index),
            steps: 0..steps,
            shared: None,
        };
        let Some(parts) = self.find("kParts") else {
            return whole(index);
        };
        let whole_tiles = self.find("kWholeTiles").unwrap_or(0);
        if index < whole_tiles {
            return whole(index);
        }
        let (tail, part) = ((index - whole_tiles) / parts, (index - whole_tiles) % parts);
        Unit {
            tile: self.tile_at(whole_tiles + tail),
            steps: part * steps / parts..(part + 1) * steps / parts,
            shared: Some((tail, part)),
        }
    }

    /// Sub-tiles of one warpgroup.
    pub fn sub_tiles(&self) -> u32 {
        self.get("kGroupN") / SUB_COLS
    }

    pub fn finishes(&self, unit: &Unit, sub: u32) -> bool {
        let share = |parts: u32| self.sub_tiles() / parts;
        unit.shared
            .is_none_or(|(_, part)| part == sub / share(self.get("kParts")))
    }

    /// The float in `tail_sums` where the sums of 64 columns begin, and one past the last that its threads touch.
    pub fn tail_sums_at(&self, tail: u32, part: u32, group: u32, sub: u32) -> Range<u32> {
        let slot = ((tail * self.get("kParts") + part) * 2 + group) * self.sub_tiles() + sub;
        let (first_thread, last_thread) = (0, 127 * 4);
        let last_step = 7 * 4 * 128;
        slot * 64 * 64 + first_thread..slot * 64 * 64 + last_step + last_thread + 4
    }

    /// The tile at `index` of the order.
    pub fn tile_at(&self, index: u32) -> Tile {
        if self.find("kOwnerTiles").is_some() {
            return self.owned_tile_at(index);
        }
        let place = self.place_at(index);
        if self.op == GemmOp::AgGemm {
            let row = self.row_tile_at(place.row);
            return Tile { row, ..place };
        }
        place
    }

    /// `place_at`, and what `tile_at` of ag_gemm begins with.
    fn place_at(&self, index: u32) -> Tile {
        let per_group = self.get("kGroupRows") * self.get("kColTiles");
        let first = index / per_group * self.get("kGroupRows");
        let rows = self
            .get("kGroupRows")
            .min(self.get("kRowTiles").checked_sub(first).expect("a tile"));
        let within = index % per_group;
        Tile {
            row: first + within % rows,
            col: within / rows,
            owner: 0,
            index: 0,
        }
    }

    // ---- templates/parts/rounds.cu.tera, tile_of of the operators ----

    fn owned_tile_at(&self, index: u32) -> Tile {
        let (owners, rank) = (self.get("kOwners"), self.rank);
        let tiles = self.get("kOwnerTiles");
        let Some(round) = self.find("kRoundTiles") else {
            let next = u32::from(rank < owners);
            return self.tile_of((rank + next + index / tiles) % owners, index % tiles);
        };
        let all = owners * round;
        if rank >= owners {
            let first = index / all * round;
            let n = round.min(tiles - first);
            return self.tile_of((rank + index % all / n) % owners, first + index % all % n);
        }
        let others = owners - 1;
        if index < others * round {
            return self.tile_of((rank + 1 + index / round) % owners, index % round);
        }
        if index >= self.get("kOwnFrom") {
            return self.tile_of(rank, index - others * tiles);
        }
        let later = index - others * round;
        let first = (1 + later / all) * round;
        let n = round.min(tiles - first);
        let within = later % all;
        if within < others * n {
            return self.tile_of((rank + 1 + within / n) % owners, first + within % n);
        }
        self.tile_of(rank, first - round + within - others * n)
    }

    pub fn tile_of(&self, owner: u32, index: u32) -> Tile {
        let at = match self.op {
            GemmOp::GemmRs => index,
            _ => match self.find("kRoundTiles") {
                None => owner * self.get("kOwnerTiles") + index,
                Some(round) => {
                    let first = index / round * round;
                    let n = round.min(self.get("kOwnerTiles") - first);
                    first * self.get("kOwners") + owner * n + index - first
                }
            },
        };
        let row_tiles = self.get("kRowTiles");
        if at >= row_tiles * self.get("kColTiles") {
            return Tile {
                row: row_tiles,
                col: 0,
                owner,
                index,
            };
        }
        Tile {
            owner,
            index,
            ..self.place_at(at)
        }
    }

    /// The tile's first row in A.
    pub fn row_in_a(&self, tile: Tile) -> u32 {
        let shard = self.find("kShardRows").unwrap_or(0);
        tile.owner * shard + tile.row * self.get("kTileM")
    }

    // ---- templates/parts/partials.cu.tera, templates/ops/gemm_ar.cu.tera ----

    pub fn partial_index(&self, source: u32, tile: u32) -> u32 {
        source * self.get("kOwnerTiles") + tile
    }

    /// Bytes of the workspace that hold a source's part of a tile.
    pub fn partial(&self, epoch: u32, source: u32, tile: u32) -> Range<u64> {
        let index = epoch % 2 * self.get("kWorld") * self.get("kOwnerTiles")
            + self.partial_index(source, tile);
        self.tile_bytes("kPartials", self.get("kTileBytes"), index)
    }

    pub fn result_index(&self, tile: Tile) -> u32 {
        tile.owner * self.get("kOwnerTiles") + tile.index
    }

    /// Bytes of the workspace that hold a tile's result.
    pub fn result(&self, epoch: u32, tile: Tile) -> Range<u64> {
        let index = epoch % 2 * self.get("kTiles") + self.result_index(tile);
        let bytes = self.find("kResultBytes");
        let bytes = bytes.unwrap_or_else(|| self.get("kTileBytes"));
        self.tile_bytes("kResults", bytes, index)
    }

    fn tile_bytes(&self, region: &str, bytes: u32, index: u32) -> Range<u64> {
        let (start, bytes) = (self.find_u64(region).expect("a region"), u64::from(bytes));
        start + u64::from(index) * bytes..start + u64::from(index + 1) * bytes
    }

    // ---- templates/ops/ag_gemm.cu.tera ----

    /// The row tile at `position` of the order.
    pub fn row_tile_at(&self, position: u32) -> u32 {
        let (world, rank) = (self.get("kWorld"), self.rank);
        if world == 1 {
            return position;
        }
        let Some(shard) = self.find("kShardRowTiles") else {
            let first = rank * self.get("kShardRows") / self.get("kTileM");
            return (position + first) % self.get("kRowTiles");
        };
        if position < shard {
            return rank * shard + position;
        }
        let remote = position - shard;
        let source = (rank + 1 + remote % (world - 1)) % world;
        source * shard + remote / (world - 1)
    }

    pub fn flag_index(&self, source: u32, chunk: u32, slice: u32) -> u32 {
        (source * self.get("kChunks") + chunk) * self.get("kSlices") + slice
    }

    /// Whether `load_a` reads the rows in place, without waiting.
    pub fn in_place(&self, tile_row: u32) -> bool {
        self.find("kShardRowTiles")
            .is_some_and(|shard| tile_row / shard == self.rank)
    }

    /// `wait_rows`: (source, chunk) of each flag that it awaits, with the slice of its caller.
    pub fn awaited_chunks(&self, tile_row: u32) -> Vec<(u32, u32)> {
        let (shard_rows, chunk_rows) = (self.get("kShardRows"), self.get("kChunkRows"));
        let end = ((tile_row + 1) * self.get("kTileM")).min(self.get("kM"));
        let mut row = tile_row * self.get("kTileM");
        let mut found = Vec::new();
        while row < end {
            let (source, chunk) = (row / shard_rows, row % shard_rows / chunk_rows);
            found.push((source, chunk));
            row = source * shard_rows + ((chunk + 1) * chunk_rows).min(shard_rows);
        }
        found
    }

    /// Rows of this rank's shard.
    pub fn own_rows(&self) -> u32 {
        let before = self.rank * self.get("kShardRows");
        self.get("kM")
            .saturating_sub(before)
            .min(self.get("kShardRows"))
    }

    /// Pieces that SMs push, over all workers: `kPieces` of them.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> {
        let pushes = self.find("kPieceRows").is_some();
        let pieces = self.get("kChunks") * self.get("kSlices") * self.get("kArrivals");
        (0..if pushes { pieces } else { 0 }).map(|i| self.piece_at(i))
    }

    fn piece_at(&self, index: u32) -> Piece {
        let (panel_chunks, arrivals) = (self.get("kPanelChunks"), self.get("kArrivals"));
        let per_panel = panel_chunks * self.get("kSlices") * arrivals;
        let first = index / per_panel * panel_chunks;
        let per_slice = panel_chunks.min(self.get("kChunks") - first) * arrivals;
        let within = index % per_panel;
        let chunk = first + within % per_slice / arrivals;
        Piece {
            chunk,
            slice: within / per_slice,
            row: chunk * self.get("kChunkRows") + within % arrivals * self.get("kPieceRows"),
        }
    }

    /// Rows of the shard that `push_piece` stores; none if the piece lies beyond this rank's rows.
    pub fn piece_rows(&self, piece: Piece) -> Range<u32> {
        let own = self.own_rows();
        if piece.row < own {
            piece.row..piece.row + self.get("kPieceRows").min(own - piece.row)
        } else {
            piece.row..piece.row
        }
    }

    /// Columns that `push_piece` stores.
    pub fn piece_cols(&self, piece: Piece) -> Range<u32> {
        let col = piece.slice * self.get("kSliceCols");
        let rest = self.get("kK").checked_sub(col).expect("a slice within K");
        col..col + self.get("kSliceCols").min(rest)
    }
}
