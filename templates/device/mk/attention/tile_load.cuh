// Loads tiles of Q, K and V of this rank from the operands to shared memory.
#pragma once
#include <mk/attention/sequence.cuh>
#include <mk/tma.cuh>

namespace mk::attention {

// Rows of this rank: the sequence, the number of one of the rank's chunks, the first row within the chunk, and the index
// of this row among the rows of a head of the operand.
struct RankRows {
  SequenceRows sequence;
  u32 rank_chunk, row, first;
};

template <SequenceConfig Config>
MK_DEVICE RankRows query_rows(const SequenceRows& sequence, u32 rank_chunk, u32 row) {
  return {sequence, rank_chunk, row, Sequence<Config>::rank_row(sequence, rank_chunk, row)};
}
template <SequenceConfig Config>
MK_DEVICE RankRows key_rows(const RankContext& ctx, const SequenceRows& sequence, u32 rank_chunk, u32 row) {
  return {sequence, rank_chunk, row, Sequence<Config>::key_row(sequence, ctx.rank, rank_chunk, row)};
}

// One thread: loads sub-tile `sub` of a tile of rows of a head. Rows after the last row of the chunk are filled with
// zeros. Otherwise these rows might hold NaN, and a weight of 0 times NaN is NaN.
//
// The map is [batch, head, row, column]. An extent of the map cannot end with the rows of a chunk behind which the
// rank's other chunk lies, nor with rows that each call gives, which the host may not know. In these cases the map has
// one more dimension, [batch, head, row, box row, column], and begins kTileRows - 1 rows before the operand. A row and
// a box row have one stride, so row z and box row y are row z + y - (kTileRows - 1) of the head. There are kTileRows
// box rows. If a tile has r rows, the box begins at box row kTileRows - r. TMA fills rows beyond the last box row with
// zeros.
template <AttentionConfig Config>
MK_DEVICE void load_sub_tile(const RankContext& ctx, const CUtensorMap& map, u32 to, u32 full, u32 sub, const RankRows& at,
                             u32 head, u32 batch) {
  using Sequence = attention::Sequence<Config>;
  const u32 col = sub * TileShape<Config>::kSubTileCols;
  if constexpr (Sequence::kHasRowsBehind) {
    const u32 end = Sequence::chunk_rows(at.sequence, ctx.rank, at.rank_chunk);
    const u32 rows = min(Config::kTileRows, end - at.row);
    tma_load_5d(to, map, full, col, Config::kTileRows - rows, at.first + rows - 1, head, batch);
  } else {
    tma_load_4d(to, map, full, col, at.first, head, batch);
  }
}

}  // namespace mk::attention
