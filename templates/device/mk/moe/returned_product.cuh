// The product whose rows return to their tokens, where each choice of a token has a place (mk/moe/results.cuh).
#pragma once
#include <mk/moe/grouped_gemm.cuh>
#include <mk/moe/results.cuh>

namespace mk::moe {

template <class Smem>
concept ReturnSmem = GroupedSmem<Smem> && requires(const Smem smem, u32 tile, u32 row) {
  smem.return_address(tile, row);  // the address to which a row of a tile returns, or 0
};

// Config: kCols is K of the product, and kHidden its columns, which are the columns of a token. `kLacksPlaces`: whether some rows may
// have no place, and are then not stored.
template <class Config, class Args, class Workspace, ReturnSmem Smem, class Weights, bool kLacksPlaces>
struct ReturnedProduct {
  struct ProductConfig : Config {
    static constexpr u32 kHidden = Config::kCols, kCols = Config::kHidden, kBoxCols = Config::kDownBoxCols;
  };
  using Product = GroupedGemm<ProductConfig, Args, Workspace, Smem, gemm::Product, Weights>;
  using Stages = typename Product::Stages;

  // A warpgroup: computes its part of a tile, and returns it to the tokens of its rows. Columns of tiles are counted from `kFirst` on.
  template <u32 kFirst, class Tiles>
  static MK_DEVICE void multiply(const Args& args, const Smem& smem, Stages& stages, const Tiles& tiles, ExpertTile& tile, u32 group,
                                 typename Product::Shape::Accumulator& sum) {
    tile.col -= kFirst;
    if (!Product::multiply_tile(args, smem, stages, tile, tiles.place(), Product::Shape::kKSteps, group, sum)) return;
    if constexpr (Config::ElementA::kIsPromoted) {
      tiles.again(tile);
      tile.col -= kFirst;
    }
    const Rows rows{smem, tiles.place()};
    Product::store_sums(args, smem, tile, tiles.place(), group, sum, [] { __syncwarp(); }, rows);
  }

 private:
  // The places of the rows of a tile with their tokens.
  struct Rows {
    static constexpr bool kMayLackRows = kLacksPlaces;

    const Smem& smem;
    u32 place;

    MK_DEVICE u32 first() const { return 0; }
    MK_DEVICE u8* line(u32, u32 row) const { return const_cast<u8*>(load_address(smem.return_address(place, row))); }
  };
};

}  // namespace mk::moe
