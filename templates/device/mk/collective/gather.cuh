// Sends shards to all ranks, chunk by chunk.
//
// A rank sends the chunks of its shard to `gathered` on the peers of its node. A flag per chunk holds the mark of the
// call in which the chunk has arrived. Across nodes, the rank also keeps the chunks in its own `gathered`. Each put
// takes several chunks from there to the same place on the rank of the same local rank on every other node. That rank
// forwards the chunks to the peers of its node.
#pragma once
#include <mk/collective/chunks.cuh>
#include <mk/comm/put.cuh>

namespace mk::collective {

template <class Workspace>
concept GatherWorkspace = requires(u32 parity, u32 source, u32 chunk) {
  Workspace::gathered(parity, source, chunk);
  Workspace::chunk_ready(parity, source, chunk);  // the mark of the last call in which the chunk arrived
};

// Across nodes, Config also has kPutChunks, the number of chunks of a put. Only kernels that gather instantiate the
// functions, and only the functions need the regions.
template <ChunkConfig Config, class Workspace>
struct Gather {
  using Ranks = Topology<Config>;
  using Shards = collective::Shards<Config>;
  using Chunks = collective::Chunks<Config>;
  using Network = comm::Network<Config, Workspace>;
  using Begin = comm::Begin<Config, Workspace>;

  // Whether a rank also keeps its own chunks in its `gathered`: puts take chunks from there, and warps that normalise
  // rows find all chunks there.
  static constexpr bool kKeepsOwn = Ranks::kNodes > 1 || NormalisesRows<Config>;

  static constexpr u32 kFirstChannel = 0;

  // The place of a chunk of a source, and its flag.
  static MK_DEVICE Symmetric<u8> slot(const RankContext& ctx, u32 source, u32 chunk) {
    static_assert(GatherWorkspace<Workspace>);
    return Workspace::gathered(ctx.parity(), Shards::number(source), chunk);
  }
  static MK_DEVICE Symmetric<u32> ready(const RankContext& ctx, u32 source, u32 chunk) {
    return Workspace::chunk_ready(ctx.parity(), Shards::number(source), chunk);
  }

  // Sends one vector of a chunk of the own shard to the ranks of this node.
  static MK_DEVICE void send_vec(const RankContext& ctx, u32 chunk, u32 vec, const Vec16& data) {
    const Symmetric<u8> to = slot(ctx, ctx.rank, chunk);
#pragma unroll 1
    for (u32 i = kKeepsOwn ? 0 : 1; i < Ranks::kLocalWorld; ++i) {
      const u32 peer = (ctx.local_rank() + i) % Ranks::kLocalWorld;
      store_vec16(ctx.peer_ptr(peer, to) + vec * 16, data);
    }
  }

  // A warp, after it has sent the vectors of a chunk: raises the flag of the chunk on the ranks that have received the
  // chunk.
  static MK_DEVICE void raise(const RankContext& ctx, u32 source, u32 chunk, bool is_here) {
    __syncwarp();
    const u32 peer = lane_index();
    if (peer < Ranks::kLocalWorld && (is_here || peer != ctx.local_rank())) {
      // A sum that a wait has left incomplete gets no flag. The load takes no time beside the fence.
      const bool is_valid = !is_aborted(ctx);
      // This fence orders the stores of the whole warp before the flag.
      fence_sys();
      if (!is_valid) return;
      store_relaxed_sys(ctx.peer_ptr(peer, ready(ctx, source, chunk)), ctx.mark());
      trace_flag(ctx.trace, kChunk, ctx.node_first_rank + peer, chunk);
    }
  }

  static MK_DEVICE void wait_chunk(const RankContext& ctx, Role role, u32 source, u32 chunk) {
    if constexpr (SendsToOwners<Config> && Ranks::kNodes > 1) {
      // The rank with this local rank has put the chunk here.
      if (source / Ranks::kLocalWorld != ctx.rank / Ranks::kLocalWorld) {
        const u32 put = chunk / Config::kPutChunks * Ranks::kLocalWorld + source % Ranks::kLocalWorld;
        Network::wait_put(ctx, role, kFirstChannel, Network::peer_of_rank(ctx, source), Begin::kPuts + put);
        return;
      }
    }
    wait_mark(ctx, ctx.local_ptr(ready(ctx, source, chunk)),
              WaitSite{role, kChunk, source, chunk, ctx.mark()});
  }

