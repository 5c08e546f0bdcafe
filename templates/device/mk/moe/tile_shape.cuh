// Constants that follow from the shape of a tile of an expert's product, and the epilogues that turn its sums into C.
#pragma once
#include <mk/activation.cuh>
#include <mk/gemm/tile_shape.cuh>

namespace mk::moe {

template <class Config>
concept GroupedConfig = gemm::TileConfig<Config> && requires {
  Config::kHidden;     // elements of a token
  Config::kCols;       // columns of C
  Config::kBoxCols;    // columns of the weight per load
  Config::kGroupRows;  // row tiles that advance along the columns together
};

// A policy: how a warpgroup's sums become elements of C. kWeightCols columns of the weight make one column of C.
// `apply` works on a thread's part of one sub-tile. It reads the sums that it needs from `sum` on, and writes the
// elements of C there.
template <class Epilogue>
concept GroupedEpilogue = requires(float* sum) {
  Epilogue::kWeightCols;
  Epilogue::template apply<64>(sum);
};

// C is the product.
struct Product {
  static constexpr u32 kWeightCols = 1;

  template <u32 kGroupCols>
  static MK_DEVICE void apply(float*) {}
};

// C is silu(gate) · up. The weight has the columns of the gate, and then the same number of columns of up. A
// warpgroup's part of a tile has some columns of the gate, and then the corresponding columns of up, so that one thread
// has both factors of its elements.
struct SwiGlu {
  static constexpr u32 kWeightCols = 2;

  template <u32 kGroupCols>
  static MK_DEVICE void apply(float* sum) {
#pragma unroll
    for (u32 i = 0; i < gemm::kSubTileRegisters; ++i) sum[i] = silu(sum[i]) * sum[i + Fragment::registers(kGroupCols)];  // @swiglu.apply
  }
};

template <GroupedConfig Config, GroupedEpilogue Epilogue>
struct TileShape : gemm::TileShape<Config> {
  using Base = gemm::TileShape<Config>;

  static constexpr u32 kKSteps = kCeilDiv<Config::kHidden, Config::kTileK>;  // stages of a tile
  static constexpr u32 kTileCols = Config::kTileN / Epilogue::kWeightCols;   // columns of C of a tile
  static constexpr u32 kGroupCols = Base::kGroupN / Epilogue::kWeightCols;   // columns of C of a warpgroup
  static constexpr u32 kColTiles = kCeilDiv<Config::kCols, kTileCols>;
  static constexpr bool kRaggedHidden = Config::kHidden % Config::kTileK != 0;  // the last stage reaches beyond a token
  static constexpr bool kRaggedCols = Config::kCols % kTileCols != 0;           // the last column tile reaches beyond C

  // Returns the column of the expert's weight that is column `col` of a tile's product.
  static MK_DEVICE u32 weight_col(u32 col_tile, u32 col) {
    const u32 within = col % Base::kGroupN;
    return col_tile * kTileCols + col / Base::kGroupN * kGroupCols + within % kGroupCols +
           within / kGroupCols * Config::kCols;  // @swiglu.up-column
  }
};

}  // namespace mk::moe
