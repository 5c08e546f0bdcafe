// The scales of A and B. A product of scaled matrices is the product of their elements times both scales.
//
// Scales of blocks differ along K, so each stage's products are multiplied by them as they are added to the sum. Other
// scales multiply the whole sum of a rank, before it meets the sums of other ranks.
#pragma once
#include <mk/gemm/tile_scheduler.cuh>
#include <mk/memory.cuh>

namespace mk::gemm {

// How elements share scales.
enum class Scales {
  kNone,
  kTensor,  // all of A, and all of B
  kRow,     // a row of A, and a column of B
  kBlock,   // a row of A in 128 of K, and 128 columns of B in 128 of K
};

template <class Config>
constexpr Scales kScales = Scales::kNone;
template <class Config>
  requires requires { Config::kScales; }
constexpr Scales kScales<Config> = Config::kScales;

constexpr u32 kScaleBlock = 128;  // the elements of K, and the columns of B, that share a scale of a block

// Args: the scales, in fp32. Of blocks, a row of scales of A is along K, and so is a row of scales of B.
template <class Args>
concept ScaleArgs = requires(const Args& args) {
  args.a_scales;
  args.b_scales;
};
template <class Args>
concept BlockScaleArgs = ScaleArgs<Args> && requires(const Args& args) {
  args.a_scales_row_bytes;
  args.b_scales_row_bytes;
};

// The place of a warpgroup's elements.
template <class Config, TileOrder Order>
struct ScaledRows {
  using Shape = TileShape<Config>;

  // A lane's row of A. Rows beyond A have the scale of its last row.
  static MK_DEVICE u32 row(const RankContext& ctx, const WorkTile& work, u32 group, u32 half) {
    const u32 row = Order::row_in_a(work, ctx) + Shape::group_row(group) + Fragment::row() + half * Fragment::kHalfRows;
    return min(row, CallRows<Config>::all(ctx) - 1);  // @scales.last-row
  }
  static MK_DEVICE u32 first_col(const WorkTile& work, u32 group) {
    return work.col * Config::kTileN + Shape::group_col(group);
  }
};

// The scales by which a thread multiplies the products of a stage: none.
struct NoBlockScales {
  static constexpr u32 kWindow = 1;

  MK_DEVICE void load(u32) {}
  MK_DEVICE float of_row(u32, u32) const { return 1; }
  MK_DEVICE float of_cols(u32, u32) const { return 1; }
};

// The scales of blocks of a warpgroup's tile, a window of stages at a time. A quad holds the scales of A of its two
// rows, and a warp holds those of B. Loads into registers that the loop reads a stage later keep memory's latency out of
// the way from one product to the next, and each thread needs few of them.
template <class Config, BlockScaleArgs Args, TileOrder Order>
struct BlockScales {
  using Rows = ScaledRows<Config, Order>;

  static constexpr u32 kWindow = 2 * Fragment::kRowLanes;  // stages
  static constexpr u32 kBlocks = Config::kKSteps;
  static constexpr u32 kColBlocks = kCeilDiv<Config::kN, kScaleBlock>;

  const u8 *upper, *lower, *cols;  // the scales of a lane's rows, and of its columns
  float a[2][2], b;                // by half of the window and row; by lane

  MK_DEVICE BlockScales(const Args& args, const RankContext& ctx, const WorkTile& work, u32 group) {
    upper = args.a_scales + Rows::row(ctx, work, group, 0) * args.a_scales_row_bytes;
    lower = args.a_scales + Rows::row(ctx, work, group, 1) * args.a_scales_row_bytes;
    const u32 col = Rows::first_col(work, group) / kScaleBlock + lane_index() / kWindow % 2;
    cols = args.b_scales + min(col, kColBlocks - 1) * args.b_scales_row_bytes;  // @scales.last-col
  }

  // Loads the scales of a window that begins with stage `step`.
  MK_DEVICE void load(u32 step) {
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
      const u32 k = block(step + i * Fragment::kRowLanes + lane_index() % Fragment::kRowLanes);
      a[i][0] = as_float(load_word(upper + Fp32::bytes(k)));
      a[i][1] = as_float(load_word(lower + Fp32::bytes(k)));
    }
    b = as_float(load_word(cols + Fp32::bytes(block(step + lane_index() % kWindow))));
  }

  // The scale of a lane's row in stage `at` of the window.
  MK_DEVICE float of_row(u32 at, u32 half) const {
    const float held = at < Fragment::kRowLanes ? a[0][half] : a[1][half];
    const u32 holder = lane_index() / Fragment::kRowLanes * Fragment::kRowLanes + at % Fragment::kRowLanes;
    return as_float(broadcast(as_bits(held), holder));  // @scales.holder
  }
  // The scale of the group's columns [128 batch, 128 batch + 128) in stage `at` of the window.
  MK_DEVICE float of_cols(u32 at, u32 batch) const { return as_float(broadcast(as_bits(b), batch * kWindow + at)); }

  static_assert(Config::kTileK == kScaleBlock, "a stage has a scale for each row");

 private:
  static MK_DEVICE u32 block(u32 step) { return min(step, kBlocks - 1); }
};

// A thread of a warpgroup: multiplies its elements of `kCount` blocks of columns, from block `first` on, by the scales of
// their rows and columns.
template <class Config, TileOrder Order, u32 kCount, class Args>
MK_DEVICE void scale_blocks(const Args& args, const RankContext& ctx, const WorkTile& work, u32 group, u32 first,
                            float* sum) {
  using Rows = ScaledRows<Config, Order>;
  if constexpr (kScales<Config> == Scales::kTensor) {
    const float scale = as_float(load_word(args.a_scales)) * as_float(load_word(args.b_scales));
#pragma unroll
    for (u32 i = 0; i < Fragment::registers(kCount * Fragment::kBlockCols); ++i) sum[i] *= scale;  // @scales.tensor
  } else if constexpr (kScales<Config> == Scales::kRow) {
    float a[2], b[kCount][2];
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      a[half] = as_float(load_word(args.a_scales + Fp32::bytes(Rows::row(ctx, work, group, half))));
    }
#pragma unroll
    for (u32 j = 0; j < kCount; ++j) {
      // Columns beyond B have the scales of its last columns.
      const u32 col = Rows::first_col(work, group) + (first + j) * Fragment::kBlockCols + Fragment::col();
      const u8* scales = args.b_scales + Fp32::bytes(min(col, Config::kN - 2));
      b[j][0] = as_float(load_word(scales)), b[j][1] = as_float(load_word(scales + Fp32::kBytes));
    }
#pragma unroll
    for (u32 i = 0; i < Fragment::registers(kCount * Fragment::kBlockCols); ++i) {
      sum[i] *= a[Fragment::half_of(i)] * b[i / Fragment::kBlockRegisters][i % 2];  // @scales.row
    }
  }
}

}  // namespace mk::gemm
