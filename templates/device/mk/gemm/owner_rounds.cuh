// The order in which ranks reduce each other's tiles.
//
// Every tile has an owner, who reduces it; the others send it their partial sums. Which tiles a rank owns is a policy:
// TilesOfShards for a reduce-scatter, TilesOfRounds for an all-reduce.
#pragma once
#include <mk/gemm/tile_scheduler.cuh>

namespace mk::gemm {

template <class Config>
concept OwnerConfig = TopologyConfig<Config> && TileConfig<Config> && RasterConfig<Config> && requires {
  Config::kM;
  Config::kOwners;      // ranks of a node that own tiles
  Config::kShardTiles;  // tiles that a rank owns
  Config::kRoundTiles;  // tiles of each owner in a round; all of its tiles make one round
};

template <class Order>
concept OwnerOrder = TileOrder<Order> && requires(u32 index, u32 owner, const RankContext& ctx, const Tile& tile) {
  Order::rank_of(tile);               // the rank that owns it
  Order::node_of(index, ctx);         // the node of the rank that owns tile `index` of a local rank's tiles
  Order::tile_of(owner, index, ctx);  // tile `index` of those that local rank `owner` reduces
  Order::kHasGaps;                    // whether some slots have no tile
};

// Which ranks of which nodes own tiles. Several nodes reduce hierarchically: local rank g first sums, within its node,
// all tiles that local rank g of any node owns. So to the ranks of a node, each of them owns kNodes times as many tiles.
template <OwnerConfig Config>
struct TileOwners {
  using Ranks = Topology<Config>;

  static constexpr u32 kOwnerTiles = Ranks::kNodes * Config::kShardTiles;

  // The rank that owns a tile.
  static MK_DEVICE u32 rank_of(const Tile& tile) { return tile.node * Ranks::kLocalWorld + tile.owner; }

  // Tiles of a local rank come node by node, those of the own node last: no node waits for another one before it has sent
  // all that others wait for.
  static MK_DEVICE u32 node_of(u32 index, const RankContext& ctx) {
    if (Ranks::kNodes == 1) return 0;
    return (ctx.rank / Ranks::kLocalWorld + 1 + index / Config::kShardTiles) % Ranks::kNodes;
  }

  // The number of a tile among those that its rank owns.
  static MK_DEVICE u32 own_index(const Tile& tile) {
    return Ranks::kNodes == 1 ? tile.index : tile.index % Config::kShardTiles;
  }
};

// A rank owns the tiles of its rows of C. Config also has kShardRows, the rows of C on every rank but perhaps the last.
template <OwnerConfig Config>
  requires requires { Config::kShardRows; }
struct TilesOfShards : TileOwners<Config> {
  using typename TileOwners<Config>::Ranks;
  using TileOwners<Config>::rank_of;

  static constexpr bool kHasGaps = false;
  static constexpr bool kRaggedRows =
      Config::kShardRows % Config::kTileM != 0 || Config::kShardRows * Ranks::kWorld != Config::kM;

  static MK_DEVICE Tile tile_of(u32 owner, u32 index, const RankContext& ctx) {
    const TileCoord coord = raster<Config>(Ranks::kNodes == 1 ? index : index % Config::kShardTiles);
    return {coord.row, coord.col, owner, index, TileOwners<Config>::node_of(index, ctx)};
  }
  static MK_DEVICE bool is_gap(const Tile&) { return false; }

  // Row tiles begin with a shard, so none straddles two.
  static MK_DEVICE u32 row_in_a(const Tile& tile) { return rank_of(tile) * Config::kShardRows + row_in_c(tile); }  // @order.row-in-a
  static MK_DEVICE u32 row_in_c(const Tile& tile) { return tile.row * Config::kTileM; }

  static MK_DEVICE u32 rows_of_c(const Tile& tile) {
    const u32 before = rank_of(tile) * Config::kShardRows;
    // Every owner of a single node has rows. Across nodes an owner may have none, if its peer on another node has some.
    if (Ranks::kNodes > 1 && before >= Config::kM) return 0;
    return min(Config::kShardRows, Config::kM - before);
  }
};

// All ranks have all of C, and owners take tiles in turn: in a round, the tiles of each owner are neighbours. Across
// nodes, all tiles of a rank are. If owners have unequal numbers of tiles, the last slots of the order are gaps.
template <OwnerConfig Config>
struct TilesOfRounds : TileOwners<Config> {
  using typename TileOwners<Config>::Ranks;
  using TileOwners<Config>::kOwnerTiles;

  static constexpr u32 kTiles = Config::kRowTiles * Config::kColTiles;
  static constexpr bool kHasGaps = Config::kOwners * kOwnerTiles > kTiles;
  static constexpr bool kRaggedRows = Config::kM % Config::kTileM != 0;

  static MK_DEVICE Tile tile_of(u32 owner, u32 index, const RankContext& ctx) {
    const u32 node = TileOwners<Config>::node_of(index, ctx);
    const u32 slot = Ranks::kNodes == 1
                         ? slot_in_rounds(owner, index)
                         : (node * Ranks::kLocalWorld + owner) * Config::kShardTiles + index % Config::kShardTiles;
    if (kHasGaps && slot >= kTiles) return {Config::kRowTiles, 0, owner, index, node};
    const TileCoord coord = raster<Config>(slot);
    return {coord.row, coord.col, owner, index, node};
  }
  static MK_DEVICE bool is_gap(const Tile& tile) { return kHasGaps && tile.row == Config::kRowTiles; }

