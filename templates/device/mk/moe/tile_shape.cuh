// Constants that follow from the shape of a tile of an expert's product.
#pragma once
#include <mk/gemm/tile_shape.cuh>

namespace mk::moe {

constexpr u32 kLoadWarps = 4;  // come before the warps that multiply
constexpr u32 kMultiplyWarps = kGroups * kWarpgroupWarps;

template <class Config>
concept GroupedConfig = gemm::TileConfig<Config> && requires {
  Config::kHidden;     // elements of a token
  Config::kCols;       // columns of C
  Config::kBoxCols;    // columns of the weight per load
  Config::kGroupRows;  // row tiles that advance along the columns together
};

// The policy of an expert's product.
template <class Epilogue>
concept GroupedEpilogue = gemm::ColumnsOfC<Epilogue>;

template <GroupedConfig Config, GroupedEpilogue Epilogue>
struct TileShape : gemm::TileShape<Config, Epilogue> {
  using Base = gemm::TileShape<Config, Epilogue>;
  using Base::kTileCols;

  static constexpr u32 kKSteps = kCeilDiv<Config::kHidden, Config::kTileK>;  // stages of a tile
  static constexpr u32 kColTiles = kCeilDiv<Config::kCols, kTileCols>;
  static constexpr bool kRaggedHidden = Config::kHidden % Config::kTileK != 0;  // the last stage reaches beyond a token
  static constexpr bool kRaggedCols = Config::kCols % kTileCols != 0;           // the last column tile reaches beyond C
};

}  // namespace mk::moe
