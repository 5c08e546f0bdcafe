// The exchange of shards: each rank sends each rank that rank's shard of its tensor, chunk by chunk.
//
// A chunk for a rank of this node goes to `gathered` there, or straight to the result there. A chunk for a rank of another
// node first goes to `outgoing` on the rank of this node that has the same local rank as the owner, which puts the chunk to
// `gathered` on the owner. Each byte therefore crosses NVLink and a NIC at most once.
#pragma once
#include <mk/collective/gather.cuh>
#include <mk/collective/peer_results.cuh>

namespace mk::collective {

template <class Workspace>
concept OutgoingWorkspace = requires(u32 parity, u32 peer, u32 source, u32 chunk) {
  Workspace::outgoing(parity, peer, source, chunk);        // a chunk for a peer, from a local rank
  Workspace::outgoing_ready(parity, peer, source, chunk);  // the mark of the last call in which the chunk was sent
};

// Config: across nodes kPutChunks, as in Gather.
template <ChunkConfig Config, TensorArgs Args, class Workspace>
  requires SendsToOwners<Config>
struct Exchange {
  using Ranks = Topology<Config>;
  using Shards = collective::Shards<Config>;
  using Chunks = collective::Chunks<Config>;
  using Tensors = collective::Tensors<Config, Args>;
  using Gathering = collective::Gather<Config, Workspace>;
  using PeerResults = collective::PeerResults<Config, Args, Workspace>;
  using Network = comm::Network<Config, Workspace>;
  using Begin = comm::Begin<Config, Workspace>;

  // A warp, number `worker` of `workers`: sends chunks to their owners, or to the ranks that put the chunks to their
  // owners, and copies the own chunks to the result. Chunks for other nodes come first. Each rank begins with another rank,
  // so that not all ranks send to the same rank first.
  static MK_DEVICE void push(const Args& args, const RankContext& ctx, u32 worker, u32 workers) {
    const auto result = Tensors::output(args);
    const u32 of_node = Ranks::kLocalWorld * Chunks::per_shard(ctx);
    for (u32 i = worker; i < Ranks::kNodes * of_node; i += workers) {
      const u32 node = (ctx.rank / Ranks::kLocalWorld + 1 + i / of_node) % Ranks::kNodes;
      const u32 local_rank = (ctx.local_rank() + 1 + i % Ranks::kLocalWorld) % Ranks::kLocalWorld;
      const Unit unit{node * Ranks::kLocalWorld + local_rank, i % of_node / Ranks::kLocalWorld};
      if (Chunks::vecs_of(ctx, unit.to, unit.chunk) == 0) continue;
      const u32 first = Shards::first_in_result(ctx, ctx.rank, unit.to) + Chunks::first_in_shard(unit.chunk);
      if (unit.to == ctx.rank) {
        copy(args, ctx, unit, [&](u32 vec) { return result.at(first + vec); });
      } else if (node != ctx.rank / Ranks::kLocalWorld) {
        if constexpr (Ranks::kNodes > 1) send_to_node(args, ctx, unit, local_rank);
      } else if constexpr (PeerResults::kExist) {
        copy(args, ctx, unit, [&](u32 vec) { return PeerResults::at(args, local_rank, first + vec); });
        raise(ctx, local_rank, Gathering::ready(ctx, ctx.rank, unit.chunk));
      } else if constexpr (Ranks::kLocalWorld > 1) {
        u8* there = ctx.peer_ptr(local_rank, Gathering::slot(ctx, ctx.rank, unit.chunk));
        copy(args, ctx, unit, [&](u32 vec) { return there + vec * 16; });
        raise(ctx, local_rank, Gathering::ready(ctx, ctx.rank, unit.chunk));
      }
    }
  }

  // A warp, across nodes: puts the chunks in `outgoing` to their owners, several chunks of a source at a time. Puts without
  // vectors are also posted, since every peer waits for all puts. Other ranks store to `outgoing` in the second call after
  // this call, so this call does not end before the NIC has read `outgoing`.
  static MK_DEVICE void put_all(const Args& args, const RankContext& ctx) {
    static_assert(OutgoingWorkspace<Workspace>);
    if (lane_index() == 0) Begin::template put<Network>(args, ctx, Gathering::kFirstChannel);
    const u32 puts = ceil_div(Chunks::per_shard(ctx), Config::kPutChunks) * Ranks::kLocalWorld;
    u32 last = 0;
    for (u32 i = 0; i < Ranks::kPeerNodes * puts; ++i) {
      const u32 node = (ctx.rank / Ranks::kLocalWorld + 1 + i / puts) % Ranks::kNodes, put = i % puts;
      const u32 owner = node * Ranks::kLocalWorld + ctx.local_rank(), peer = Network::peer_of_rank(ctx, owner);
      const u32 source = put % Ranks::kLocalWorld, first = put / Ranks::kLocalWorld * Config::kPutChunks;
      const u32 count = min(Config::kPutChunks, Chunks::per_shard(ctx) - first);
      for (u32 chunk = first + lane_index(); chunk < first + count; chunk += kWarp) {
        if (Chunks::vecs_of(ctx, owner, chunk) == 0) continue;
        wait_mark(ctx, ctx.local_ptr(Workspace::outgoing_ready(ctx.parity(), peer, source, chunk)),
                  WaitSite{kPush, kChunk, ctx.node_first_rank + source, chunk, ctx.mark()});
      }
      __syncwarp();
      if (broadcast(gives_up(ctx, kPush), 0)) return;
      if (lane_index() != 0) continue;
      last = Network::put(args, ctx, peer, Gathering::kFirstChannel, Workspace::outgoing(ctx.parity(), peer, source, first),
                          Gathering::slot(ctx, ctx.node_first_rank + source, first), Chunks::bytes_of(ctx, owner, first, count));
    }
    if (lane_index() == 0 && puts > 0) Network::wait_sent(args, ctx, last);
  }

 private:
  // A chunk of the shard of rank `to`.
  struct Unit {
    u32 to, chunk;
  };

  // A warp: copies a chunk from the tensor to the addresses `at(vec)`.
  template <class At>
  static MK_DEVICE void copy(const Args& args, const RankContext& ctx, const Unit& unit, const At& at) {
    const auto input = Tensors::input(args);
    const u32 first = Chunks::first(ctx, unit.to, unit.chunk);
    for_each_vec<Config::kUnroll>(
        Chunks::vecs_of(ctx, unit.to, unit.chunk), [&](u32 vec) { return load_vec16(input.at(first + vec)); },
        [&](u32 vec, const Vec16& data) { store_vec16(at(vec), data); });
  }

  static MK_DEVICE void send_to_node(const Args& args, const RankContext& ctx, const Unit& unit, u32 local_rank) {
    const u32 peer = Network::peer_of_rank(ctx, unit.to);
    u8* there = ctx.peer_ptr(local_rank, Workspace::outgoing(ctx.parity(), peer, ctx.local_rank(), unit.chunk));
    copy(args, ctx, unit, [&](u32 vec) { return there + vec * 16; });
    raise(ctx, local_rank, Workspace::outgoing_ready(ctx.parity(), peer, ctx.local_rank(), unit.chunk));
  }

  // A warp, after it has sent the vectors of a chunk: raises the flag of the chunk on a rank of this node.
  static MK_DEVICE void raise(const RankContext& ctx, u32 local_rank, Symmetric<u32> flag) {
    __syncwarp();
    if (lane_index() == 0) {
      fence_sys();
      store_relaxed_sys(ctx.peer_ptr(local_rank, flag), ctx.mark());
    }
  }
};

}  // namespace mk::collective
