// The order in which CTAs take tiles of queries.
#pragma once
#include <mk/attention/sequence_table.cuh>
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
  SequenceRows sequence;
};

// Tiles come in groups of kGroupHeads heads, so that the K and V of a group stay in L2. Within a group, tiles with
// later rows come first, since later rows have the most keys under a causal mask. With groups of one head, K and V are
// used in the order in which they arrive.
template <TileSchedulerConfig Config, schedule::TileCounterWorkspace Workspace, class Smem>
struct TileScheduler {
  using Sequence = attention::Sequence<Config>;
  using Table = SequenceTable<Config, Smem>;
  using Counter = schedule::TileCounter<Workspace>;

  static constexpr u32 kHeads = Config::kBatch * Config::kHeads;

  // The number of tiles of a call.
  static MK_DEVICE u32 tiles(const RankContext& ctx, const Smem& smem) { return kHeads * Table::row_tiles(ctx, smem); }

  static MK_DEVICE QueryTile tile(const RankContext& ctx, const Smem& smem, u32 index) {
    const u32 row_tiles = Table::row_tiles(ctx, smem), per_group = Config::kGroupHeads * row_tiles;
    const u32 first = index / per_group * Config::kGroupHeads;
    const u32 heads = min(Config::kGroupHeads, kHeads - first);
    const u32 within = index % per_group;
    const u32 head = first + within % heads;
    const auto [sequence, row_tile] = Table::find(ctx, smem, head / Config::kHeads, row_tiles - 1 - within / heads);
    const u32 chunk_tiles = Sequence::chunk_tiles(sequence);
    return {head / Config::kHeads, head % Config::kHeads, row_tile / chunk_tiles, row_tile % chunk_tiles * Config::kTileRows,
            sequence};
  }

  // Whether a tile has no rows on this rank.
  static MK_DEVICE bool is_empty(const RankContext& ctx, const QueryTile& tile) {
    return Sequence::kUneven && tile.row >= Sequence::chunk_rows(tile.sequence, ctx.rank, tile.rank_chunk);
  }

  // One thread: takes the next tile that has rows on this rank, and returns its index. Returns tiles() or more if no
  // such tile is left.
  static MK_DEVICE u32 next(const RankContext& ctx, const Smem& smem) {
    for (;;) {
      const u32 index = Counter::take(ctx);
      if (index >= tiles(ctx, smem) || !is_empty(ctx, tile(ctx, smem, index))) return index;
    }
  }
};

}  // namespace mk::attention
