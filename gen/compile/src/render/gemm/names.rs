//! What kernels of one node and of several call the same things.

use serde::Serialize;

/// Expressions in CUDA.
#[derive(Serialize)]
pub(super) struct Names {
    /// This rank's workspace, where there is a `watch` …
    here: &'static str,
    /// … and where there are `args`.
    here_of_args: &'static str,
    /// How many workspaces are in reach.
    ranks_here: &'static str,
    /// This rank's number among them, of a `rank` …
    own_number: &'static str,
    /// … and where there are `args`.
    own_of_args: &'static str,
    /// What `tile_of` must know besides.
    rank_argument: &'static str,
    /// Whether this rank adds up a unit's whole sum …
    is_owned: &'static str,
    /// … and whether it does not do so of a tile.
    is_others: &'static str,
    /// Tiles whose results a rank sends.
    tiles_of_owner: &'static str,
}

static ONE_NODE: Names = Names {
    here: "watch.workspaces[watch.rank]",
    here_of_args: "args.workspaces[args.rank]",
    ranks_here: "kWorld",
    own_number: "rank",
    own_of_args: "args.rank",
    rank_argument: "",
    is_owned: "unit.tile.owner == watch.rank",
    is_others: "tile.owner != args.rank",
    tiles_of_owner: "kOwnerTiles",
};

static SEVERAL_NODES: Names = Names {
    here: "watch.here()",
    here_of_args: "watch.here()",
    ranks_here: "kLocalWorld",
    own_number: "rank % cfg::kLocalWorld",
    own_of_args: "watch.local()",
    rank_argument: ", rank",
    is_owned: "is_own(unit.tile, watch)",
    is_others: "!is_own(tile, watch)",
    tiles_of_owner: "kShardTiles",
};

/// Those of a kernel of so many nodes.
pub(super) fn names(nodes: u32) -> &'static Names {
    match nodes {
        1 => &ONE_NODE,
        _ => &SEVERAL_NODES,
    }
}
