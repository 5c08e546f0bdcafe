// Slots of tiles that are put to other nodes.
//
// A put takes neighbouring slots as one piece of memory, so slots are no longer than the rows of a call need. A slot
// has the pieces of the first warpgroup, then the pieces of the second warpgroup. A piece has 64 rows in four parts of
// 16 rows, which follow each other. With fewer rows, a call leaves out the last parts of each piece, and the second
// warpgroup's pieces if these would hold other rows than the pieces of the first warpgroup. A decoding step of 16 rows
// thus puts an eighth of the bytes of tiles of 128 rows.
#pragma once
#include <mk/gemm/tile_scheduler.cuh>

namespace mk::comm {

// A part of a piece, whose rows a warp computes.
constexpr u32 kPartRows = Fragment::kWarpRows, kParts = gemm::kSubTile / kPartRows;
constexpr u32 kPartBytes = gemm::kSubTileBytes / kParts;

// Returns the bytes of the parts of a piece that hold its first `rows` rows.
MK_DEVICE u32 bytes_of_rows(u32 rows) { return min(ceil_div(rows, kPartRows), kParts) * kPartBytes; }

// kPieces: the number of pieces of a warpgroup.
template <class Config, class Order, u32 kPieces>
struct PutSlots {
  using Shape = gemm::TileShape<Config>;

  // The bytes of a piece, and of a tile, in this call.
  static MK_DEVICE u32 piece_bytes(const RankContext& ctx) {
    return bytes_of_rows(Order::owner_rows(ctx));
  }
  static MK_DEVICE u32 tile_bytes(const RankContext& ctx) {
    const bool is_one_group = Shape::kSplitsRows && Order::owner_rows(ctx) <= gemm::kSubTile;
    return (is_one_group ? 1 : kGroups) * kPieces * piece_bytes(ctx);
  }

  // Returns slot `index` of the slots that begin at `first`.
  static MK_DEVICE Symmetric<u8> slot(const RankContext& ctx, Symmetric<u8> first, u32 index) {
    return {first.offset + u64{index} * tile_bytes(ctx)};
  }
};

}  // namespace mk::comm
