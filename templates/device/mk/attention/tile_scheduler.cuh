// The order in which CTAs take tiles of queries.
#pragma once
#include <mk/attention/sequence.cuh>
#include <mk/schedule/tile_counter.cuh>

namespace mk::attention {

template <class Config>
concept TileSchedulerConfig = AttentionConfig<Config> && requires {
  Config::kGroupHeads;  // heads whose tiles take turns
};

// Config::kTileRows queries of one head.
struct QueryTile {
  u32 batch, head;
  u32 rank_chunk, row;  // the chunk of this rank, and the first row within it
};

// Groups of kGroupHeads heads, so that their K and V stay in L2; in a group, tiles with later rows come first. Under a
// causal mask those have the most keys. With groups of one head, K and V are used in the order in which they arrive.
template <TileSchedulerConfig Config, schedule::TileCounterWorkspace Workspace>
struct TileScheduler {
  using Sequence = attention::Sequence<Config>;
  using Counter = schedule::TileCounter<Workspace>;

  static constexpr u32 kHeads = Config::kBatch * Config::kHeads;
  static constexpr u32 kTiles = kHeads * Sequence::kRowTiles;

  static MK_DEVICE QueryTile tile(u32 index) {
    constexpr u32 kPerGroup = Config::kGroupHeads * Sequence::kRowTiles;
    const u32 first = index / kPerGroup * Config::kGroupHeads;
    const u32 heads = min(Config::kGroupHeads, kHeads - first);
    const u32 within = index % kPerGroup;
    const u32 head = first + within % heads, row_tile = Sequence::kRowTiles - 1 - within / heads;
    return {head / Config::kHeads, head % Config::kHeads, row_tile / Sequence::kChunkTiles,
            row_tile % Sequence::kChunkTiles * Config::kTileRows};
  }

  // Whether a tile has no rows on a rank.
  static MK_DEVICE bool is_empty(const QueryTile& tile, u32 rank) {
    return Sequence::kUneven && tile.row >= Sequence::chunk_rows(rank, tile.rank_chunk);
  }

  // One thread: the index of the next tile that has rows on this rank; kTiles or more if there is none.
  static MK_DEVICE u32 next(const RankContext& ctx) {
    for (;;) {
      const u32 index = Counter::take(ctx);
      if (index >= kTiles || !is_empty(tile(index), ctx.rank)) return index;
    }
  }
};

}  // namespace mk::attention
