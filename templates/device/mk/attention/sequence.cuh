// The sequence, how it is spread over ranks, and the sizes of attention that follow.
#pragma once
#include <mk/rank_context.cuh>

namespace mk::attention {

template <class Config>
concept SequenceConfig = TopologyConfig<Config> && requires {
  Config::kSequence;    // rows over all ranks
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
  // The sequence ends within a chunk, or before the last ones.
  static constexpr bool kUneven = Config::kSequence != kChunks * Config::kChunkRows;
  // Some tiles of keys have fewer rows than others.
  static constexpr bool kRagged = Config::kChunkRows % Config::kTileKeys != 0 || Config::kSequence % Config::kTileKeys != 0;
  static constexpr u32 kChunkTiles = kCeilDiv<Config::kChunkRows, Config::kTileRows>;
  static constexpr u32 kRowTiles = Config::kRankChunks * kChunkTiles;  // of a head on a rank
  static_assert(Config::kRankChunks <= 2 && Config::kTileRows == Config::kTileKeys);

  // A rank numbers its chunks from 0; the number of one in the sequence. With two, it has one of the first half and its
  // mirror image of the second half, so that a causal mask leaves every rank as much work.
  static MK_DEVICE u32 chunk_of(u32 rank, u32 rank_chunk) {
    return Config::kRankChunks == 1 || rank_chunk == 0 ? rank : kChunks - 1 - rank;  // @sequence.mirror
  }

  // Rows that there are of one.
  static MK_DEVICE u32 chunk_rows(u32 rank, u32 rank_chunk) {
    if constexpr (kUneven) {
      const u32 before = chunk_of(rank, rank_chunk) * Config::kChunkRows;
      return before < Config::kSequence ? min(Config::kChunkRows, Config::kSequence - before) : 0;
    } else {
      return Config::kChunkRows;
    }
  }

  // Rows of a head on a rank.
  static MK_DEVICE u32 rank_rows(u32 rank) {
    return chunk_rows(rank, 0) + (Config::kRankChunks == 2 ? chunk_rows(rank, 1) : 0);
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
