// The sequence: its distribution over ranks, and the sizes that follow from it.
#pragma once
#include <mk/element.cuh>
#include <mk/rank_context.cuh>

namespace mk::attention {

template <class Config>
concept SequenceConfig = TopologyConfig<Config> && requires {
  Config::kSequence;    // rows over all ranks; if each call gives the rows, this and the values below are for the most rows
  Config::kRankChunks;  // chunks of the sequence that a rank has: 1 (contiguous), or 2 (zigzag)
  Config::kChunkRows;   // rows of a chunk
  Config::kTileRows;    // queries that a CTA takes at a time
  Config::kTileKeys;    // keys of a stage
};

template <class Config>
concept AttentionConfig = SequenceConfig<Config> && requires {
  typename Config::Element;  // of Q, K, V and O
  Config::kBatch;
  Config::kHeads;    // heads of Q and O
  Config::kKvHeads;  // heads of K and V
  Config::kHeadDim;  // columns of a head
};

// A sequence of a call.
struct SequenceRows {
  u32 rows;  // rows over all ranks
  // For packed sequences: the sequence's first row among the rows of a head on this rank, and its first tile among the
  // tiles of a head. Both have one value on all ranks.
  u32 first_row = 0, first_tile = 0;
  // The address in shared memory of the numbers of cached rows of the sequence on each rank.
  u32 cached = 0;
};

// The most cached rows of a sequence on a rank.
template <SequenceConfig Config>
constexpr u32 kMostCachedRows = 0;
template <SequenceConfig Config>
  requires HasCache<Config>
constexpr u32 kMostCachedRows<Config> = Config::kCachedRows;

// The number of tiles of a chunk, or of a chunk of each packed sequence, for which memory has room.
template <SequenceConfig Config>
constexpr u32 kMostChunkTiles = kCeilDiv<Config::kChunkRows, Config::kTileRows>;
template <SequenceConfig Config>
  requires IsPacked<Config>
constexpr u32 kMostChunkTiles<Config> = Config::kChunkTiles;

template <SequenceConfig Config>
struct Sequence {
  using Ranks = Topology<Config>;

  static constexpr u32 kChunks = Ranks::kWorld * Config::kRankChunks;
  // Whether the sequence ends within a chunk, or before the last chunks, so that some chunks have fewer rows than other
  // chunks.
  static constexpr bool kUneven = TakesRows<Config> || Config::kSequence != kChunks * Config::kChunkRows;
  // Whether some tiles of keys have fewer rows than other tiles.
  static constexpr bool kRagged =
      TakesRows<Config> || Config::kChunkRows % Config::kTileKeys != 0 || Config::kSequence % Config::kTileKeys != 0;
  // Whether the rows in memory behind a chunk, within a tile, may be rows of another chunk of this rank.
  static constexpr bool kHasRowsBehind =
      TakesRows<Config> || (Config::kRankChunks > 1 && Config::kChunkRows % Config::kTileKeys != 0);
  // The numbers of tiles of a chunk, and of a head on a rank, for which memory has room.
  static constexpr u32 kChunkTiles = kMostChunkTiles<Config>;
  static constexpr u32 kRowTiles = Config::kRankChunks * kChunkTiles;
  // The cached rows of a rank are one more chunk of keys, behind the chunks of the call. In the sequence, cached rows
  // come before all rows of the call.
  static constexpr u32 kKeyChunks = Config::kRankChunks + HasCache<Config>;
  static constexpr u32 kKeyTiles = kRowTiles + kCeilDiv<kMostCachedRows<Config>, Config::kTileKeys>;
  static constexpr u32 kCachedChunk = ~0u;
  static_assert(Config::kRankChunks <= 2 && Config::kTileRows == Config::kTileKeys);

  // Returns the number in the sequence of a rank's chunk, or kCachedChunk. A rank numbers its own chunks from 0. If a rank
  // has two chunks of the call, one lies in the first half of the sequence, and the other is its mirror image in the
  // second half. With a causal mask, all ranks then have equal work.
  static MK_DEVICE u32 chunk_of(u32 rank, u32 rank_chunk) {
    if constexpr (HasCache<Config>) {
      if (rank_chunk == Config::kRankChunks) return kCachedChunk;
    }
    return Config::kRankChunks == 1 || rank_chunk == 0 ? rank : kChunks - 1 - rank;
  }

  // Whether queries of a chunk attend to keys of another chunk.
  template <class Mask>
  static MK_DEVICE bool attends(u32 query_chunk, u32 key_chunk) {
    if constexpr (HasCache<Config>) {
      if (key_chunk == kCachedChunk) return true;
    }
    return Mask::attends(query_chunk, key_chunk);
  }

  // The sequence of a call, if the sequences of all batches have equal lengths.
  static MK_DEVICE SequenceRows of_call(const RankContext& ctx)
    requires(!IsPacked<Config>)
  {
    if constexpr (TakesRows<Config>) return {ctx.rows};
    else return {Config::kSequence};
  }

