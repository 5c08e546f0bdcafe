// The order of tiles of operators that reduce.
//
// Every tile has an owner, which reduces the tile. The other ranks send the owner their partial sums. A policy decides
// which tiles a rank owns: TilesOfShards for a reduce-scatter, TilesOfRounds for an all-reduce.
#pragma once
#include <mk/gemm/tile_scheduler.cuh>

namespace mk::gemm {

// If each call gives the rows, all numbers are for the most rows.
template <class Config>
concept OwnerConfig = TileConfig<Config> && RasterConfig<Config> && requires {
  Config::kOwners;      // ranks of a node that own tiles
  Config::kShardTiles;  // tiles that a rank owns
  Config::kRoundTiles;  // tiles of each owner in a round; all of its tiles make one round
};

template <class Order>
concept OwnerOrder = TileOrder<Order> && requires(u32 index, u32 owner, const RankContext& ctx, const Tile& tile) {
  Order::rank_of(tile);               // the rank that owns the tile
  Order::owners(ctx);                 // ranks of a node that own tiles
  Order::owner_rows(ctx);             // the most rows that an owner's C has
  Order::shard_tiles(ctx);            // tiles that a rank owns
  Order::shard(ctx);                  // owner_tiles as a divisor
  Order::owner_tiles(ctx);            // tiles that a rank reduces: the tiles of its local rank on all nodes
  Order::node_of(index, ctx);         // the node of the rank that owns tile `index` of a local rank's tiles
  Order::tile_of(owner, index, ctx);  // tile `index` among the tiles that local rank `owner` reduces
  Order::kSharesResults;              // whether all ranks get the rows of all tiles
  Order::rows_of_rank(ctx);           // rows that this rank gets
  Order::tiles_of_rank(ctx);          // tiles of these rows
  Order::kHasGaps;                    // whether some slots have no tile
};

// The owners of a reduce-scatter. A rank owns the tiles of its rows. Config also has kShardRows.
template <OwnerConfig Config>
struct OwnersOfShards {
  using Rows = CallRows<Config>;

  static MK_DEVICE u32 owner_rows(const RankContext& ctx) { return Rows::of_shard(ctx); }
  static MK_DEVICE u32 row_tiles(const RankContext& ctx) { return gemm::row_tiles<Config>(owner_rows(ctx)); }
  static MK_DEVICE u32 shard_tiles(const RankContext& ctx) {
    if constexpr (TakesRows<Config>) return row_tiles(ctx) * Config::kColTiles;
    else return Config::kShardTiles;
  }
  // Across nodes an owner may have no rows, if its peer on another node has rows.
  static MK_DEVICE u32 owners(const RankContext& ctx) {
    if constexpr (!TakesRows<Config> || Config::kNodes > 1) return Config::kOwners;
    else return Rows::ranks(ctx);
  }
};

// The owners of an all-reduce. Ranks own equal numbers of tiles, or lower ranks own one more tile.
template <OwnerConfig Config>
struct OwnersOfTiles : AllRows<Config> {
  using AllRows<Config>::row_tiles;
  using typename AllRows<Config>::Rows;

  static MK_DEVICE u32 owner_rows(const RankContext& ctx) { return Rows::all(ctx); }
  static MK_DEVICE u32 tiles(const RankContext& ctx) { return row_tiles(ctx) * Config::kColTiles; }
  static MK_DEVICE u32 shard_tiles(const RankContext& ctx) {
    if constexpr (!TakesRows<Config>) return Config::kShardTiles;
    else if constexpr (Config::kNodes > 1) return ceil_div(tiles(ctx), Topology<Config>::kWorld);
    else return tiles(ctx) == 0 ? 0 : Divisor<Config, Config::kOwners>{owners(ctx)}.quotient(tiles(ctx) + owners(ctx) - 1);
  }
  static MK_DEVICE u32 owners(const RankContext& ctx) {
    if constexpr (!TakesRows<Config> || Config::kNodes > 1) return Config::kOwners;
    else return min(Config::kOwners, tiles(ctx));
  }
};

// The ranks and nodes that own tiles. Several nodes reduce hierarchically. Local rank g first sums, within its node,
// all tiles that local rank g of any node owns. Within a node, each rank therefore reduces kNodes times as many tiles
// as it owns.
template <OwnerConfig Config, template <class> class Owners>
struct TileOwners : Owners<Config> {
  using Ranks = Topology<Config>;
  using Owners<Config>::shard_tiles;
  using Owners<Config>::owners;

