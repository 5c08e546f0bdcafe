// Adds up the tensors of all ranks, chunk by chunk. The owner of a chunk, whose shard contains the chunk, gets the sum.
//
// A rank sends each peer of its node the chunks that the peer adds up. Across nodes, local rank g of each node adds up
// the chunks of its node for the shards of local rank g of every node. This rank rounds the sums for other nodes to the
// type of the elements, and puts the sums to these nodes. The owner adds the sums of nodes in the order of nodes.
// Within a node, the order is the order of ranks. Results are therefore bitwise repeatable. If results must not depend
// on the owner, the owner also rounds its node's sum.
#pragma once
#include <mk/batch_invariant.cuh>
#include <mk/collective/chunks.cuh>
#include <mk/comm/put.cuh>
#include <mk/vec_sum.cuh>

namespace mk::collective {

template <class Workspace>
concept PartialsWorkspace = requires(u32 parity, u32 node, u32 slot, u32 chunk) {
  // The vectors of a chunk from a rank of this node. The chunk belongs to the rank of this local rank on `node`. Slot s
  // is the slot of local rank (g + 1 + s) mod kLocalWorld, where g is this local rank.
  Workspace::partials(parity, node, slot, chunk);
  Workspace::partial_ready(parity, node, slot, chunk);  // the mark of the last call in which the chunk was sent
};

template <class Workspace>
concept NodeSumsWorkspace = requires(u32 parity, u32 peer, u32 chunk) {
  Workspace::sums_out(parity, peer, chunk);  // this node's sums of the chunks of a peer
  Workspace::sums_in(parity, peer, chunk);   // the sums of a peer's node for this rank's chunks
  Workspace::sum_ready(parity, peer, chunk);  // the mark of the call whose sum is in sums_out
};

// Config: Element, and kReduceUnroll, the number of vectors that a lane adds up at a time. Across nodes, Config also
// has kPutChunks, the number of chunks of a put.
template <ChunkConfig Config, class Workspace>
struct Reduce {
  using Ranks = Topology<Config>;
  using Chunks = collective::Chunks<Config>;
  using Network = comm::Network<Config, Workspace>;
  using Begin = comm::Begin<Config, Workspace>;
  using Sum = VecSum<typename Config::Element>;

  static constexpr u32 kChannel = 0;
  static constexpr u32 kPeers = Ranks::kLocalWorld - 1;  // peers of this node

  // A chunk of the shard of a rank on `node`. Chunks for other nodes come first, so a node waits for other nodes only
  // after its own puts have been posted.
  struct Unit {
    u32 node, chunk;
  };
  static MK_DEVICE u32 units(const RankContext& ctx) { return Ranks::kNodes * Chunks::per_shard(ctx); }
  static MK_DEVICE Unit unit_at(const RankContext& ctx, u32 index) {
    const u32 phase = index / Chunks::per_shard(ctx);
    return {(node_of(ctx) + 1 + phase) % Ranks::kNodes, index % Chunks::per_shard(ctx)};
  }

  // A warp, number `worker` of `workers`: sends this rank's vectors of the chunks that the peers of its node add up.
  template <class Input>
  static MK_DEVICE void send(const RankContext& ctx, const Input& input, u32 worker, u32 workers) {
    static_assert(kPeers == 0 || PartialsWorkspace<Workspace>);
    if constexpr (kPeers > 0) {
      for (u32 i = worker; i < units(ctx) * kPeers; i += workers) {
        const Unit unit = unit_at(ctx, i / kPeers);
        const u32 to = (ctx.local_rank() + 1 + i % kPeers) % Ranks::kLocalWorld;
        const u32 owner = unit.node * Ranks::kLocalWorld + to;
        const u32 vecs = Chunks::vecs_of(ctx, owner, unit.chunk), first = Chunks::first(ctx, owner, unit.chunk);
        if (vecs == 0) continue;
        const TraceStep traced(ctx.trace, kSendData, kPush, unit.chunk);
        const u32 slot = kPeers - 1 - i % kPeers;  // this rank's slot on the peer
        u8* there = ctx.peer_ptr(to, Workspace::partials(ctx.parity(), unit.node, slot, unit.chunk));
        for_each_vec<Config::kUnroll>(
            vecs, [&](u32 vec) { return load_vec16(input.at(first + vec)); },
            [&](u32 vec, const Vec16& data) { store_vec16(there + vec * 16, data); });
        __syncwarp();
        if (lane_index() == 0) {
          fence_sys();
          store_relaxed_sys(ctx.peer_ptr(to, ready(ctx, unit, slot)), ctx.mark());
          trace_flag(ctx.trace, kPeerPartial, ctx.node_first_rank + to, unit.chunk);
        }
      }
    }
  }

