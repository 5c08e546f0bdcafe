// Policies that say to which keys a query attends, between chunks of the sequence and within tiles of scores.
#pragma once
#include <mk/base.cuh>

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

// Masks a warpgroup's scores of 64 queries and kKeys keys in the layout of wgmma, in which a thread has parts of two
// rows that are 8 apart. Scores of keys from `first_end` on become -inf in the first row, and from `second_end` on in
// the second row.
template <u32 kKeys>
MK_DEVICE void mask_scores(float (&s)[kKeys / 2], u32 first_end, u32 second_end) {
  const u32 col = lane_index() % 4 * 2;
#pragma unroll
  for (u32 i = 0; i < kKeys / 2; i += 4) {
#pragma unroll
    for (u32 j = 0; j < 2; ++j) {
      if (col + i * 2 + j >= first_end) s[i + j] = -infinity();
      if (col + i * 2 + j >= second_end) s[i + 2 + j] = -infinity();
    }
  }
}

}  // namespace mk::attention
