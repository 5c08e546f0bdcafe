// The sequences of a call: one sequence for all batches, or packed sequences, for which each CTA has a table in shared
// memory.
#pragma once
#include <mk/attention/sequence.cuh>
#include <mk/offsets.cuh>

namespace mk::attention {

template <class Smem>
concept SequenceTableSmem = requires(const Smem smem, u32 sequence) {
  smem.sequence_rows(sequence);  // rows of the sequence over all ranks
  smem.sequence_row(sequence);   // the sequence's first row among the rows of a head on this rank
  smem.sequence_tile(sequence);  // the sequence's first tile among the tiles of a head; one more entry is the number of tiles
};

template <SequenceConfig Config, class Smem>
  requires(!IsPacked<Config> || SequenceTableSmem<Smem>)
struct SequenceTable {
  using Sequence = attention::Sequence<Config>;

  // A tile of rows of a head on a rank.
  struct Tile {
    SequenceRows sequence;
    u32 number;  // number among the tiles of its sequence
  };

  // The number of tiles of a head on each rank. On some ranks, some tiles have no rows.
  static MK_DEVICE u32 row_tiles(const RankContext& ctx, const Smem& smem) {
    if constexpr (IsPacked<Config>) return load_shared(smem.sequence_tile(Config::kSequences));
    else return Sequence::row_tiles(Sequence::of_call(ctx));
  }

  // Returns the tile with a number.
  static MK_DEVICE Tile find(const RankContext& ctx, const Smem& smem, u32 row_tile) {
    if constexpr (IsPacked<Config>) {
      // The last sequence that begins with this tile or before it. Sequences without rows begin where the next sequence
      // does.
      u32 sequence = 0, end = Config::kSequences;
      while (end - sequence > 1) {
        const u32 middle = (sequence + end) / 2;
        if (load_shared(smem.sequence_tile(middle)) <= row_tile) sequence = middle;  // @sequence-table.search
        else end = middle;
      }
      const u32 first_tile = load_shared(smem.sequence_tile(sequence));
      const SequenceRows found{load_shared(smem.sequence_rows(sequence)), load_shared(smem.sequence_row(sequence)), first_tile};
      return {found, row_tile - first_tile};
    } else {
      return {Sequence::of_call(ctx), row_tile};
    }
  }

  // A warp: builds the table from the offsets of the call. Other warps may read the table after the next barrier of the
  // CTA.
  template <class Args>
  static MK_DEVICE void build(const Args& args, const RankContext& ctx, const Smem& smem) {
    const auto offsets = Offsets<Config>::of(args);
    const u32 lane = lane_index();
    u32 rows_before = 0, tiles_before = 0;
    for (u32 first = 0; first < Config::kSequences; first += kWarp) {
      const u32 sequence = first + lane;
      const bool is_there = sequence < Config::kSequences && ctx.refused_rows == 0;  // @sequence-table.wrong
      const SequenceRows of_lane{is_there ? offsets.end(sequence) - offsets.begin(sequence) : 0};
      const u32 rows = Sequence::rank_rows(of_lane, ctx.rank), tiles = Sequence::row_tiles(of_lane);
      const u32 row = advance(rows_before, rows), tile = advance(tiles_before, tiles);  // @sequence-table.places
      if (sequence < Config::kSequences) {
        store_shared(smem.sequence_rows(sequence), of_lane.rows);
        store_shared(smem.sequence_row(sequence), row);
        store_shared(smem.sequence_tile(sequence), tile);
      }
    }
    if (lane == 0) store_shared(smem.sequence_tile(Config::kSequences), tiles_before);
  }

 private:
  // A warp: adds the values of all lanes to `total`. Returns `total` plus the values of the lanes before this one.
  static MK_DEVICE u32 advance(u32& total, u32 value) {
    u32 before = total;
    for (u32 lane = 0; lane < kWarp; ++lane) {
      const u32 other = broadcast(value, lane);
      if (lane < lane_index()) before += other;
      total += other;  // @sequence-table.total
    }
    return before;
  }
};

}  // namespace mk::attention
