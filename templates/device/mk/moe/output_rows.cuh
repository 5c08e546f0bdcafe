// The way of a warp's rows of a tile through shared memory.
#pragma once
#include <mk/gemm/store.cuh>
#include <mk/moe/tile_scheduler.cuh>

namespace mk::moe {

template <class Smem>
concept OutputSmem = requires(const Smem smem, u32 warp) {
  smem.out(warp);  // 16 lines of the 128-byte swizzle, for a warp that multiplies
};

// Rows: the destination of the rows of a tile. `first()` is the first row of the tile there, and `line(first, row)` is the address of row
// `row` of the tile. If kMayLackRows is true, the address of a row that is not stored is null.
template <class Config, OutputSmem Smem, class Shape>
struct OutputRows {
  // The memory of a warp.
  static MK_DEVICE u32 memory(const Smem& smem) { return smem.out(threadIdx.x / kWarp - kLoadWarps); }

  // A warp: stores its 16 rows of a sub-tile, which begin at row `first` of the tile, to `rows`.
  template <class E, class Sync, class Rows>
  static MK_DEVICE void store(const Rows& rows, const Smem& smem, const ExpertTile& tile, u32 first, u32 col, gemm::SubTile sum,
                              const Sync& sync) {
    const u32 first_of_tile = rows.first();
    sync();
    gemm::write_rows<E>(memory(smem), sum);
    sync();
    copy_lines<E>(rows, smem, tile, first, first_of_tile, col);
  }

  // A warp: copies its lines, of elements E from column `col` on, to its rows of the tile, from row `first` on.
  template <class E, class Rows>
  static MK_DEVICE void copy_lines(const Rows& rows, const Smem& smem, const ExpertTile& tile, u32 first, u32 first_of_tile,
                                   u32 col) {
    const u32 lane = lane_index(), out = memory(smem), at = col + lane % 8 * E::kPerVec;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      const u32 row = i * 4 + lane / 8;
      if (first + row >= tile.rows || (Shape::kRaggedCols && at >= Config::kCols)) continue;
      u8* line = rows.line(first_of_tile, first + row);
      if constexpr (Rows::kMayLackRows) {
        if (line == nullptr) continue;
      }
      store_vec16(line + E::bytes(at), load_shared_vec16(out + row * kLineBytes + (lane % 8 ^ row % 8) * 16));
    }
  }
};

}  // namespace mk::moe
