// Chunks of shards. A warp moves a chunk at a time, 16 bytes per lane and access, and then raises one flag for the
// chunk.
#pragma once
#include <mk/collective/shards.cuh>
#include <mk/deadline.cuh>

namespace mk::collective {

template <class Config>
concept ChunkConfig = ShardConfig<Config> && requires {
  Config::kChunkVecs;  // vectors of every chunk except perhaps the last chunks of a shard
  Config::kUnroll;     // vectors that a lane has in flight
};

template <ChunkConfig Config>
struct Chunks {
  using Shards = collective::Shards<Config>;
  using Ranks = Topology<Config>;

  // The number of chunks in the shard of every rank except perhaps the last ranks.
  static MK_DEVICE u32 per_shard(const RankContext& ctx) {
    if constexpr (TakesRows<Config>) return (Shards::shard_vecs(ctx) + Config::kChunkVecs - 1) / Config::kChunkVecs;
    else return kCeilDiv<Config::kShardVecs, Config::kChunkVecs>;
  }

  // The first vector of a chunk of a rank's shard, counted within the shard and within the tensor, and the number of
  // the chunk's vectors.
  static MK_DEVICE u32 first_in_shard(u32 chunk) { return chunk * Config::kChunkVecs; }
  static MK_DEVICE u32 first(const RankContext& ctx, u32 owner, u32 chunk) {
    return Shards::first(ctx, owner) + first_in_shard(chunk);
  }
  static MK_DEVICE u32 vecs_of(const RankContext& ctx, u32 owner, u32 chunk) {
    const u32 in_shard = Shards::vecs_of(ctx, owner);
    return first_in_shard(chunk) < in_shard ? min(Config::kChunkVecs, in_shard - first_in_shard(chunk)) : 0;
  }

  // The place of a vector of the tensor.
  struct Place {
    u32 owner, chunk, vec;
  };
  static MK_DEVICE Place place_of(const RankContext& ctx, u32 vec) {
    const u32 owner = vec / Shards::shard_vecs(ctx), in_shard = vec - Shards::first(ctx, owner);
    return {owner, in_shard / Config::kChunkVecs, in_shard % Config::kChunkVecs};
  }

  // The bytes of `count` chunks from `chunk` on.
  static MK_DEVICE u32 bytes_of(const RankContext& ctx, u32 owner, u32 chunk, u32 count) {
    u32 vecs = 0;
    for (u32 i = chunk; i < chunk + count; ++i) vecs += vecs_of(ctx, owner, i);
    return vecs * 16;
  }
};

// A warp: calls `store(vec, load(vec))` for each of `vecs` vectors, by its number in the chunk. Loads of kUnroll
// vectors come before the stores of these vectors, which would delay the loads.
template <u32 kUnroll, class Load, class Store>
MK_DEVICE void for_each_vec(u32 vecs, const Load& load, const Store& store) {
#pragma unroll 1
  for (u32 first = lane_index(); first < vecs; first += kWarp * kUnroll) {
    decltype(load(0u)) data[kUnroll];
#pragma unroll
    for (u32 u = 0; u < kUnroll; ++u) {
      if (first + u * kWarp < vecs) data[u] = load(first + u * kWarp);
    }
#pragma unroll
    for (u32 u = 0; u < kUnroll; ++u) {
      if (first + u * kWarp < vecs) store(first + u * kWarp, data[u]);
    }
  }
}

// The number of a warp among all warps of its role, and the number of these warps, for a role with several warps in
// every CTA.
template <u32 kWarpsOfRole>
struct Workers {
  static MK_DEVICE u32 index(u32 warp) { return warp * gridDim.x + blockIdx.x; }
  static MK_DEVICE u32 count() { return kWarpsOfRole * gridDim.x; }
};

}  // namespace mk::collective
