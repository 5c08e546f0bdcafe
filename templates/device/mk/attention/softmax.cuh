// The online softmax. Rows of scores are computed tile by tile. When the maximum of a row grows, its earlier sums are
// rescaled.
#pragma once
#include <mk/arch.cuh>

namespace mk::attention {

// Config: kScaleLog2, the scale of the scores times log2(e); kTileKeys.
template <class Config>
struct Softmax {
  // The state of a thread's upper and lower row.
  float row_max[2] = {-infinity(), -infinity()};
  float row_sum[2] = {};  // sums of this thread's exponentials

  // Replaces the scores by exp2(scale (score - row_max)). Earlier exponentials, and sums of values with these weights,
  // must be multiplied by `rescale`.
  MK_DEVICE void apply(Accumulator<Config::kTileKeys>& s, float (&rescale)[2]) {
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      float even = row_max[half], odd = s.at(half, 1);
#pragma unroll
      for (u32 col = 0; col < Config::kTileKeys; col += Fragment::kBlockCols) {
        const float* pair = s.pair(half, col);
        even = max(even, pair[0]);
        odd = max(odd, pair[1]);
      }
      const float before = row_max[half];
      row_max[half] = quad_max(max(even, odd));
      // If all scores of a row are -inf, all of its exponentials are 0.
      const float finite = row_max[half] == -infinity() ? 0.0f : row_max[half];
      const float offset = -finite * Config::kScaleLog2;
      rescale[half] = exp2_approx((before - finite) * Config::kScaleLog2);  // exactly 1 if the maximum has not grown
      float sums[2] = {};
#pragma unroll
      for (u32 col = 0; col < Config::kTileKeys; col += Fragment::kBlockCols) {
        float* pair = s.pair(half, col);
        pair[0] = exp2_approx(pair[0] * Config::kScaleLog2 + offset);
        pair[1] = exp2_approx(pair[1] * Config::kScaleLog2 + offset);
        sums[0] += pair[0];
        sums[1] += pair[1];
      }
      row_sum[half] = row_sum[half] * rescale[half] + (sums[0] + sums[1]);
    }
  }

  // The sum of the exponentials of a row, and log(sum of exp(scale score)) of a row with this sum.
  MK_DEVICE float total(u32 half) const { return quad_sum(row_sum[half]); }
  MK_DEVICE float log_sum_exp(u32 half, float total) const {
    return (row_max[half] * Config::kScaleLog2 + log2_approx(total)) * kLn2;
  }

 private:
  static constexpr float kLn2 = 0.6931472f;
};

}  // namespace mk::attention