  // A warp: adds up chunks of the shards of this local rank. Calls `store(chunk, vec, sum, load(chunk, vec))` for each sum of the
  // own shard, in fp32, and `finish(chunk)` after each chunk of the own shard. Loads come before the stores of other vectors,
  // which would delay the loads.
  template <bool kStopsOnAbort, class Input, class Load, class Store, class Finish>
  static MK_DEVICE void reduce(const RankContext& ctx, const Input& input, u32 worker, u32 workers, const Load& load,
                               const Store& store, const Finish& finish) {
    for (u32 i = worker; i < units(ctx); i += workers) {
      const Unit unit = unit_at(ctx, i);
      const u32 owner = unit.node * Ranks::kLocalWorld + ctx.local_rank();
      const u32 vecs = Chunks::vecs_of(ctx, owner, unit.chunk);
      if (vecs == 0) continue;
      wait_partials(ctx, unit);
      const TraceStep traced(ctx.trace, kAddUp, kReduce, unit.chunk);
      if constexpr (kStopsOnAbort) {
        if (broadcast(gives_up(ctx, kReduce), 0)) return;
      }
      if (unit.node != node_of(ctx)) {
        if constexpr (Ranks::kNodes > 1) reduce_for_node(ctx, input, unit, owner, vecs);
      } else {
        if constexpr (Ranks::kNodes > 1) wait_node_sums(ctx, unit.chunk);
        add_up(
            ctx, input, unit, owner, vecs, [&](u32 vec) { return load(unit.chunk, vec); },
            [&](u32 vec, Sum& sum, const decltype(load(0u, 0u))& operands) {
              if constexpr (Ranks::kNodes > 1) add_node_sums(ctx, unit.chunk, vec, sum);
              store(unit.chunk, vec, sum, operands);
            });
        finish(unit.chunk);
      }
    }
  }

  // A warp, across nodes: puts the sums of other nodes' chunks, several chunks at a time.
  template <class Args>
  static MK_DEVICE void put_sums(const Args& args, const RankContext& ctx) {
    static_assert(NodeSumsWorkspace<Workspace>);
    if (lane_index() == 0) Begin::template put<Network>(args, ctx, kChannel);
    for (u32 phase = 0; phase < Ranks::kPeerNodes; ++phase) {
      const u32 node = (node_of(ctx) + 1 + phase) % Ranks::kNodes, peer = peer_of(ctx, node);
      const u32 owner = node * Ranks::kLocalWorld + ctx.local_rank();
      const u32 number_there = Network::own_number_at(ctx, peer);
      for (u32 first = 0; first < Chunks::per_shard(ctx); first += Config::kPutChunks) {
        const u32 count = min(Config::kPutChunks, Chunks::per_shard(ctx) - first);
        for (u32 chunk = first + lane_index(); chunk < first + count; chunk += kWarp) {
          if (Chunks::vecs_of(ctx, owner, chunk) == 0) continue;
          wait_mark(ctx, ctx.local_ptr(Workspace::sum_ready(ctx.parity(), peer, chunk)),
                    WaitSite{kPush, kPartial, ctx.rank, chunk, ctx.mark()});
        }
        __syncwarp();
        if (broadcast(gives_up(ctx, kPush), 0)) return;
        if (lane_index() != 0) continue;
        Network::put(args, ctx, peer, kChannel, Workspace::sums_out(ctx.parity(), peer, first),
                     Workspace::sums_in(ctx.parity(), number_there, first), Chunks::bytes_of(ctx, owner, first, count));
      }
    }
  }

 private:
  // The flag of the vectors that a rank of this node has sent.
  static MK_DEVICE Symmetric<u32> ready(const RankContext& ctx, const Unit& unit, u32 slot) {
    return Workspace::partial_ready(ctx.parity(), unit.node, slot, unit.chunk);
  }

  static MK_DEVICE u32 node_of(const RankContext& ctx) { return ctx.node_first_rank / Ranks::kLocalWorld; }
  // The number of another node among the peers.
  static MK_DEVICE u32 peer_of(const RankContext& ctx, u32 node) { return node < node_of(ctx) ? node : node - 1; }