  static MK_DEVICE u32 owner_tiles(const RankContext& ctx) { return Ranks::kNodes * shard_tiles(ctx); }

  static MK_DEVICE u32 slots(const RankContext& ctx) { return owners(ctx) * owner_tiles(ctx); }

  // The rank that owns a tile.
  static MK_DEVICE u32 rank_of(const Tile& tile) { return tile.node * Ranks::kLocalWorld + tile.owner; }

  // The tiles of a local rank come node by node, the tiles of the own node last. A node therefore waits for other nodes
  // only after it has sent all data for which they wait.
  static MK_DEVICE u32 node_of(u32 index, const RankContext& ctx) {
    if (Ranks::kNodes == 1) return 0;
    return (ctx.rank / Ranks::kLocalWorld + 1 + shard(ctx).quotient(index)) % Ranks::kNodes;
  }

  // The index of a tile among the tiles of its rank.
  static MK_DEVICE u32 own_index(const Tile& tile, const RankContext& ctx) {
    return Ranks::kNodes == 1 ? tile.index : shard(ctx).remainder(tile.index);
  }

  // The tiles that a rank owns as a divisor.
  static MK_DEVICE Divisor<Config, Config::kShardTiles> shard(const RankContext& ctx) { return {shard_tiles(ctx)}; }
};

// A rank owns the tiles of its rows of C. Config also has kShardRows, the rows of C on every rank except perhaps the
// last ranks.
template <OwnerConfig Config>
  requires requires { Config::kShardRows; }
struct TilesOfShards : TileOwners<Config, OwnersOfShards> {
  using Owners = TileOwners<Config, OwnersOfShards>;
  using typename Owners::Ranks;
  using typename Owners::Rows;
  using Owners::rank_of;

  static constexpr bool kHasGaps = false;
  static constexpr bool kRaggedRows =
      TakesRows<Config> || Config::kShardRows % Config::kTileM != 0 || Config::kShardRows * Ranks::kWorld != Config::kM;

  static MK_DEVICE Tile tile_of(u32 owner, u32 index, const RankContext& ctx) {
    const u32 in_shard = Ranks::kNodes == 1 ? index : Owners::shard(ctx).remainder(index);
    const TileCoord coord = raster<Config>(in_shard, Owners::row_tiles(ctx));
    return {coord.row, coord.col, owner, index, Owners::node_of(index, ctx)};
  }
  static MK_DEVICE bool is_gap(const Tile&) { return false; }

  static constexpr bool kSharesResults = false;
  static MK_DEVICE u32 rows_of_rank(const RankContext& ctx) { return Rows::of_rank(ctx, ctx.rank); }
  static MK_DEVICE u32 tiles_of_rank(const RankContext& ctx) {
    return ctx.local_rank() < Owners::owners(ctx) ? Owners::shard_tiles(ctx) : 0;
  }

  // The tile at a place of this rank's C. Only for one node.
  static MK_DEVICE Tile tile_at(u32 row, u32 col, const RankContext& ctx) {
    return {row, col, ctx.local_rank(), raster_index<Config>({row, col}, Owners::row_tiles(ctx)), 0};
  }

  // Row tiles begin with a shard, so no tile straddles two shards.
  static MK_DEVICE u32 row_in_a(const Tile& tile, const RankContext& ctx) {
    return rank_of(tile) * Rows::of_shard(ctx) + row_in_c(tile);
  }
  static MK_DEVICE u32 row_in_c(const Tile& tile) { return tile.row * Config::kTileM; }

