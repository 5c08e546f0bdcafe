// Tiles whose sum over K several CTAs compute, each CTA over a slice of K.
//
// The tiles of the last round rarely occupy all CTAs, so they are divided into slices, which CTAs take as they take
// tiles. The number of tiles of a call is known only when tokens have been routed, and so is the number of slices.
//
// A warpgroup stores its sums over a slice in the workspace and counts them. The last warpgroup to count adds up the
// sums of all slices in their order, so results are bitwise repeatable. No CTA waits for another one, so a CTA may take
// several slices of a tile.
#pragma once
#include <mk/deadline.cuh>
#include <mk/moe/tile_shape.cuh>
#include <mk/named_barriers.cuh>

namespace mk::moe {

template <class Config>
concept SplitConfig = requires {
  Config::kMostSplits;  // slices of a tile; 1 if no tile is divided
};

// The tiles that a call divides: tiles from `first` on, into `splits` slices each. If `splits` is 1, no tile is
// divided.
struct SplitTiles {
  u32 first, splits;

  // Divides the tiles of the last round, so that there is at most one slice for each CTA (`docs/performance.md#slices-of-experts`).
  template <SplitConfig Config>
  static MK_DEVICE SplitTiles of(u32 tiles) {
    const u32 ctas = gridDim.x, last_round = tiles % ctas;
    if (Config::kMostSplits == 1 || last_round == 0) return {tiles, 1};
    return {tiles - last_round, min(ctas / last_round, Config::kMostSplits)};
  }
};

// Slice `split` of `splits` of a tile. `tile` is the index among the tiles that are divided. A whole tile is one slice.
// The struct is one word, with the parity of the call, since warps that multiply have few registers.
struct KSlice {
  u32 bits = 1;

  KSlice() = default;
  MK_DEVICE KSlice(u32 parity, u32 tile, u32 split, u32 splits) : bits(parity << 31 | tile << 16 | split << 8 | splits) {}
  MK_DEVICE u32 parity() const { return bits >> 31; }
  MK_DEVICE u32 tile() const { return bits >> 16 & 0x7fff; }
  MK_DEVICE u32 split() const { return bits >> 8 & 0xff; }
  MK_DEVICE u32 splits() const { return bits & 0xff; }
  MK_DEVICE bool is_whole_tile() const { return bits == 1; }

  // The first and the end stage of the slice, if a tile has `steps` stages. Whole tiles need no division.
  MK_DEVICE u32 begin(u32 steps) const { return is_whole_tile() ? 0 : split() * steps / splits(); }
  MK_DEVICE u32 end(u32 steps) const { return is_whole_tile() ? steps : (split() + 1) * steps / splits(); }
};

template <class Workspace>
concept SplitWorkspace = requires(u32 parity, u32 slot, u32 tile, u32 group) {
  // A warpgroup's sums over the slices of a call, in fp32. There are two buffers, since a call may begin while the last
  // CTAs of the previous call still run.
  Workspace::split_sums(parity, slot);
  Workspace::splits_stored(parity, tile, group);  // the slices whose sums the warpgroup has stored; 0 between calls
};

// The threads of a warpgroup converge by a barrier of their own here, and not by __syncwarp: see GroupedGemm::multiply.
template <class Workspace, class Shape>
struct SplitK {
  using SubTile = gemm::SubTile;
  static constexpr u32 kVectors = SubTile::kBlocks;  // vectors of four sums that a thread has of a sub-tile
  // The number of slices whose sums of a sub-tile a thread has in flight. Registers limit this number. With
  // products that are promoted, half as many slices are in flight.
  static constexpr u32 kMostInFlight = Shape::ElementA::kIsPromoted ? 2 : 4;
  static constexpr u32 kInFlight = Shape::kSubTiles < kMostInFlight ? kMostInFlight / Shape::kSubTiles : 1;

  static MK_DEVICE void sync() { sync_named(kSliceRead + threadIdx.x / kWarpgroup, kWarpgroup); }

  // A warpgroup: stores its sums over a slice. Returns whether the sums over all slices of the tile are stored, which
  // is true in the last warpgroup to store. `is_last` is the address of a word in shared memory.
  static MK_DEVICE bool store_sums(const RankContext& ctx, const KSlice& slice, u32 group,
                                   typename Shape::Accumulator& sum, u32 is_last) {
#pragma unroll
    for (u32 sub = 0; sub < Shape::kSubTiles; ++sub) {
      float* to = sums_of(ctx, slice, slice.split(), group, sub);
#pragma unroll
      for (u32 i = 0; i < kVectors; ++i) {
        store_float4(to + i * 4 * kWarpgroup, sum.template part<gemm::kSubTile>(sub).block(i));
      }
    }
    // The first barrier orders the stores of all threads before the release by one thread. The second barrier orders
    // that thread's acquire before the loads of all threads.
    sync();
    if (threadIdx.x % kWarpgroup == 0) {
      u32* stored = ctx.local_ptr(Workspace::splits_stored(slice.parity(), slice.tile(), group));
      const bool all = fetch_add_acq_rel_gpu(stored, 1) + 1 == slice.splits();
      if (all) store(stored, 0);
      store_shared(is_last, all);
    }
    sync();
    return load_shared(is_last) != 0;
  }

  // A thread: adds up its sums over all slices, from the first one on.
  static MK_DEVICE void add_sums(const RankContext& ctx, const KSlice& slice, u32 group, typename Shape::Accumulator& sum) {
#pragma unroll
    for (u32 sub = 0; sub < Shape::kSubTiles; ++sub) {
      SubTile own = sum.template part<gemm::kSubTile>(sub);
      own.fill(-0.0f);  // see VecSum
#pragma unroll 1
      for (u32 first = 0; first < slice.splits(); first += kInFlight) {
        float4 v[kInFlight][kVectors];
#pragma unroll
        for (u32 k = 0; k < kInFlight; ++k) {
          if (first + k >= slice.splits()) break;
          const float* from = sums_of(ctx, slice, first + k, group, sub);
#pragma unroll
          for (u32 i = 0; i < kVectors; ++i) v[k][i] = load_float4(from + i * 4 * kWarpgroup);
        }
#pragma unroll
        for (u32 k = 0; k < kInFlight; ++k) {
          if (first + k >= slice.splits()) break;
#pragma unroll
          for (u32 i = 0; i < kVectors; ++i) own.add(i, v[k][i]);
        }
      }
    }
  }

 private:
  // The address of a thread's sums of a sub-tile over a slice. A thread stores 16 bytes at a time, and its neighbour
  // the next 16 bytes.
  static MK_DEVICE float* sums_of(const RankContext& ctx, const KSlice& slice, u32 split, u32 group, u32 sub) {
    static_assert(SplitWorkspace<Workspace>);
    float* sums = ctx.local_ptr(Workspace::split_sums(slice.parity(), slice.tile() * slice.splits() + split));
    return sums + ((group * Shape::kSubTiles + sub) * kVectors * kWarpgroup + threadIdx.x % kWarpgroup) * 4;
  }
};

}  // namespace mk::moe
