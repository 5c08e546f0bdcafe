// The scales of a tile of an expert's product.
#pragma once
#include <mk/gemm/scales.cuh>
#include <mk/moe/tile_scheduler.cuh>

namespace mk::moe {

// If rows have scales.
template <class Smem>
concept RowScaleSmem = requires(const Smem smem, u32 tile, u32 row) {
  smem.scales_address(tile, row);  // the address of the scales of a row of a tile
};

// A policy: the weights of a product. With scales of blocks, rows of scales are scales_row_bytes apart. These are the weights of the
// first product.
struct FirstWeights {
  template <class Args>
  static MK_DEVICE const CUtensorMap& map(const Args& args) { return args.b; }
  template <class Args>
  static MK_DEVICE const u8* scales(const Args& args) { return args.b_scales; }
  template <class Args>
  static MK_DEVICE u64 scales_row_bytes(const Args& args) { return args.b_scales_row_bytes; }
};

// The places of the scales of a warpgroup's elements in a tile of an expert. The rows have arrived before.
template <class Config, class ArgsOfKernel, class Smem, class ShapeOfTile, class Weights>
struct ExpertScales {
  using Args = ArgsOfKernel;
  using Shape = ShapeOfTile;
  static constexpr bool kArrive = false;
  static constexpr u32 kCols = Config::kCols, kKSteps = Shape::kKSteps, kHeldScales = 1;
  static constexpr u32 kRowsOfB = Shape::kWeightCols * kCeilDiv<kCols, gemm::kScaleBlock>;  // with scales of blocks

  const Args& args;
  const Smem& smem;
  const ExpertTile& tile;
  u32 place, group;  // place: the buffer of the tile

  // The pointers are loaded anew for each window of scales, since the sums leave few registers.
  struct OfRows {
    u32 address;  // in shared memory, of the pointer to the scales of the upper row

    MK_DEVICE const u8* at(u32 half) const { return load_address(address + half * Fragment::kHalfRows * sizeof(u64)); }
  };
  MK_DEVICE OfRows of_rows() const { return {smem.scales_address(place, Shape::group_row(group) + Fragment::row())}; }
  MK_DEVICE const u8* of_row(u32 half) const { return of_rows().at(half); }
  // Each expert has its own scales.
  MK_DEVICE const u8* of_b() const {
    u64 bytes = Fp32::kBytes;
    if constexpr (gemm::kScales<Config> == gemm::Scales::kRow) bytes = Fp32::bytes(Shape::kWeightCols * kCols);
    if constexpr (gemm::kScales<Config> == gemm::Scales::kBlock) bytes = kRowsOfB * b_row_bytes();
    return Weights::scales(args) + tile.expert * bytes;
  }
  MK_DEVICE u64 b_row_bytes() const { return Weights::scales_row_bytes(args); }
  MK_DEVICE u32 first_col() const { return Shape::first_col(tile.col, group); }
};

}  // namespace mk::moe
