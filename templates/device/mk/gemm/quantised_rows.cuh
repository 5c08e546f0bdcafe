// Sums as elements of e4m3, with a scale for each kScaleBlock columns of a row. See Quantise.
#pragma once
#include <mk/arch.cuh>
#include <mk/gemm/scales.cuh>
#include <mk/quantise.cuh>

namespace mk::gemm {

// Four elements of e4m3 of a lane, two neighbours of each of two blocks of columns, as words of four neighbours. An even lane gets a
// word of the left block, and an odd lane a word of the right block.
struct InterleavedWords {
  // The first column of the word that a lane gets, from the first column of the left block on.
  static MK_DEVICE u32 col() { return (lane_index() % 2 != 0 ? Fragment::kBlockCols : 0) + lane_index() % Fragment::kRowLanes / 2 * 4; }

  // A converged warp: exchanges pairs between neighbouring lanes. `pairs` has the lane's pair of the left block first.
  static MK_DEVICE u32 of(u32 pairs) {
    const u32 other = as_bits(exchange(as_float(pairs), 1));
    return lane_index() % 2 != 0 ? other >> 16 | (pairs & 0xffff0000) : (pairs & 0xffff) | other << 16;
  }
};

template <class Args>
concept HasScalesOfC = requires(const Args& args) {
  args.c_scales;
  args.c_scales_row_bytes;
};

// A warp's 16 rows of kCols columns, which share a scale in each row: all columns of a block, or the left or right half of a block.
template <u32 kCols>
struct QuantisedRows {
  using Sums = Accumulator<kCols, float*>;

  // The number of vectors of a line of the 128-byte swizzle that these columns take. The other vectors are free.
  static constexpr u32 kVecs = kCols / kVecBytes;

  // A warp: returns the greatest magnitude of a lane's upper row (half 0) or lower row.
  static MK_DEVICE float greatest(Sums sums, u32 half) {
    float greatest = Quantise::kLeast;
    sums.for_each([&](u32 of_half, u32, float& sum) {
      if (of_half == half) greatest = Quantise::greater(greatest, sum);
    });
    return quad_max(greatest);
  }

  // A warp: writes its rows to lines of the 128-byte swizzle, from `line` on.
  static MK_DEVICE void write(u32 line, Sums sums, const float (&scales)[2]) {
    const u32 row = Fragment::lane_row();
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      const float to_elements = Quantise::reciprocal(scales[half]);
      const u32 to = line + (row + half * Fragment::kHalfRows) * kLineBytes + InterleavedWords::col();
#pragma unroll
      for (u32 vec = 0; vec < kVecs; ++vec) {
        const float *left = sums.pair(half, vec * kVecBytes), *right = sums.pair(half, vec * kVecBytes + Fragment::kBlockCols);
        const u32 pairs = E4m3::pack({left[0] * to_elements, left[1] * to_elements, right[0] * to_elements, right[1] * to_elements});
        store_shared(to + (vec ^ row % 8) * kVecBytes, InterleavedWords::of(pairs));
      }
    }
  }

  // A warp: stores the scales of its rows that exist, the first `rows` rows. `scales_of(row)` is the address of a row's scale. The first
  // two lanes of a quad store the scales of its two rows.
  template <class ScalesOf>
  static MK_DEVICE void store_scales(const float (&scales)[2], u32 rows, const ScalesOf& scales_of) {
    const u32 half = lane_index() % Fragment::kRowLanes, row = Fragment::lane_row() + half * Fragment::kHalfRows;
    if (half < 2 && row < rows) store_word(scales_of(row), as_bits(half == 0 ? scales[0] : scales[1]));
  }
};

}  // namespace mk::gemm
