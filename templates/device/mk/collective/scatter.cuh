// The tensor of a broadcast on its way from the root to all ranks of its node, chunk by chunk.
//
// The root sends each owner its shard, to the place in `gathered` where the other ranks of the node also get this shard.
// An owner waits for each chunk, copies it to the result, and sends it to the other ranks. The link of the root
// therefore carries the tensor once, not once for each rank. Across nodes the root also has a shard, which it sends to
// all ranks.
#pragma once
#include <mk/collective/gather.cuh>

namespace mk::collective {

template <class Workspace>
concept ScatterWorkspace = requires(u32 parity, u32 chunk) {
  Workspace::scattered(parity, chunk);  // the mark of the last call in which the root sent a chunk of this rank's shard
};

// Config: kPushWarps, as in Simple. The root of a world of one rank only copies.
template <ChunkConfig Config, TensorArgs Args, class Workspace>
  requires HasRoot<Config>
struct Scatter {
  using Ranks = Topology<Config>;
  using Shards = collective::Shards<Config>;
  using Chunks = collective::Chunks<Config>;
  using Tensors = collective::Tensors<Config, Args>;
  using Gathering = collective::Gather<Config, Workspace>;

  static constexpr bool kHasPeers = Ranks::kLocalWorld > 1;

  // A warp, number `worker` of `workers`: sends chunks from the root to their owners, or from an owner to all ranks.
  static MK_DEVICE void push(const Args& args, const RankContext& ctx, u32 worker, u32 workers) {
    if (ctx.rank == Config::kRoot) push_from_root(args, ctx, worker, workers);
    else if constexpr (kHasPeers) push_from_owner(args, ctx, worker, workers);
  }

 private:
  static MK_DEVICE void push_from_root(const Args& args, const RankContext& ctx, u32 worker, u32 workers) {
    const auto input = Tensors::input(args);
    const auto result = Tensors::output(args);
    for (u32 i = worker; i < Config::kOwners * Chunks::per_shard(ctx); i += workers) {
      const u32 owner = Shards::owner(i % Config::kOwners), chunk = i / Config::kOwners;
      const u32 vecs = Chunks::vecs_of(ctx, owner, chunk), first = Chunks::first(ctx, owner, chunk);
      if (vecs == 0) continue;
      const bool is_own = owner == ctx.rank;
      for_each_vec<Config::kUnroll>(
          vecs, [&](u32 vec) { return load_vec16(input.at(first + vec)); },
          [&](u32 vec, const Vec16& data) {
            store_vec16(result.at(first + vec), data);
            if constexpr (kHasPeers) {
              if (!is_own) store_vec16(on_node(ctx, owner, Gathering::slot(ctx, owner, chunk)) + vec * 16, data);
            }
            if constexpr (Ranks::kWorld > 1) {
              if (is_own) Gathering::send_vec(ctx, chunk, vec, data);
            }
          });
      if constexpr (kHasPeers) {
        if (!is_own) raise(ctx, owner, chunk);
      }
      if constexpr (Ranks::kWorld > 1) {
        if (is_own) Gathering::raise(ctx, ctx.rank, chunk, Gathering::kKeepsOwn);
      }
    }
  }

  static MK_DEVICE void push_from_owner(const Args& args, const RankContext& ctx, u32 worker, u32 workers) {
    const auto result = Tensors::output(args);
    for (u32 chunk = worker; chunk < Chunks::per_shard(ctx); chunk += workers) {
      const u32 vecs = Chunks::vecs_of(ctx, ctx.rank, chunk), first = Chunks::first(ctx, ctx.rank, chunk);
      if (vecs == 0) continue;
      wait_mark(ctx, ctx.local_ptr(Workspace::scattered(ctx.parity(), chunk)),
                WaitSite{kPush, kChunk, Config::kRoot, chunk, ctx.mark()});
      const Symmetric<u8> there = Gathering::slot(ctx, ctx.rank, chunk);
      const u8* from = ctx.local_ptr(there);
      for_each_vec<Config::kUnroll>(
          vecs, [&](u32 vec) { return load_written_vec16(from + vec * 16); },
          [&](u32 vec, const Vec16& data) {
            store_vec16(result.at(first + vec), data);
#pragma unroll 1
            for (u32 d = 1; d < Ranks::kLocalWorld; ++d) {
              const u32 to = (ctx.local_rank() + d) % Ranks::kLocalWorld;
              if (ctx.node_first_rank + to != Config::kRoot) store_vec16(ctx.peer_ptr(to, there) + vec * 16, data);
            }
          });
      Gathering::raise(ctx, ctx.rank, chunk, Gathering::kKeepsOwn);
    }
  }

  // A warp of the root, after it has sent the vectors of a chunk: raises the flag of the chunk on the owner.
  static MK_DEVICE void raise(const RankContext& ctx, u32 owner, u32 chunk) {
    static_assert(ScatterWorkspace<Workspace>);
    __syncwarp();
    if (lane_index() == 0) {
      fence_sys();
      store_relaxed_sys(on_node(ctx, owner, Workspace::scattered(ctx.parity(), chunk)), ctx.mark());
    }
  }

  // The address on a rank of this node.
  template <class T>
  static MK_DEVICE T* on_node(const RankContext& ctx, u32 rank, Symmetric<T> at) {
    return ctx.peer_ptr(rank - ctx.node_first_rank, at);
  }
};

}  // namespace mk::collective