  // The number of rows of every chunk of a sequence except perhaps the last chunks.
  static MK_DEVICE u32 full_chunk_rows(const SequenceRows& sequence) {
    if constexpr (TakesRows<Config>) return ceil_div(sequence.rows, kChunks);
    else return Config::kChunkRows;
  }
  static MK_DEVICE u32 rows(const SequenceRows& sequence) {
    if constexpr (TakesRows<Config>) return sequence.rows;
    else return Config::kSequence;
  }

  // The number of tiles of a full chunk, and of a head on a rank. On some ranks, some tiles have no rows.
  static MK_DEVICE u32 chunk_tiles(const SequenceRows& sequence) {
    if constexpr (TakesRows<Config>) return ceil_div(full_chunk_rows(sequence), Config::kTileRows);
    else return kChunkTiles;
  }
  static MK_DEVICE u32 row_tiles(const SequenceRows& sequence) { return Config::kRankChunks * chunk_tiles(sequence); }

  // The number of rows of a chunk.
  static MK_DEVICE u32 chunk_rows(const SequenceRows& sequence, u32 rank, u32 rank_chunk) {
    if constexpr (HasCache<Config>) {
      if (rank_chunk == Config::kRankChunks) return cached_rows(sequence, rank);
    }
    if constexpr (kUneven) {
      const u32 full = full_chunk_rows(sequence), before = chunk_of(rank, rank_chunk) * full;
      return before < rows(sequence) ? min(full, rows(sequence) - before) : 0;
    } else {
      return Config::kChunkRows;
    }
  }

  // The number of cached rows of the sequence on a rank.
  static MK_DEVICE u32 cached_rows(const SequenceRows& sequence, u32 rank) {
    return load_shared(sequence.cached + rank * sizeof(u32));
  }

  // The number of rows of the sequence on a rank, of each head.
  static MK_DEVICE u32 rank_rows(const SequenceRows& sequence, u32 rank) {
    return chunk_rows(sequence, rank, 0) + (Config::kRankChunks == 2 ? chunk_rows(sequence, rank, 1) : 0);
  }

  // The index of a row of a chunk among the rows of a head on this rank. The second chunk has rows only if the first
  // chunk is full.
  static MK_DEVICE u32 rank_row(const SequenceRows& sequence, u32 rank_chunk, u32 row) {
    u32 first = 0;
    if constexpr (IsPacked<Config>) first = sequence.first_row;
    return first + rank_chunk * full_chunk_rows(sequence) + row;
  }

  // The index of a row of a chunk of keys among the rows of a head of K on this rank: cached rows come first.
  static MK_DEVICE u32 key_row(const SequenceRows& sequence, u32 rank, u32 rank_chunk, u32 row) {
    if constexpr (HasCache<Config>) {
      if (rank_chunk == Config::kRankChunks) return row;
      return cached_rows(sequence, rank) + rank_row(sequence, rank_chunk, row);
    } else {
      return rank_row(sequence, rank_chunk, row);
    }
  }

  // The number of the tile with a row of a chunk among the tiles of a head of a rank, in the numbering of the memory
  // that holds the tiles.
  static MK_DEVICE u32 rank_tile(const SequenceRows& sequence, u32 rank_chunk, u32 row) {
    u32 of_chunk = rank_chunk * kChunkTiles;
    if constexpr (IsPacked<Config>) of_chunk = sequence.first_tile + rank_chunk * chunk_tiles(sequence);
    return of_chunk + row / Config::kTileKeys;
  }

  // The number of rows from one head, or batch, of an operand to the next. If the host does not know the rows of the
  // call, operands have room for the most rows. Otherwise operands have exactly the rows of the call.
  template <class Args>
  static MK_DEVICE u32 operand_rows(const Args& args, const RankContext& ctx, const SequenceRows& sequence) {
    constexpr u32 kMost = Config::kRankChunks * Config::kChunkRows;
    if constexpr (IsPacked<Config>) {
      return kMost;
    } else {
      if constexpr (TakesRows<Config>) {
        if (args.rows_address != nullptr) return kMost;
      }
      return rank_rows(sequence, ctx.rank);
    }
  }
};

// Tiles of Q, K and V in shared memory. A tile consists of sub-tiles, one after the other. A row of a sub-tile is
// a line of the 128-byte swizzle.
template <AttentionConfig Config>
struct TileShape {
  static constexpr u32 kSubTileCols = Config::Element::kPerLine;
  static constexpr u32 kSubTileBytes = Config::kTileRows * kLineBytes;
  static constexpr u32 kSubTiles = Config::kHeadDim / kSubTileCols;
  static constexpr u32 kTileBytes = kSubTiles * kSubTileBytes;
  static constexpr u32 kHeadsPerKv = Config::kHeads / Config::kKvHeads;
};

}  // namespace mk::attention
