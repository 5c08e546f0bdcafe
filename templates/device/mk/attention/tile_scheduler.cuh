// The order in which CTAs take tiles of queries.
#pragma once
#include <mk/attention/sequence.cuh>
#include <mk/schedule/tile_counter.cuh>

namespace mk::attention {

template <class Config>
concept TileSchedulerConfig = AttentionConfig<Config> && requires {
  Config::kGroupHeads;  // heads whose tiles take turns
};

// A tile of queries: Config::kTileRows queries of one head.
struct QueryTile {
  u32 batch, head;
  u32 rank_chunk, row;  // the chunk of this rank, and the first row within it
};

// Tiles come in groups of kGroupHeads heads, so that the K and V of a group stay in L2. Within a group, tiles with
// later rows come first, since they have the most keys under a causal mask. With groups of one head, K and V are used
// in the order in which they arrive.
template <TileSchedulerConfig Config, schedule::TileCounterWorkspace Workspace>
struct TileScheduler {
  using Sequence = attention::Sequence<Config>;
  using Counter = schedule::TileCounter<Workspace>;

  static constexpr u32 kHeads = Config::kBatch * Config::kHeads;

  // The number of tiles of a call.
  static MK_DEVICE u32 tiles(const RankContext& ctx) { return kHeads * Sequence::row_tiles(ctx); }

  static MK_DEVICE QueryTile tile(const RankContext& ctx, u32 index) {
    const u32 per_group = Config::kGroupHeads * Sequence::row_tiles(ctx), chunk_tiles = Sequence::chunk_tiles(ctx);
    const u32 first = index / per_group * Config::kGroupHeads;
    const u32 heads = min(Config::kGroupHeads, kHeads - first);
    const u32 within = index % per_group;
    const u32 head = first + within % heads, row_tile = Sequence::row_tiles(ctx) - 1 - within / heads;
    return {head / Config::kHeads, head % Config::kHeads, row_tile / chunk_tiles, row_tile % chunk_tiles * Config::kTileRows};
  }

  // Whether a tile has no rows on this rank.
  static MK_DEVICE bool is_empty(const RankContext& ctx, const QueryTile& tile) {
    return Sequence::kUneven && tile.row >= Sequence::chunk_rows(ctx, ctx.rank, tile.rank_chunk);
  }

  // One thread: takes the next tile that has rows on this rank, and returns its index. Returns tiles() or more if there
  // is none.
  static MK_DEVICE u32 next(const RankContext& ctx) {
    for (;;) {
      const u32 index = Counter::take(ctx);
      if (index >= tiles(ctx) || !is_empty(ctx, tile(ctx, index))) return index;
    }
  }
};

}  // namespace mk::attention