  // A warp: waits until all peers of this node have sent their vectors of a chunk.
  static MK_DEVICE void wait_partials(const RankContext& ctx, const Unit& unit) {
    if constexpr (kPeers > 0) {
      const u32 slot = lane_index();
      if (slot < kPeers) {
        const u32 peer = ctx.node_first_rank + (ctx.local_rank() + 1 + slot) % Ranks::kLocalWorld;
        wait_mark(ctx, ctx.local_ptr(ready(ctx, unit, slot)),
                  WaitSite{kReduce, kPeerPartial, peer, unit.chunk, ctx.mark()});
      }
      __syncwarp();
    }
  }

  // A warp: waits until the sums of all other nodes have arrived.
  static MK_DEVICE void wait_node_sums(const RankContext& ctx, u32 chunk) {
    if (lane_index() < Ranks::kPeerNodes) {
      Network::wait_put(ctx, kReduce, kChannel, lane_index(), Begin::kPuts + chunk / Config::kPutChunks);
    }
    __syncwarp();
  }

  // A warp: adds up the vectors of this node's ranks, in the order of ranks. Calls `then(vec, sum, load(vec))` for each sum.
  template <class Input, class Load, class Then>
  static MK_DEVICE void add_up(const RankContext& ctx, const Input& input, const Unit& unit, u32 owner, u32 vecs,
                               const Load& load, const Then& then) {
    constexpr u32 kUnroll = Config::kReduceUnroll;
    const u32 first_vec = Chunks::first(ctx, owner, unit.chunk);
#pragma unroll 1
    for (u32 first = lane_index(); first < vecs; first += kWarp * kUnroll) {
      Vec16 parts[kUnroll][Ranks::kLocalWorld];
      decltype(load(0u)) operands[kUnroll];
#pragma unroll
      for (u32 u = 0; u < kUnroll; ++u) {
        const u32 vec = first + u * kWarp;
        if (vec >= vecs) continue;
        operands[u] = load(vec);
#pragma unroll
        for (u32 source = 0; source < Ranks::kLocalWorld; ++source) {
          if (source == ctx.local_rank()) {
            parts[u][source] = load_vec16(input.at(first_vec + vec));
          } else if constexpr (kPeers > 0) {
            const u32 slot = (source + kPeers - ctx.local_rank()) % Ranks::kLocalWorld;
            const u8* from = ctx.local_ptr(Workspace::partials(ctx.parity(), unit.node, slot, unit.chunk));
            parts[u][source] = load_written_vec16(from + vec * 16);
          }
        }
      }
#pragma unroll
      for (u32 u = 0; u < kUnroll; ++u) {
        const u32 vec = first + u * kWarp;
        if (vec >= vecs) continue;
        Sum sum;
#pragma unroll
        for (u32 source = 0; source < Ranks::kLocalWorld; ++source) sum.add(parts[u][source]);
        then(vec, sum, operands[u]);
      }
    }
  }

  // A warp: stores this node's sums of a chunk of another node to `sums_out`, from which they are put.
  template <class Input>
  static MK_DEVICE void reduce_for_node(const RankContext& ctx, const Input& input, const Unit& unit, u32 owner,
                                        u32 vecs) {
    const u32 peer = peer_of(ctx, unit.node);
    u8* to = ctx.local_ptr(Workspace::sums_out(ctx.parity(), peer, unit.chunk));
    add_up(
        ctx, input, unit, owner, vecs, [](u32) { return NoOperands{}; },
        [&](u32 vec, const Sum& sum, NoOperands) { store_vec16(to + vec * 16, sum.result()); });
    __syncwarp();
    if (lane_index() == 0) {
      fence_sys();
      store_relaxed_sys(ctx.local_ptr(Workspace::sum_ready(ctx.parity(), peer, unit.chunk)), ctx.mark());
    }
  }

  // Adds the other nodes' sums to this node's sum, in the order of nodes.
  static MK_DEVICE void add_node_sums(const RankContext& ctx, u32 chunk, u32 vec, Sum& sum) {
    Sum total;
#pragma unroll
    for (u32 node = 0; node < Ranks::kNodes; ++node) {
      if (node == node_of(ctx)) {
        if constexpr (BatchInvariant<Config>) {
          total.add(sum.result());
          continue;
        }
#pragma unroll
        for (u32 i = 0; i < Sum::kElements; ++i) total.values[i] += sum.values[i];
      } else {
        const u8* from = ctx.local_ptr(Workspace::sums_in(ctx.parity(), peer_of(ctx, node), chunk));
        total.add(load_written_vec16(from + vec * 16));
      }
    }
    sum = total;
  }
};

}  // namespace mk::collective