  // A warp, number `worker` of `workers`: copies the other ranks' chunks to the result as they arrive. Chunks of this
  // node come first.
  template <class Result>
  static MK_DEVICE void collect(const RankContext& ctx, const Result& result, u32 worker, u32 workers) {
    if constexpr (Ranks::kLocalWorld > 1) {
      constexpr u32 kNear = Ranks::kLocalWorld - 1;
      for (u32 i = worker; i < kNear * Chunks::per_shard(ctx); i += workers) {
        const u32 source = (ctx.local_rank() + 1 + i % kNear) % Ranks::kLocalWorld;
        collect_chunk(ctx, result, ctx.node_first_rank + source, i / kNear);
      }
    }
    if constexpr (Ranks::kNodes > 1) {
      constexpr u32 kFar = Ranks::kWorld - Ranks::kLocalWorld;
      for (u32 i = worker; i < kFar * Chunks::per_shard(ctx); i += workers) {
        const u32 source = ctx.node_first_rank + Ranks::kLocalWorld + i % kFar;
        collect_chunk(ctx, result, source % Ranks::kWorld, i / kFar);
      }
    }
  }

  // A warp, across nodes: puts the own chunks to all peers, as soon as the chunks are in `gathered`. Puts without
  // vectors are also posted, since every peer waits for all puts.
  template <u32 kChannel, class Args>
  static MK_DEVICE void put_all(const Args& args, const RankContext& ctx) {
    if (lane_index() == 0) Begin::template put<Network>(args, ctx, kChannel);
    for (u32 first = 0; first < Chunks::per_shard(ctx); first += Config::kPutChunks) {
      const u32 count = min(Config::kPutChunks, Chunks::per_shard(ctx) - first);
      for (u32 chunk = first + lane_index(); chunk < first + count; chunk += kWarp) {
        if (Chunks::vecs_of(ctx, ctx.rank, chunk) > 0) wait_chunk(ctx, kPush, ctx.rank, chunk);
      }
      __syncwarp();
      if (broadcast(gives_up_puts(ctx), 0)) return;
      if (lane_index() != 0) continue;
      const Symmetric<u8> from = slot(ctx, ctx.rank, first);
      Network::put_to_all(args, ctx, kChannel, from, Chunks::bytes_of(ctx, ctx.rank, first, count));
    }
  }

  // A warp, across nodes: forwards chunks that peers have put here to the ranks of this node.
  template <u32 kChannel>
  static MK_DEVICE void relay(const RankContext& ctx, u32 worker, u32 workers) {
    for (u32 i = worker; i < Ranks::kPeerNodes * Chunks::per_shard(ctx); i += workers) {
      const u32 peer = i % Ranks::kPeerNodes, chunk = i / Ranks::kPeerNodes;
      const u32 source = Network::rank_of_peer(ctx, peer), vecs = Chunks::vecs_of(ctx, source, chunk);
      if (vecs == 0) continue;
      Network::wait_put(ctx, kPush, kChannel, peer, Begin::kPuts + chunk / Config::kPutChunks);
      if (broadcast(is_aborted(ctx), 0)) return;
      const TraceStep traced(ctx.trace, kSendData, kPush, chunk);
      const Symmetric<u8> there = slot(ctx, source, chunk);
      const u8* from = ctx.local_ptr(there);
      if constexpr (Ranks::kLocalWorld > 1) {
        for_each_vec<Config::kUnroll>(
            vecs, [&](u32 vec) { return load_written_vec16(from + vec * 16); },
            [&](u32 vec, const Vec16& data) {
#pragma unroll 1
              for (u32 d = 1; d < Ranks::kLocalWorld; ++d) {
                const u32 to = (ctx.local_rank() + d) % Ranks::kLocalWorld;
                store_vec16(ctx.peer_ptr(to, there) + vec * 16, data);
              }
            });
      }
      raise(ctx, source, chunk, true);
    }
  }

 private:
  // Whether the call was aborted before a put. The root of a broadcast has no earlier wait that would find that other ranks have
  // given up the call because of its rows.
  static MK_DEVICE bool gives_up_puts(const RankContext& ctx) {
    if constexpr (HasRoot<Config> && TakesRows<Config>) {
      if (is_aborted(ctx)) {
        fence_sys();  // orders the abort before the words of the rank that raised it
        if (refuse_other_rows(ctx, kPush)) return true;
      }
    }
    return gives_up(ctx, kPush);
  }

  template <class Result>
  static MK_DEVICE void collect_chunk(const RankContext& ctx, const Result& result, u32 source, u32 chunk) {
    const u32 vecs = Chunks::vecs_of(ctx, Shards::sent_shard(source, ctx.rank), chunk);
    const u32 first = Shards::first_in_result(ctx, source, ctx.rank) + Chunks::first_in_shard(chunk);
    if (vecs == 0) return;
    wait_chunk(ctx, kCollect, source, chunk);
    const TraceStep traced(ctx.trace, kCopyData, mk::kCollect, chunk);
    const u8* from = ctx.local_ptr(slot(ctx, source, chunk));
    for_each_vec<Config::kUnroll>(
        vecs, [&](u32 vec) { return load_written_vec16(from + vec * 16); },
        [&](u32 vec, const Vec16& data) { store_vec16(result.at(first + vec), data); });
  }
};

}  // namespace mk::collective
