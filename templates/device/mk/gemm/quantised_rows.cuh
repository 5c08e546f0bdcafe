// Sums as elements of e4m3, with a scale for each kScaleBlock columns of a row. See Quantise.
#pragma once
#include <mk/arch.cuh>
#include <mk/gemm/scales.cuh>
#include <mk/quantise.cuh>

namespace mk::gemm {

struct QuantisedRows {
  using Sums = Accumulator<kScaleBlock, float*>;

  // A warp: returns the scale of a lane's upper row (half 0) or lower row.
  static MK_DEVICE float scale(Sums sums, u32 half) {
    float greatest = Quantise::kLeast;
    sums.for_each([&](u32 of_half, u32, float& sum) {
      if (of_half == half) greatest = Quantise::greater(greatest, sum);
    });
    return Quantise::scale(quad_max(greatest));
  }

  // A warp: writes its rows to lines of the 128-byte swizzle, from `line` on.
  static MK_DEVICE void write(u32 line, Sums sums, const float (&scales)[2]) {
    const bool is_odd = lane_index() % 2 != 0;
    const u32 row = Fragment::lane_row();
    // A lane has a pair of columns of each block of eight columns, and a vector has two blocks. Neighbouring lanes exchange pairs, so
    // that an even lane stores a word of the left block, and an odd lane a word of the right block.
    const u32 in_vec = (is_odd ? Fragment::kBlockCols : 0) + lane_index() % Fragment::kRowLanes / 2 * 4;
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      const float to_elements = Quantise::reciprocal(scales[half]);
      const u32 to = line + (row + half * Fragment::kHalfRows) * kLineBytes + in_vec;
#pragma unroll
      for (u32 vec = 0; vec < kLineBytes / kVecBytes; ++vec) {
        const float *left = sums.pair(half, vec * kVecBytes), *right = sums.pair(half, vec * kVecBytes + Fragment::kBlockCols);
        const u32 pairs = E4m3::pack({left[0] * to_elements, left[1] * to_elements, right[0] * to_elements, right[1] * to_elements});
        const u32 other = as_bits(exchange(as_float(pairs), 1));
        const u32 word = is_odd ? other >> 16 | (pairs & 0xffff0000) : (pairs & 0xffff) | other << 16;
        store_shared(to + (vec ^ row % 8) * kVecBytes, word);
      }
    }
  }
};

}  // namespace mk::gemm
