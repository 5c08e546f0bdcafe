// The sequences of a call: a sequence for each batch, or packed sequences. Each CTA has a table in shared memory of packed
// sequences, or of the cached rows of each batch.
#pragma once
#include <mk/attention/sequence.cuh>
#include <mk/cached_rows.cuh>
#include <mk/offsets.cuh>

namespace mk::attention {

template <class Smem>
concept SequenceTableSmem = requires(const Smem smem, u32 sequence) {
  smem.sequence_rows(sequence);  // rows of the sequence over all ranks
  smem.sequence_row(sequence);   // the sequence's first row among the rows of a head on this rank
  smem.sequence_tile(sequence);  // the sequence's first tile among the tiles of a head; one more entry is the number of tiles
};

template <class Smem>
concept CacheTableSmem = requires(const Smem smem, u32 batch, u32 source) {
  smem.cached_rows(batch, source);  // cached rows of a batch on a rank
};

template <SequenceConfig Config, class Smem>
  requires((!IsPacked<Config> || SequenceTableSmem<Smem>) && (!HasCache<Config> || CacheTableSmem<Smem>))
struct SequenceTable {
  using Sequence = attention::Sequence<Config>;

  // A tile of rows of a head on a rank.
  struct Tile {
    SequenceRows sequence;
    u32 number;  // number among the tiles of its sequence
  };

  // A tile of keys of a head on a rank.
  struct KeyTile {
    SequenceRows sequence;
    u32 rank_chunk, row;  // the chunk of the rank, and the first row within it
  };

  // The number of tiles of a head on each rank. On some ranks, some tiles have no rows.
  static MK_DEVICE u32 row_tiles(const RankContext& ctx, const Smem& smem) {
    if constexpr (IsPacked<Config>) return load_shared(smem.sequence_tile(Config::kSequences));
    else return Sequence::row_tiles(Sequence::of_call(ctx));
  }

  // The number of tiles of keys of a head on each rank, where some tiles may have no rows. Tiles of cached rows follow
  // the tiles of the call. No query attends to cached rows if the call has no rows.
  static MK_DEVICE u32 key_tiles(const RankContext& ctx, const Smem& smem) {
    const u32 of_call = row_tiles(ctx, smem);
    if constexpr (HasCache<Config>) return of_call == 0 ? 0 : of_call + ceil_div(ctx.most_cached, Config::kTileKeys);
    else return of_call;
  }

  // Returns the tile of keys with a number.
  static MK_DEVICE KeyTile find_keys(const RankContext& ctx, const Smem& smem, u32 batch, u32 key_tile) {
    if constexpr (HasCache<Config>) {
      const u32 of_call = row_tiles(ctx, smem);
      if (key_tile >= of_call) {
        return {find(ctx, smem, batch, 0).sequence, Config::kRankChunks, (key_tile - of_call) * Config::kTileKeys};
      }
    }
    const auto [sequence, tile] = find(ctx, smem, batch, key_tile);
    const u32 chunk_tiles = Sequence::chunk_tiles(sequence);
    return {sequence, tile / chunk_tiles, tile % chunk_tiles * Config::kTileKeys};
  }

  // Returns the tile of a batch with a number. Packed sequences are one batch.
  static MK_DEVICE Tile find(const RankContext& ctx, const Smem& smem, u32 batch, u32 row_tile) {
    if constexpr (IsPacked<Config>) {
      // The last sequence that begins with this tile or before it. Sequences without rows begin at the first tile of
      // the next sequence.
      u32 sequence = 0, end = Config::kSequences;
      while (end - sequence > 1) {
        const u32 middle = (sequence + end) / 2;
        if (load_shared(smem.sequence_tile(middle)) <= row_tile) sequence = middle;
        else end = middle;
      }
      const u32 first_tile = load_shared(smem.sequence_tile(sequence));
      const SequenceRows found{load_shared(smem.sequence_rows(sequence)), load_shared(smem.sequence_row(sequence)), first_tile};
      return {found, row_tile - first_tile};
    } else {
      SequenceRows sequence = Sequence::of_call(ctx);
      if constexpr (HasCache<Config>) sequence.cached = smem.cached_rows(batch, 0);
      return {sequence, row_tile};
    }
  }

  // A warp: builds the table from the offsets, or from the cached rows, of the call. Other warps may read the table after
  // the next barrier of the CTA.
  template <class Args>
  static MK_DEVICE void build(const Args& args, const RankContext& ctx, const Smem& smem) {
    if constexpr (IsPacked<Config>) build_packed(args, ctx, smem);
    else build_cached(args, smem);
  }

 private:
  template <class Args>
  static MK_DEVICE void build_cached(const Args& args, const Smem& smem) {
    const auto cached = CachedRows<Config>::of(args);
    for (u32 i = lane_index(); i < CachedRows<Config>::kCount; i += kWarp) {
      const u32 rank = i / Config::kBatch, batch = i % Config::kBatch;
      store_shared(smem.cached_rows(batch, rank), cached.at(rank, batch));
    }
  }

  template <class Args>
  static MK_DEVICE void build_packed(const Args& args, const RankContext& ctx, const Smem& smem) {
    const auto offsets = Offsets<Config>::of(args);
    const u32 lane = lane_index();
    u32 rows_before = 0, tiles_before = 0;
    for (u32 first = 0; first < Config::kSequences; first += kWarp) {
      const u32 sequence = first + lane;
      const bool is_there = sequence < Config::kSequences && ctx.refused_length == 0;
      const SequenceRows of_lane{is_there ? offsets.end(sequence) - offsets.begin(sequence) : 0};
      const u32 rows = Sequence::rank_rows(of_lane, ctx.rank), tiles = Sequence::row_tiles(of_lane);
      const u32 row = advance(rows_before, rows), tile = advance(tiles_before, tiles);
      if (sequence < Config::kSequences) {
        store_shared(smem.sequence_rows(sequence), of_lane.rows);
        store_shared(smem.sequence_row(sequence), row);
        store_shared(smem.sequence_tile(sequence), tile);
      }
    }
    if (lane == 0) store_shared(smem.sequence_tile(Config::kSequences), tiles_before);
  }

  // A warp: adds the values of all lanes to `total`. Returns `total` plus the values of the lanes before this one.
  static MK_DEVICE u32 advance(u32& total, u32 value) {
    u32 before = total;
    for (u32 lane = 0; lane < kWarp; ++lane) {
      const u32 other = broadcast(value, lane);
      if (lane < lane_index()) before += other;
      total += other;
    }
    return before;
  }
};

}  // namespace mk::attention
