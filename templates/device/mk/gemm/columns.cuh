// How the columns of a product become the columns of C.
#pragma once
#include <mk/activation.cuh>
#include <mk/arch.cuh>

namespace mk::gemm {

// A policy: kWeightCols columns of the weight make one column of C. A warpgroup has sums of kGroupCols columns for each of
// them. `apply` works on kCount elements of a thread. It reads the sums that it needs from `sum` on, and writes the elements
// of C there.
template <class Columns>
concept ColumnsOfC = requires(float* sum) {
  Columns::kWeightCols;
  Columns::template apply<64, 4>(sum);
};

// C is the product.
struct Product {
  static constexpr u32 kWeightCols = 1;

  template <u32 kGroupCols, u32 kCount>
  static MK_DEVICE void apply(float*) {}
};

// C is silu(gate) · up. The weight has the columns of the gate, and then the same number of columns of up. A
// warpgroup's part of a tile has some columns of the gate, and then the corresponding columns of up, so that one thread
// has both factors of its elements.
struct SwiGlu {
  static constexpr u32 kWeightCols = 2;

  template <u32 kGroupCols, u32 kCount>
  static MK_DEVICE void apply(float* sum) {
#pragma unroll
    for (u32 i = 0; i < kCount; ++i) sum[i] = silu(sum[i]) * sum[i + Fragment::registers(kGroupCols)];  // @swiglu.apply
  }
};

// The policy of a GEMM: Config may name one.
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