  static MK_DEVICE u32 rows_of_c(const Tile& tile, const RankContext& ctx) {
    const u32 before = rank_of(tile) * Rows::of_shard(ctx);
    // Every owner of a single node has rows. Across nodes an owner may have no rows, if its peer on another node has
    // rows.
    if (Ranks::kNodes > 1 && before >= Rows::all(ctx)) return 0;
    return min(Rows::of_shard(ctx), Rows::all(ctx) - before);
  }
};

// All ranks have all of C, and owners take tiles in turn. On one node, the tiles of an owner in a round are neighbours.
// Across nodes, all tiles of a rank are neighbours. If owners have unequal numbers of tiles, the last slots of the
// order are gaps.
template <OwnerConfig Config>
struct TilesOfRounds : TileOwners<Config, OwnersOfTiles> {
  using Owners = TileOwners<Config, OwnersOfTiles>;
  using typename Owners::Ranks;
  using Owners::owner_tiles;
  using Owners::row_tiles;
  using Owners::shard_tiles;

  static constexpr bool kHasGaps = TakesRows<Config> || Config::kOwners * Ranks::kNodes * Config::kShardTiles >
                                                            Config::kRowTiles * Config::kColTiles;

  static MK_DEVICE Tile tile_of(u32 owner, u32 index, const RankContext& ctx) {
    const u32 node = Owners::node_of(index, ctx);
    const u32 slot = Ranks::kNodes == 1
                         ? slot_in_rounds(owner, index, ctx)
                         : (node * Ranks::kLocalWorld + owner) * shard_tiles(ctx) + Owners::shard(ctx).remainder(index);
    if (kHasGaps && slot >= Owners::tiles(ctx)) return {kGapRow, 0, owner, index, node};
    const TileCoord coord = raster<Config>(slot, row_tiles(ctx));
    return {coord.row, coord.col, owner, index, node};
  }
  static MK_DEVICE bool is_gap(const Tile& tile) { return kHasGaps && tile.row == kGapRow; }

  static constexpr bool kSharesResults = true;
  static MK_DEVICE u32 rows_of_rank(const RankContext& ctx) { return Owners::owner_rows(ctx); }
  static MK_DEVICE u32 tiles_of_rank(const RankContext& ctx) { return Owners::tiles(ctx); }

  // The tile at a place of C. Only for one node.
  static MK_DEVICE Tile tile_at(u32 row, u32 col, const RankContext& ctx) {
    const u32 slot = raster_index<Config>({row, col}, row_tiles(ctx)), owners = Owners::owners(ctx);
    const Divisor<Config, Config::kOwners * Config::kRoundTiles> round{owners * Config::kRoundTiles};
    const u32 first = round.quotient(slot) * Config::kRoundTiles;
    const Divisor<Config, Config::kRoundTiles> tiles{min(Config::kRoundTiles, owner_tiles(ctx) - first)};
    const u32 within = slot - first * owners;
    return {row, col, tiles.quotient(within), first + tiles.remainder(within), 0};
  }

  // Tile `index` among the tiles that rank `of` owns.
  static MK_DEVICE Tile tile_of_rank(u32 of, u32 index, const RankContext& ctx) {
    if (Ranks::kNodes == 1) return tile_of(of, index, ctx);
    const u32 phase = (of / Ranks::kLocalWorld + Ranks::kPeerNodes - ctx.rank / Ranks::kLocalWorld) % Ranks::kNodes;
    return tile_of(of % Ranks::kLocalWorld, phase * shard_tiles(ctx) + index, ctx);
  }

 private:
  static constexpr u32 kGapRow = Config::kRowTiles;  // the row of gaps, in which no tile lies

  static MK_DEVICE u32 slot_in_rounds(u32 owner, u32 index, const RankContext& ctx) {
    const u32 all = owner_tiles(ctx);
    if (Config::kRoundTiles >= all) return owner * all + index;
    const u32 first = index / Config::kRoundTiles * Config::kRoundTiles;
    const u32 tiles = min(Config::kRoundTiles, all - first);
    return first * Owners::owners(ctx) + owner * tiles + index - first;
  }
};

// Tiles come in rounds of kRoundTiles tiles of each owner. In each round, the tiles of other owners come first. Then
// come own tiles of the previous round, whose partial sums have arrived meanwhile. The link is busy from the first
// round to the last. A rank waits only for tiles that its peers compute earlier in the order, so ranks cannot wait for
// each other in a circle.
template <OwnerConfig Config, template <class> class Owned = TilesOfShards>
struct OwnerRounds : Owned<Config> {
  using typename Owned<Config>::Ranks;
  using Owned<Config>::tile_of;
  using Owned<Config>::owner_tiles;
  using Owned<Config>::owners;

