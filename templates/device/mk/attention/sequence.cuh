// The sequence: how it is spread over ranks, and the sizes that follow from it.
#pragma once
#include <mk/rank_context.cuh>

namespace mk::attention {

template <class Config>
concept SequenceConfig = TopologyConfig<Config> && requires {
  Config::kSequence;    // rows over all ranks, or the most rows if each call gives them; the same holds below
  Config::kRankChunks;  // chunks of the sequence that a rank has: 1 (contiguous), or 2 (zigzag)
  Config::kChunkRows;   // rows of a chunk
  Config::kTileRows;    // queries that a CTA takes at a time
  Config::kTileKeys;    // keys of a stage
};

template <class Config>
concept AttentionConfig = SequenceConfig<Config> && requires {
  Config::kBatch;
  Config::kHeads;    // heads of Q and O
  Config::kKvHeads;  // heads of K and V
  Config::kHeadDim;  // columns of a head
};

template <SequenceConfig Config>
struct Sequence {
  using Ranks = Topology<Config>;

  static constexpr u32 kChunks = Ranks::kWorld * Config::kRankChunks;
  // Whether the sequence ends within a chunk, or before the last ones, so that some chunks have fewer rows.
  static constexpr bool kUneven = TakesRows<Config> || Config::kSequence != kChunks * Config::kChunkRows;
  // Whether some tiles of keys have fewer rows than others.
  static constexpr bool kRagged =
      TakesRows<Config> || Config::kChunkRows % Config::kTileKeys != 0 || Config::kSequence % Config::kTileKeys != 0;
  // The tiles of a chunk, and of a head on a rank, for which memory has room.
  static constexpr u32 kChunkTiles = kCeilDiv<Config::kChunkRows, Config::kTileRows>;
  static constexpr u32 kRowTiles = Config::kRankChunks * kChunkTiles;
  static_assert(Config::kRankChunks <= 2 && Config::kTileRows == Config::kTileKeys);

  // Returns the number in the sequence of a rank's chunk. A rank numbers its own chunks from 0. If it has two, one is
  // of the first half of the sequence and the other is its mirror image of the second half. With a causal mask, all
  // ranks then have the same work.
  static MK_DEVICE u32 chunk_of(u32 rank, u32 rank_chunk) {
    return Config::kRankChunks == 1 || rank_chunk == 0 ? rank : kChunks - 1 - rank;  // @sequence.zigzag
  }

  // The number of rows of the sequence in this call, and of every chunk except perhaps the last ones.
  static MK_DEVICE u32 rows(const RankContext& ctx) {
    if constexpr (TakesRows<Config>) return ctx.rows;  // @sequence.rows
    else return Config::kSequence;
  }
  static MK_DEVICE u32 full_chunk_rows(const RankContext& ctx) {
    if constexpr (TakesRows<Config>) return ceil_div(ctx.rows, kChunks);  // @sequence.chunk-rows
    else return Config::kChunkRows;
  }

  // The number of tiles of such a chunk, and of a head on a rank. On some ranks some of them have no rows.
  static MK_DEVICE u32 chunk_tiles(const RankContext& ctx) {
    if constexpr (TakesRows<Config>) return ceil_div(full_chunk_rows(ctx), Config::kTileRows);  // @sequence.tiles
    else return kChunkTiles;
  }
  static MK_DEVICE u32 row_tiles(const RankContext& ctx) { return Config::kRankChunks * chunk_tiles(ctx); }

  // The number of rows of a chunk.
  static MK_DEVICE u32 chunk_rows(const RankContext& ctx, u32 rank, u32 rank_chunk) {
    if constexpr (kUneven) {
      const u32 full = full_chunk_rows(ctx), before = chunk_of(rank, rank_chunk) * full;
      return before < rows(ctx) ? min(full, rows(ctx) - before) : 0;
    } else {
      return Config::kChunkRows;
    }
  }

  // The number of rows of a head on a rank.
  static MK_DEVICE u32 rank_rows(const RankContext& ctx, u32 rank) {
    return chunk_rows(ctx, rank, 0) + (Config::kRankChunks == 2 ? chunk_rows(ctx, rank, 1) : 0);
  }

  // The index of a row of a chunk among the rows of a head on a rank. The second chunk has rows only if the first one
  // is full.
  static MK_DEVICE u32 rank_row(const RankContext& ctx, u32 rank_chunk, u32 row) {
    return rank_chunk * full_chunk_rows(ctx) + row;
  }

  // The number of rows from one head, or batch, of an operand to the next. If the host does not know the rows of the
  // call, operands have room for the most rows. Otherwise they have just the rows of the call.
  template <class Args>
  static MK_DEVICE u32 operand_rows(const Args& args, const RankContext& ctx) {
    if constexpr (TakesRows<Config>) {
      if (args.rows_address != nullptr) return Config::kRankChunks * Config::kChunkRows;  // @sequence.operand-rows
    }
    return rank_rows(ctx, ctx.rank);
  }
};

// Tiles of Q, K and V in shared memory. A tile consists of sub-tiles of 64 columns, one after the other. A row of a
// sub-tile is a line of the 128-byte swizzle.
template <AttentionConfig Config>
struct TileShape {
  static constexpr u32 kSubTileCols = 64;
  static constexpr u32 kSubTileBytes = Config::kTileRows * kSubTileCols * 2;
  static constexpr u32 kSubTiles = Config::kHeadDim / kSubTileCols;
  static constexpr u32 kTileBytes = kSubTiles * kSubTileBytes;
  static constexpr u32 kHeadsPerKv = Config::kHeads / Config::kKvHeads;
};

}  // namespace mk::attention
