// The sum of the values of keys that a query sees, without a product of those that a mask hides. Plain C++: GPUs and the
// simulator share it.
#pragma once
#include <mk/attention/sequence.cuh>
#include <mk/memory.cuh>
#include <mk/mma.cuh>

namespace mk::attention {

// Weights of a warpgroup's 64 queries and kTileKeys keys: bf16, as the registers of a wgmma operand.
template <AttentionConfig Config>
using Weights = u32[Config::kTileKeys / 16][4];

// Rows of O of a warpgroup's 64 queries, as a product has them.
template <AttentionConfig Config>
using Accumulators = float[Config::kHeadDim / 2];

// A warp: whether its numbers are finite, and their products in pairs too. The test costs an instruction for two numbers.
template <u32 kCount>
MK_DEVICE bool is_finite_in_warp(const float (&numbers)[kCount]) {
  float sums[2] = {};
#pragma unroll
  for (u32 i = 0; i < kCount; i += 4) {
    sums[0] += numbers[i] * numbers[i + 1];
    sums[1] += numbers[i + 2] * numbers[i + 3];
  }
  return max_of_warp((sums[0] + sums[1]) * 0.0f == 0.0f ? 0 : 1) == 0;
}

// A warp, whose 16 queries begin at `row` of a tile: adds to O the values of the diagonal block, whose tile is at `v` in
// shared memory, one key after the other and in fp32. A query sees the keys up to its own. The weights are lost.
template <AttentionConfig Config>
MK_RARE void add_seen_values(Accumulators<Config>& o, Weights<Config>& p, u32 v, u32 row) {
  const u32 lane = lane_index(), first = row + lane / 4;  // the first one of this thread's two queries, which are 8 apart
#pragma unroll 1
  for (u32 step = 0; step < row + 16; ++step) {
    // Of the weights of 8 keys, each lane of a quad has those of two, for both queries.
    const u32 mask = step % 8 / 2, key = step / 8 * 8 + (lane % 4 ^ mask) * 2 + step % 2;
    const bool is_low = step % 16 < 8;
    const u32 of_own[2] = {is_low ? p[0][0] : p[0][2], is_low ? p[0][1] : p[0][3]};
    const float of_first = exchange(low_bf16(of_own[0] >> step % 2 * 16), mask);
    const float of_second = exchange(low_bf16(of_own[1] >> step % 2 * 16), mask);
#pragma unroll
    for (u32 i = 0; i < Config::kHeadDim / 8; ++i) {
      const u32 sub_tile = v + i / 8 * TileShape<Config>::kSubTileBytes;
      const u32 values = load_shared(sub_tile + key * 128 + (i % 8 ^ key % 8) * 16 + lane % 4 * 4);
      if (key <= first) {  // @seen-values.first
        o[i * 4] += of_first * low_bf16(values);
        o[i * 4 + 1] += of_first * high_bf16(values);
      }
      if (key <= first + 8) {  // @seen-values.second
        o[i * 4 + 2] += of_second * low_bf16(values);
        o[i * 4 + 3] += of_second * high_bf16(values);
      }
    }
    if (step % 16 < 15) continue;
    // Registers have no index, so the weights of the next 16 keys come to the front.
#pragma unroll
    for (u32 i = 0; i + 4 < Config::kTileKeys / 4; ++i) p[i / 4][i % 4] = p[i / 4 + 1][i % 4];
  }
  __syncwarp();  // all lanes have read the values
}

}  // namespace mk::attention