  static MK_DEVICE Tile tile(u32 index, const RankContext& ctx) {
    const u32 own = ctx.local_rank(), tiles = owner_tiles(ctx);
    const bool is_idle = kMayBeIdle && own >= owners(ctx);
    if (Config::kRoundTiles >= tiles) {
      const u32 first_owner = is_idle ? own : own + 1;
      const Divisor<Config, Ranks::kNodes * Config::kShardTiles> owned{tiles};
      return tile_of(all_owners(ctx).remainder(first_owner + owned.quotient(index)), owned.remainder(index), ctx);
    }
    return is_idle ? tile_in_rounds_of_all(index, ctx) : tile_in_rounds(index, ctx);
  }

 private:
  // Whether a rank may own no tiles.
  static constexpr bool kMayBeIdle = TakesRows<Config> || Config::kOwners < Ranks::kLocalWorld;

  // The number of owners, and the number of tiles of all owners in a round.
  static MK_DEVICE Divisor<Config, Config::kOwners> all_owners(const RankContext& ctx) { return {owners(ctx)}; }
  static MK_DEVICE Divisor<Config, Config::kOwners * Config::kRoundTiles> round(const RankContext& ctx) {
    return {owners(ctx) * Config::kRoundTiles};
  }

  // The number of tiles of each owner in the round that begins with tile `first`.
  using RoundTiles = Divisor<Config, Config::kRoundTiles>;
  static MK_DEVICE RoundTiles tiles_of_round(u32 first, const RankContext& ctx) {
    return {min(Config::kRoundTiles, owner_tiles(ctx) - first)};
  }

  // First come the other owners' tiles of the first round. Then, for each later round, come the other owners' tiles of
  // the round and own tiles of the previous round. The remaining own tiles come last.
  static MK_DEVICE Tile tile_in_rounds(u32 index, const RankContext& ctx) {
    const u32 own = ctx.local_rank(), peer_owners = owners(ctx) - 1;
    if (index < peer_owners * Config::kRoundTiles) {
      const u32 owner = all_owners(ctx).remainder(own + 1 + index / Config::kRoundTiles);
      return tile_of(owner, index % Config::kRoundTiles, ctx);
    }
    // Own tiles lag one round behind the tiles of other owners, so all tiles from here on are own tiles.
    const u32 rounds = ceil_div(owner_tiles(ctx), Config::kRoundTiles);
    const u32 own_from = peer_owners * owner_tiles(ctx) + (rounds - 2) * Config::kRoundTiles;
    if (index >= own_from) return tile_of(own, index - peer_owners * owner_tiles(ctx), ctx);
    const u32 later = index - peer_owners * Config::kRoundTiles;
    const u32 first = (1 + round(ctx).quotient(later)) * Config::kRoundTiles;
    const RoundTiles tiles = tiles_of_round(first, ctx);
    const u32 within = round(ctx).remainder(later);
    if (within < peer_owners * tiles.value) {
      const u32 owner = all_owners(ctx).remainder(own + 1 + tiles.quotient(within));
      return tile_of(owner, first + tiles.remainder(within), ctx);
    }
    return tile_of(own, first - Config::kRoundTiles + within - peer_owners * tiles.value, ctx);
  }

  // A rank without tiles of its own computes partial sums for all owners.
  static MK_DEVICE Tile tile_in_rounds_of_all(u32 index, const RankContext& ctx) {
    const u32 first = round(ctx).quotient(index) * Config::kRoundTiles;
    const RoundTiles tiles = tiles_of_round(first, ctx);
    const u32 within = round(ctx).remainder(index);
    const u32 owner = all_owners(ctx).remainder(ctx.local_rank() + tiles.quotient(within));
    return tile_of(owner, first + tiles.remainder(within), ctx);
  }
};

}  // namespace mk::gemm
