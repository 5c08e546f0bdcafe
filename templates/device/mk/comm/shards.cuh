// Shards on their way to all ranks. A shard is the rows of a matrix that one rank has. All ranks have equal numbers of
// rows, except perhaps the last ranks.
//
// A shard travels in chunks of rows and slices of columns to `gathered` on every rank that needs it. TMA reads the rows
// from there. A flag per source, chunk and slice counts the pieces that have arrived, over all calls. Nothing resets
// the flag. If rows have scales, the scales travel with the first slice.
#pragma once
#include <mk/call_rows.cuh>
#include <mk/deadline.cuh>
#include <mk/element.cuh>
#include <mk/memory.cuh>

namespace mk::comm {

template <class Config>
concept ShardConfig = RowsConfig<Config> && requires {
  Config::kK;          // columns
  Config::kShardRows;  // rows of every rank except perhaps the last ranks
  Config::kChunkRows;  // rows under one flag
  Config::kSliceCols;  // columns under one flag
  Config::kPieceRows;  // rows of a chunk that arrive at a time
};

template <class Workspace>
concept ShardWorkspace = requires(u32 source, u32 chunk, u32 slice) { Workspace::chunk_ready(source, chunk, slice); };

// The scales, in fp32, that travel with a row. With such scales, Config has kSentScales, and kSentRowBytes: the distance
// of rows in the memory of a receiver, where the scales of a row lie behind its elements. Otherwise the distance is
// kRowBytes, the bytes of a row.
template <class Config>
constexpr u32 kSentScales = 0;
template <class Config>
  requires requires { Config::kSentScales; }
constexpr u32 kSentScales<Config> = Config::kSentScales;
template <class Config, u32 kRowBytes>
constexpr u32 kSentRowBytes = kRowBytes;
template <class Config, u32 kRowBytes>
  requires requires { Config::kSentRowBytes; }
constexpr u32 kSentRowBytes<Config, kRowBytes> = Config::kSentRowBytes;

// Returns the address of the scales of a row of this rank's A. Args: a_scales, and if a row has several scales, which lie
// one behind the other, a_scales_row_bytes.
template <class Args>
MK_DEVICE const u8* scales_of_row(const Args& args, u32 row) {
  if constexpr (requires { args.a_scales_row_bytes; }) return args.a_scales + row * args.a_scales_row_bytes;
  else return args.a_scales + Fp32::bytes(row);
}

// A warp: stores the scales of `rows` rows of this rank's A at each of the places [first_place, end_place). The row with index
// `i` has number `row_at(i)` in A. `place_at(p)` is the address behind the elements of row 0 in a place, in which rows are
// kRowBytes apart. Lanes store scales that other lanes signal, so the warp synchronises before a signal.
template <u32 kScales, u32 kRowBytes, class Args, class RowAt, class PlaceAt>
MK_DEVICE void store_scales(const Args& args, u32 rows, const RowAt& row_at, u32 first_place, u32 end_place,
                            const PlaceAt& place_at) {
  constexpr u32 kUnroll = 4;
  const u32 end = rows * kScales;
  for (u32 first = lane_index(); first < end; first += kWarp * kUnroll) {
    u32 scale[kUnroll];
#pragma unroll
    for (u32 u = 0; u < kUnroll; ++u) {
      const u32 i = min(first + u * kWarp, end - 1);
      scale[u] = load_word(scales_of_row(args, row_at(i / kScales)) + Fp32::bytes(i % kScales));
    }
    for (u32 place = first_place; place < end_place; ++place) {
      u8* there = place_at(place);
#pragma unroll
      for (u32 u = 0; u < kUnroll; ++u) {
        const u32 i = first + u * kWarp;
        if (i < end) store_word(there + i / kScales * kRowBytes + Fp32::bytes(i % kScales), scale[u]);
      }
    }
  }
}

template <ShardConfig Config, ShardWorkspace Workspace>
struct Shards {
  using Ranks = Topology<Config>;
  using Rows = CallRows<Config>;

  static constexpr u32 kChunks = kCeilDiv<Config::kShardRows, Config::kChunkRows>;  // chunks of a shard with the most rows
  static constexpr u32 kSlices = kCeilDiv<Config::kK, Config::kSliceCols>;
  static constexpr u32 kArrivals = kCeilDiv<Config::kChunkRows, Config::kPieceRows>;  // pieces of a chunk's slice
  static constexpr u32 kFirstEmpty = kCeilDiv<Config::kM, Config::kShardRows>;  // the first rank without rows

  // The number of chunks of a shard in this call.
  static MK_DEVICE u32 chunks(const RankContext& ctx) {
    if constexpr (TakesRows<Config>) return ceil_div(Rows::of_shard(ctx), Config::kChunkRows);
    else return kChunks;
  }

  // Waits until a slice of a chunk has arrived here.
  static MK_DEVICE void wait(const RankContext& ctx, Role role, u32 source, u32 chunk, u32 slice) {
    wait_flag(ctx, ctx.local_ptr(Workspace::chunk_ready(source, chunk, slice)),
              WaitSite{role, kChunk, source, number(source, chunk, slice), ctx.epoch * kArrivals});
  }

  // The number of a slice of a chunk, in reports.
  static MK_DEVICE u32 number(u32 source, u32 chunk, u32 slice) { return (source * kChunks + chunk) * kSlices + slice; }

  // Waits until a slice of rows [row, end) has arrived. The rows may belong to several shards.
  static MK_DEVICE void wait_rows(const RankContext& ctx, Role role, u32 row, u32 end, u32 slice) {
    const u32 shard_rows = Rows::of_shard(ctx);
    while (row < end) {
      const u32 source = row / shard_rows;
      const u32 chunk = row % shard_rows / Config::kChunkRows;
      wait(ctx, role, source, chunk, slice);
      row = source * shard_rows + min((chunk + 1) * Config::kChunkRows, shard_rows);
    }
  }

  // Waits until the ranks without rows have begun this call. No other wait covers these ranks, since no tile needs
  // their rows. Before a rank leaves a call, it must know that every other rank has begun the call. Only then are the
  // buffers free to which the rank's next call writes.
  static MK_DEVICE void wait_empty(const RankContext& ctx, Role role) {
    for (u32 source = kFirstEmpty; source < Ranks::kWorld; ++source) {
      if (source != ctx.rank) wait(ctx, role, source, 0, 0);
    }
  }
};

}  // namespace mk::comm
