// The sequence, how it is spread over ranks, and the sizes of attention that follow.
#pragma once
#include <mk/rank_context.cuh>

namespace mk::attention {

template <class Config>
concept SequenceConfig = TopologyConfig<Config> && requires {
  Config::kSequence;    // rows over all ranks; the most of them if each call gives the rows, and so below
  Config::kRankChunks;  // chunks of the sequence that a rank has: 1 (contiguous), or 2 (zigzag)
  Config::kChunkRows;   // rows of a chunk
  Config::kTileRows;    // queries that a CTA takes at a time
  Config::kTileKeys;    // keys of a stage
};

template <class Config>
concept AttentionConfig = SequenceConfig<Config> && requires {
  Config::kBatch;
  Config::kHeads;    // of Q and O
  Config::kKvHeads;  // of K and V
  Config::kHeadDim;  // columns of a head
};

template <SequenceConfig Config>
struct Sequence {
  using Ranks = Topology<Config>;

  static constexpr u32 kChunks = Ranks::kWorld * Config::kRankChunks;
  // The sequence may end within a chunk, or before the last ones.
  static constexpr bool kUneven = TakesRows<Config> || Config::kSequence != kChunks * Config::kChunkRows;
  // Some tiles of keys may have fewer rows than others.
  static constexpr bool kRagged =
      TakesRows<Config> || Config::kChunkRows % Config::kTileKeys != 0 || Config::kSequence % Config::kTileKeys != 0;
  // Tiles of a chunk, and of a head on a rank, for which memory has room.
  static constexpr u32 kChunkTiles = kCeilDiv<Config::kChunkRows, Config::kTileRows>;
  static constexpr u32 kRowTiles = Config::kRankChunks * kChunkTiles;
  static_assert(Config::kRankChunks <= 2 && Config::kTileRows == Config::kTileKeys);

  // A rank numbers its chunks from 0; the number of one in the sequence. With two, it has one of the first half and its
  // mirror image of the second half, so that a causal mask leaves every rank as much work.
  static MK_DEVICE u32 chunk_of(u32 rank, u32 rank_chunk) {
    return Config::kRankChunks == 1 || rank_chunk == 0 ? rank : kChunks - 1 - rank;  // @sequence.zigzag
  }

  // Rows of the sequence in this call, and of all its chunks but perhaps the last ones.
  static MK_DEVICE u32 rows(const RankContext& ctx) {
    if constexpr (TakesRows<Config>) return ctx.rows;  // @sequence.rows
    else return Config::kSequence;
  }
  static MK_DEVICE u32 full_chunk_rows(const RankContext& ctx) {
    if constexpr (TakesRows<Config>) return ceil_div(ctx.rows, kChunks);  // @sequence.chunk-rows
    else return Config::kChunkRows;
  }

  // Tiles of such a chunk, and of a head on a rank. On some ranks some of them have no rows.
  static MK_DEVICE u32 chunk_tiles(const RankContext& ctx) {
    if constexpr (TakesRows<Config>) return ceil_div(full_chunk_rows(ctx), Config::kTileRows);  // @sequence.tiles
    else return kChunkTiles;
  }
  static MK_DEVICE u32 row_tiles(const RankContext& ctx) { return Config::kRankChunks * chunk_tiles(ctx); }

  // Rows that there are of a chunk.
  static MK_DEVICE u32 chunk_rows(const RankContext& ctx, u32 rank, u32 rank_chunk) {
    if constexpr (kUneven) {
      const u32 full = full_chunk_rows(ctx), before = chunk_of(rank, rank_chunk) * full;
      return before < rows(ctx) ? min(full, rows(ctx) - before) : 0;
    } else {
      return Config::kChunkRows;
    }
  }

  // Rows of a head on a rank.
  static MK_DEVICE u32 rank_rows(const RankContext& ctx, u32 rank) {
    return chunk_rows(ctx, rank, 0) + (Config::kRankChunks == 2 ? chunk_rows(ctx, rank, 1) : 0);
  }

  // The number of a row of a chunk among the rows of a head on a rank. The second chunk has rows only if the first is full.
  static MK_DEVICE u32 rank_row(const RankContext& ctx, u32 rank_chunk, u32 row) {
    return rank_chunk * full_chunk_rows(ctx) + row;
  }

  // Rows from one head, or batch, of an operand to the next. Operands have room for the most rows if the host does not know
  // the rows of the call, else they have just those of the call.
  template <class Args>
  static MK_DEVICE u32 operand_rows(const Args& args, const RankContext& ctx) {
    if constexpr (TakesRows<Config>) {
      if (args.rows_address != nullptr) return Config::kRankChunks * Config::kChunkRows;  // @sequence.operand-rows
    }
    return rank_rows(ctx, ctx.rank);
  }
};

// Tiles of Q, K and V in shared memory: sub-tiles of 64 columns, the lines of the 128-byte swizzle, one behind the other.
template <AttentionConfig Config>
struct TileShape {
  static constexpr u32 kSubTileCols = 64;
  static constexpr u32 kSubTileBytes = Config::kTileRows * kSubTileCols * 2;
  static constexpr u32 kSubTiles = Config::kHeadDim / kSubTileCols;
  static constexpr u32 kTileBytes = kSubTiles * kSubTileBytes;
  static constexpr u32 kHeadsPerKv = Config::kHeads / Config::kKvHeads;
};

}  // namespace mk::attention
