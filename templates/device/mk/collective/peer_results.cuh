// Chunks that ranks store directly to the results of the other ranks of a node, which lie at the same place of
// symmetric memory on all ranks.
//
// Nothing passes through `gathered`, so the ranks only wait for each other's flags. A result is in use until its rank
// begins the call, so a warp first waits until all ranks have begun the call (comm/begin.cuh).
#pragma once
#include <mk/collective/gather.cuh>

namespace mk::collective {

// Args: if results lie in symmetric memory, `results`: the addresses of the results on the ranks of this node.
template <ChunkConfig Config, TensorArgs Args, class Workspace>
struct PeerResults {
  using Ranks = Topology<Config>;
  using Chunks = collective::Chunks<Config>;
  using Tensors = collective::Tensors<Config, Args>;
  using Gathering = collective::Gather<Config, Workspace>;

  static constexpr bool kExist = requires(const Args& args) { args.results; };

  // A warp, before it stores the first vector: returns false if the warp must not store.
  static MK_DEVICE bool begin(const RankContext& ctx, Role role) {
    if constexpr (kExist) return comm::Begin<Config, Workspace>::wait_for_results(ctx, role);
    else return true;
  }

  // Sends vector `vec` of the tensor, which belongs to the own shard, to the other ranks.
  static MK_DEVICE void send_vec(const Args& args, const RankContext& ctx, u32 vec, const Vec16& data) {
    const u64 offset = Tensors::output(args).at(vec) - args.y;
#pragma unroll 1
    for (u32 i = 1; i < Ranks::kLocalWorld; ++i) {
      const u32 peer = (ctx.local_rank() + i) % Ranks::kLocalWorld;
      store_vec16(args.results[peer] + offset, data);
    }
  }

  // The address of vector `vec` of the result on a rank of this node.
  static MK_DEVICE u8* at(const Args& args, u32 local_rank, u32 vec) {
    return args.results[local_rank] + (Tensors::output(args).at(vec) - args.y);
  }

  // A warp, number `worker` of `workers`: waits until the other ranks' chunks are in the result. Each lane waits for
  // some chunks.
  static MK_DEVICE void collect(const RankContext& ctx, u32 worker, u32 workers) {
    constexpr u32 kPeers = Ranks::kLocalWorld - 1;
    for (u32 i = worker * kWarp + lane_index(); i < kPeers * Chunks::per_shard(ctx); i += workers * kWarp) {
      const u32 source = (ctx.local_rank() + 1 + i % kPeers) % Ranks::kLocalWorld, chunk = i / kPeers;
      if (Chunks::vecs_of(ctx, Chunks::Shards::sent_shard(source, ctx.rank), chunk) > 0) Gathering::wait_chunk(ctx, kCollect, source, chunk);
    }
  }
};

}  // namespace mk::collective
