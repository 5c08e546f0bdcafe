// Policies that decide to which keys a query attends, between chunks of the sequence and within tiles of scores.
#pragma once
#include <mk/arch.cuh>

namespace mk::attention {

// Queries attend to all keys.
struct NoMask {
  static constexpr bool kIsCausal = false;

  // Whether queries of a chunk attend to keys of another chunk.
  static MK_DEVICE bool attends(u32, u32) { return true; }
};

// Queries attend to keys that are not later than the query.
struct CausalMask {
  static constexpr bool kIsCausal = true;

  static MK_DEVICE bool attends(u32 query_chunk, u32 key_chunk) { return key_chunk < query_chunk; }
};

template <class Mask>
concept MaskPolicy = requires { Mask::kIsCausal; };

// Masks a warpgroup's scores of 64 queries and kKeys keys. Scores of keys from `upper_end` on become -inf in the upper row of a
// thread, and from `lower_end` on in the lower row.
template <u32 kKeys>
MK_DEVICE void mask_scores(Accumulator<kKeys>& s, u32 upper_end, u32 lower_end) {
  const u32 first = Fragment::col();
#pragma unroll
  for (u32 block = 0; block < kKeys; block += Fragment::kBlockCols) {
#pragma unroll
    for (u32 col = block; col < block + 2; ++col) {
      if (first + col >= upper_end) s.at(0, col) = -infinity();
      if (first + col >= lower_end) s.at(1, col) = -infinity();
    }
  }
}

}  // namespace mk::attention