  // Tile `index` of those that rank `of` owns.
  static MK_DEVICE Tile tile_of_rank(u32 of, u32 index, const RankContext& ctx) {
    if (Ranks::kNodes == 1) return tile_of(of, index, ctx);
    const u32 phase = (of / Ranks::kLocalWorld + Ranks::kPeerNodes - ctx.rank / Ranks::kLocalWorld) % Ranks::kNodes;
    return tile_of(of % Ranks::kLocalWorld, phase * Config::kShardTiles + index, ctx);
  }

  static MK_DEVICE u32 row_in_a(const Tile& tile) { return tile.row * Config::kTileM; }
  static MK_DEVICE u32 row_in_c(const Tile& tile) { return tile.row * Config::kTileM; }
  static MK_DEVICE u32 rows_of_c(const Tile&) { return Config::kM; }

 private:
  static MK_DEVICE u32 slot_in_rounds(u32 owner, u32 index) {
    if constexpr (Config::kRoundTiles == kOwnerTiles) {
      return owner * kOwnerTiles + index;
    } else {
      const u32 first = index / Config::kRoundTiles * Config::kRoundTiles;
      const u32 tiles = min(Config::kRoundTiles, kOwnerTiles - first);
      return first * Config::kOwners + owner * tiles + index - first;
    }
  }
};

// Tiles come in rounds of kRoundTiles tiles of each owner: first the others' tiles of a round, then own tiles of the
// round before, whose partial sums have arrived meanwhile. The link is busy from the first round to the last. No rank
// waits for what a peer computes later in the order, so ranks cannot wait for each other in a circle.
template <OwnerConfig Config, template <class> class Owned = TilesOfShards>
struct OwnerRounds : Owned<Config> {
  using typename TileOwners<Config>::Ranks;
  using TileOwners<Config>::kOwnerTiles;
  using Owned<Config>::tile_of;

  static constexpr u32 kPeerOwners = Config::kOwners - 1;
  static constexpr u32 kRounds = kCeilDiv<kOwnerTiles, Config::kRoundTiles>;
  static constexpr bool kHasIdleRanks = Config::kOwners < Ranks::kLocalWorld;

  // From here on all tiles are own ones, since these lag one round behind the others'.
  static constexpr u32 kOwnFrom =
      kPeerOwners * kOwnerTiles + (kRounds < 2 ? 0 : kRounds - 2) * Config::kRoundTiles;

  static MK_DEVICE Tile tile(u32 index, const RankContext& ctx) {
    const u32 own = ctx.local_rank();
    const bool is_idle = kHasIdleRanks && own >= Config::kOwners;
    if constexpr (kRounds == 1) {
      const u32 first_owner = is_idle ? own : own + 1;
      return tile_of((first_owner + index / kOwnerTiles) % Config::kOwners, index % kOwnerTiles, ctx);
    } else {
      return is_idle ? tile_in_rounds_of_all(index, ctx) : tile_in_rounds(index, ctx);
    }
  }

 private:
  static constexpr u32 kRound = Config::kOwners * Config::kRoundTiles;

  // Tiles of each owner in the round that begins with tile `first`.
  static MK_DEVICE u32 tiles_of_round(u32 first) { return min(Config::kRoundTiles, kOwnerTiles - first); }

  // The others' tiles of the first round; then the others' tiles of a round and own tiles of the one before; then own.
  static MK_DEVICE Tile tile_in_rounds(u32 index, const RankContext& ctx) {
    const u32 own = ctx.local_rank();
    if (index < kPeerOwners * Config::kRoundTiles) {
      return tile_of((own + 1 + index / Config::kRoundTiles) % Config::kOwners, index % Config::kRoundTiles, ctx);  // @order.first-round
    }
    if (index >= kOwnFrom) return tile_of(own, index - kPeerOwners * kOwnerTiles, ctx);
    const u32 later = index - kPeerOwners * Config::kRoundTiles;
    const u32 first = (1 + later / kRound) * Config::kRoundTiles;
    const u32 tiles = tiles_of_round(first);
    const u32 within = later % kRound;
    if (within < kPeerOwners * tiles) {
      return tile_of((own + 1 + within / tiles) % Config::kOwners, first + within % tiles, ctx);
    }
    return tile_of(own, first - Config::kRoundTiles + within - kPeerOwners * tiles, ctx);
  }

  // A rank without tiles of its own computes partial sums for all owners.
  static MK_DEVICE Tile tile_in_rounds_of_all(u32 index, const RankContext& ctx) {
    const u32 first = index / kRound * Config::kRoundTiles;
    const u32 tiles = tiles_of_round(first);
    const u32 within = index % kRound;
    return tile_of((ctx.local_rank() + within / tiles) % Config::kOwners, first + within % tiles, ctx);
  }
};

}  // namespace mk::gemm
