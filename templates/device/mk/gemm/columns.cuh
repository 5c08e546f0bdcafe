// The columns of C, as functions of the columns of a product.
#pragma once
#include <mk/activation.cuh>
#include <mk/arch.cuh>

namespace mk::gemm {

// A policy: kWeightCols columns of the weight make one column of C. A warpgroup has sums of kGroupCols columns of each
// kind. `apply` makes part `index` of kCols columns of C, in the sums of the weight's first columns.
template <class Columns>
concept ColumnsOfC = requires(Accumulator<128>& sum) {
  Columns::kWeightCols;
  Columns::template apply<64>(sum, 0u);
};

// C is the product.
struct Product {
  static constexpr u32 kWeightCols = 1;

  template <u32 kCols, u32 kGroupN>
  static MK_DEVICE void apply(Accumulator<kGroupN>&, u32) {}
};

// C is silu(gate) · up. The weight has the columns of the gate, and then an equal number of columns of up. A
// warpgroup's part of a tile has some columns of the gate, and then the corresponding columns of up, so that one thread
// has both factors of its elements.
struct SwiGlu {
  static constexpr u32 kWeightCols = 2;

  template <u32 kCols, u32 kGroupN>
  static MK_DEVICE void apply(Accumulator<kGroupN>& sum, u32 index) {
    auto up = sum.template part<kCols>(kGroupN / kWeightCols / kCols + index);
    sum.template part<kCols>(index).for_each([&](u32 half, u32 col, float& gate) {
      gate = silu(gate) * up.at(half, col);
    });
  }
};

// The policy of a GEMM. Config may name a policy.
template <class Config>
struct ColumnsOf {
  using Type = Product;
};
template <class Config>
  requires requires { typename Config::Columns; }
struct ColumnsOf<Config> {
  using Type = typename Config::Columns;
};

}  // namespace mk::gemm
