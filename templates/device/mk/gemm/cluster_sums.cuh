// Tiles whose sum over K the CTAs of a cluster share.
//
// Each CTA has the sum over a slice of K for the whole tile, as in split_k.cuh, but sums travel through shared memory. Each
// CTA completes an equal share of the columns, so that no CTA adds for long. A CTA stores its sums of the other columns in
// the shared memory of the CTAs that complete these columns. Every CTA has one tile in a call, so every barrier has one
// phase.
//
// A CTA ends when it has the sums of all other CTAs. By then, no other CTA needs its shared memory any more.
#pragma once
#include <mk/cluster.cuh>
#include <mk/gemm/tile_scheduler.cuh>

namespace mk::gemm {

MK_DEVICE Vec16 as_vec16(float4 v) { return {as_bits(v.x), as_bits(v.y), as_bits(v.z), as_bits(v.w)}; }
MK_DEVICE float4 as_floats(Vec16 v) { return {as_float(v.x), as_float(v.y), as_float(v.z), as_float(v.w)}; }

template <class Smem>
concept ClusterSmem = requires(const Smem smem, u32 from, u32 block, u32 warp) {
  // A warp's sums of a block over the slice of K of another CTA: 16 bytes of each lane. Indices count the other CTAs
  // without this CTA, blocks from the first block that this CTA completes, and warps over both groups without warps that
  // never have rows.
  smem.cluster_sums(from, block, warp);
  smem.cluster_full(warp);  // complete when a warp has the sums of all other CTAs
  smem.entered();           // whether this CTA has entered the call
};

template <class Config>
concept ClusterConfig = ScheduleConfig<Config> && requires {
  Config::kWarpsWithRows;  // of a group
};

template <ClusterConfig Config, ClusterSmem Smem>
struct ClusterSums {
  using Shape = TileShape<Config>;

  static constexpr u32 kCtas = Config::kSplits;
  // Blocks of 8 columns of a group. A thread has four sums of each block. One CTA completes all sums of a block of C.
  static constexpr u32 kBlocks = Shape::kGroupN / Fragment::kBlockCols;
  static constexpr u32 kBlocksOfC = Shape::kGroupCols / Fragment::kBlockCols;
  static_assert(2 <= kCtas && kCtas <= kBlocksOfC && Config::kWholeTiles == 0 && Config::kCommCtas == 0);

  // The CTA of the cluster that completes a block, and the first block of C that a CTA completes.
  static MK_DEVICE constexpr u32 owner(u32 block) { return block % kBlocksOfC * kCtas / kBlocksOfC; }
  static MK_DEVICE constexpr u32 first_block(u32 cta) { return (cta * kBlocksOfC + kCtas - 1) / kCtas; }
  // The index of a block among the blocks that CTA `cta` completes.
  static MK_DEVICE constexpr u32 index_at(u32 cta, u32 block) {
    return block % kBlocksOfC - first_block(cta) + block / kBlocksOfC * kCeilDiv<kBlocksOfC, kCtas>;
  }

  // One thread, before the CTA enters the call.
  static MK_DEVICE void init_barriers(const Smem& smem) {
    for (u32 warp = 0; warp < kGroups * Config::kWarpsWithRows; ++warp) barrier_init(smem.cluster_full(warp), kCtas - 1);
  }

  // All threads of all CTAs of a cluster: whether all CTAs have entered the call. If a CTA has not, all must end. No CTA
  // then ends before the other CTAs have read its word.
  static MK_DEVICE bool all_entered(const Smem& smem, bool entered) {
    if (threadIdx.x == 0) store_shared(smem.entered(), entered);
    // After this, all CTAs have started and their barriers are initialised.
    cluster_sync();
    // One warp reads, so that all accesses of the CTA behind its barrier also come after the reads.
    u32 is_refused = 0;
    if (threadIdx.x < kCtas) is_refused = load_shared_cluster(cluster_address(smem.entered(), threadIdx.x)) == 0;
    if (__syncthreads_or(is_refused) == 0) return true;
    cluster_sync();
    return false;
  }

  // Warp `warp` of both groups, which has rows: sends its sums of the blocks that other CTAs complete, and adds the sums of
  // the other CTAs, in the order of K, to its own sums of the blocks that this CTA completes.
  static MK_DEVICE void exchange(const RankContext& ctx, const Smem& smem, const WorkTile& work, u32 warp,
                                 typename Shape::Accumulator& sum) {
    const u32 place = warp / kWarpgroupWarps * Config::kWarpsWithRows + warp % kWarpgroupWarps;
    const u32 own = work.split, lane = lane_index();
#pragma unroll
    for (u32 block = 0; block < kBlocks; ++block) {
      const u32 to = owner(block);
      if (to == own) continue;
      const u32 from = own < to ? own : own - 1;
      const u32 sums = smem.cluster_sums(from, index_at(to, block), place) + lane * 16;
      store_shared_cluster_vec16(cluster_address(sums, to), as_vec16(sum.block(block)));
    }
    // The barrier of the warp orders the stores of all lanes before the arrivals. Each lane makes at most one arrival.
    __syncwarp();
    const u32 full = smem.cluster_full(place);
    if (lane < kCtas && lane != own) barrier_arrive_cluster(cluster_address(full, lane));
    wait_barrier<barrier_try_wait_cluster>(ctx, full, 0, kMultiply, kPartial, work.split_tile);
#pragma unroll
    for (u32 block = 0; block < kBlocks; ++block) {
      if (owner(block) != own) continue;
      if constexpr (BatchInvariant<Config>) {
        add_as_tree(own, block, sum, [&](u32 cta) {
          return smem.cluster_sums(cta < own ? cta : cta - 1, index_at(own, block), place) + lane * 16;
        });
      } else {
#pragma unroll
        for (u32 from = 0; from < kCtas - 1; ++from) {
          const Vec16 v = load_shared_vec16(smem.cluster_sums(from, index_at(own, block), place) + lane * 16);
          sum.add(block, as_floats(v));
        }
      }
    }
  }

 private:
  // A lane: adds the sums of the other CTAs to its own sums of a block as a binary tree over the slices of K, as SplitK
  // does.
  template <class SumsOf>
  static MK_DEVICE void add_as_tree(u32 own, u32 block, typename Shape::Accumulator& sum, const SumsOf& sums_of) {
    static_assert(!BatchInvariant<Config> || kCtas == 2 || kCtas == 4);
#pragma unroll
    for (u32 distance = 1; distance < kCtas; distance *= 2) {
      float4 v = as_floats(load_shared_vec16(sums_of(own ^ distance)));
      if (distance == 2) {
        const float4 w = as_floats(load_shared_vec16(sums_of(own ^ 3)));
        v.x += w.x, v.y += w.y, v.z += w.z, v.w += w.w;
      }
      sum.add(block, v);
    }
  }
};

}  // namespace mk::gemm
