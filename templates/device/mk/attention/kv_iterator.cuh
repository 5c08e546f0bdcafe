// The blocks of keys that a tile of queries meets.
#pragma once
#include <mk/attention/mask.cuh>
#include <mk/attention/tile_scheduler.cuh>

namespace mk::attention {

// A block: Config::kTileKeys rows of K and V of one rank.
struct KvBlock {
  u32 source;           // the rank
  u32 rank_chunk, row;  // its chunk, and the first row within it
  bool is_diagonal;     // whether the block has the rows of the queries
  u32 keys;             // rows of the chunk from `row` on to which any query attends
};

// Iterates over the blocks in an order that never changes: first the blocks of the own rank, then the blocks of the
// other ranks of this node, backwards from this rank and around, then the blocks of the nodes before this one and
// around. Sums are therefore added in one order in every call, and results are bitwise repeatable.
template <SequenceConfig Config, MaskPolicy Mask>
struct KvIterator {
  using Sequence = attention::Sequence<Config>;
  using Ranks = Topology<Config>;

  const RankContext& ctx;
  QueryTile tile;
  u32 span = 0;  // chunks of all ranks that are finished
  u32 row = 0, end;

  MK_DEVICE KvIterator(const RankContext& ctx, const QueryTile& tile) : ctx(ctx), tile(tile), end(end_row()) {}

  // Returns false after the last block.
  MK_DEVICE bool next(KvBlock& block) {
    while (row >= end) {
      if (++span == Ranks::kWorld * Sequence::kKeyChunks) return false;
      row = 0;
      end = end_row();
    }
    block = {source(), rank_chunk(), row, span == 0 && row == tile.row, end - row};
    row += Config::kTileKeys;
    return true;
  }

 private:
  MK_DEVICE u32 source() const {
    const u32 turn = span / Sequence::kKeyChunks;
    const u32 node = (ctx.rank / Ranks::kLocalWorld + Ranks::kNodes - turn / Ranks::kLocalWorld) % Ranks::kNodes;
    return node * Ranks::kLocalWorld + (ctx.rank + Ranks::kWorld - turn) % Ranks::kLocalWorld;
  }

  MK_DEVICE u32 rank_chunk() const { return (tile.rank_chunk + span) % Sequence::kKeyChunks; }

  // Returns the end of the rows of the chunk to which any query attends.
  MK_DEVICE u32 end_row() const {
    const u32 source_rank = source(), source_chunk = rank_chunk();
    if constexpr (Mask::kIsCausal) {
      const u32 own = Sequence::chunk_of(ctx.rank, tile.rank_chunk), other = Sequence::chunk_of(source_rank, source_chunk);
      if (other == own) return min(tile.row + Config::kTileRows, Sequence::chunk_rows(tile.sequence, ctx.rank, tile.rank_chunk));
      if (!Sequence::template attends<Mask>(own, other)) return 0;
    }
    return Sequence::chunk_rows(tile.sequence, source_rank, source_chunk);
  }
};

}  // namespace mk::attention
