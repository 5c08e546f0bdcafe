// How K and V travel: to the ranks of this node by TMA, to the other nodes by NIC, head by head.
//
// Within a node, warps bring the own keys to shared memory part by part and store them to the ranks that need them, a count
// behind each part. Across nodes the own keys also go to this rank's own slots, from where they are put to the slots of the
// rank of the same local rank on every other node, some blocks of a head at a time. That rank raises the flags as if the
// source had, and forwards the keys to the ranks of its node that need them; these give their credits to the rank that
// forwards, not to the source.
#pragma once
#include <mk/attention/kv_slots.cuh>
#include <mk/comm/put.cuh>

namespace mk::attention {

template <class Config>
concept KvExchangeConfig = KvSlotsConfig<Config> && requires {
  Config::kPushCtas;
  Config::kPushWarps;  // of each
};

template <class Config>
concept KvNetworkConfig = KvExchangeConfig<Config> && comm::NetworkConfig<Config> && requires {
  Config::kPutTiles;    // of K and V in a put, at most
  Config::kForwardLag;  // own parts that a warp sends before it forwards the first part of a peer
};

// Before the first stage is loaded on one node, when it may lie where stages will; beside them across nodes.
template <class Smem>
concept KvExchangeSmem = requires(const Smem smem, u32 warp) {
  smem.push(warp);  // a part of a block
  smem.push_full(warp);
};

template <KvExchangeConfig Config, class Args, class Workspace, KvExchangeSmem Smem, MaskPolicy Mask>
struct KvExchange {
  using Slots = KvSlots<Config, Workspace, Mask>;
  using Sequence = attention::Sequence<Config>;
  using Shape = TileShape<Config>;
  using Ranks = Topology<Config>;
  using Network = comm::Network<Config, Workspace>;

  // One thread.
  static MK_DEVICE void init_barriers(const Smem& smem) {
    for (u32 warp = 0; warp < Config::kPushWarps; ++warp) barrier_init(smem.push_full(warp), 1);
  }

  // A warp, one of kPushCtas x kPushWarps: own K and V, and by turns what peers on other nodes put here, kForwardLag parts
  // later. So NICs and the links of this node carry the same heads at a time; were all own parts sent first, most heads
  // would wait to be forwarded.
  static MK_DEVICE void push(const Args& args, const RankContext& ctx, const Smem& smem, u32 warp) {
    constexpr u32 kHeads = Config::kBatch * Config::kKvHeads;
    constexpr u32 kParts = kHeads * Sequence::kRowTiles * Slots::kParts;
    Buffer buffer{smem.push(warp), smem.push_full(warp)};
    for (u32 i = warp * Config::kPushCtas + blockIdx.x; i < kParts + kForwardLag; i += Config::kPushCtas * Config::kPushWarps) {
      if (i < kParts) push_part(args, ctx, part_at(ctx.rank, i), buffer);
      if constexpr (Ranks::kNodes > 1) {
        for (u32 peer = 0; peer < Ranks::kPeerNodes && i >= kForwardLag; ++peer) {
          if (!forward_part(ctx, peer, i - kForwardLag, buffer)) return;
        }
      }
    }
  }

  // A warp: own K and V to the peers on other nodes that need them, each put as soon as all of it is in own slots.
  static MK_DEVICE void put_all(const Args& args, const RankContext& ctx)
    requires KvNetworkConfig<Config>
  {
    const u32 lane = lane_index();
    for (u32 index = 0; index < Config::kPutsPerPeer; ++index) {
      const u32 head = index / kChunkPuts / Config::kRankChunks, rank_chunk = index / kChunkPuts % Config::kRankChunks;
      const u32 first_row = index % kChunkPuts * kPutRows;
      const u32 end = min(first_row + kPutRows, Sequence::chunk_rows(ctx.rank, rank_chunk));
      const u32 chunk = Sequence::chunk_of(ctx.rank, rank_chunk);
      // If nobody needs them, or there are none, the put is empty: it only counts.
      const bool is_empty = end <= first_row || !is_put(ctx, chunk);
      const u32 tiles = is_empty ? 0 : (end - first_row + Config::kTileKeys - 1) / Config::kTileKeys;
      const Slot slot(ctx.epoch, head / Config::kKvHeads, head % Config::kKvHeads);
      const BlockSlot first(slot, ctx.rank, rank_chunk, first_row);
      for (u32 i = lane; i < tiles; i += kWarp) {
        BlockSlot block = first;
        block.tile += i;
        wait_flag(ctx, ctx.local_ptr(block.ready()),
                  WaitSite{kPush, kChunk, ctx.rank, block.number(), ctx.epoch * Slots::kParts});
      }
      __syncwarp();
      if (broadcast(is_aborted(ctx), 0) != 0) return;
      if (elect_one()) {
        const Symmetric<u8> blocks = first.part(ctx, 0);
        for (u32 i = 0; i < Ranks::kPeerNodes; ++i) {
          // Nodes begin with different peers, so that their puts do not all go to the same node first.
          const u32 peer = (ctx.rank / Ranks::kLocalWorld + i) % Ranks::kPeerNodes;
          const bool is_needed = node_attends(Network::rank_of_peer(ctx, peer) / Ranks::kLocalWorld, chunk);
          Network::put(args, ctx, peer, 0, blocks, blocks, is_needed ? tiles * 2 * Shape::kTileBytes : 0);
        }
      }
      __syncwarp();
    }
  }

 private:
  using Slot = typename Slots::Slot;
  using BlockSlot = typename Slots::BlockSlot;

  static constexpr u32 forward_lag() {
    if constexpr (Ranks::kNodes > 1) {
      // A put that a rank waits for then has only parts that its source sends before it waits for a put itself. Ranks could
      // wait for each other's puts otherwise.
      static_assert(Config::kForwardLag >= Config::kPutTiles * Slots::kParts);
      return Config::kForwardLag;
    } else {
      return 0;
    }
  }
  static constexpr u32 kForwardLag = forward_lag();

  static constexpr u32 put_tiles() {
    if constexpr (Ranks::kNodes > 1) {
      return Config::kPutTiles;
    } else {
      return 1;
    }
  }
  static constexpr u32 kPutRows = put_tiles() * Config::kTileKeys;
  static constexpr u32 kChunkPuts = kCeilDiv<Sequence::kChunkTiles, put_tiles()>;  // of a chunk of a head

  // A warp's part of shared memory, its barrier, and the parity of the next phase.
  struct Buffer {
    u32 address, full, phase = 0;
  };

  // A part of a block: which sub-tile of K or of V, whose number K's come before V's.
  struct Part {
    u32 source, batch, kv_head, rank_chunk, row;
    u32 index;

    MK_DEVICE u32 chunk() const { return Sequence::chunk_of(source, rank_chunk); }
    MK_DEVICE bool has_rows() const { return !Sequence::kUneven || row < Sequence::chunk_rows(source, rank_chunk); }
  };

  // Head by head, block by block.
  static MK_DEVICE Part part_at(u32 source, u32 number) {
    const u32 tile = number / Slots::kParts % Sequence::kRowTiles, head = number / Slots::kParts / Sequence::kRowTiles;
    return {source, head / Config::kKvHeads, head % Config::kKvHeads, tile / Sequence::kChunkTiles,
            tile % Sequence::kChunkTiles * Config::kTileKeys, number % Slots::kParts};
  }

  // Whether a rank of the node attends to keys of the chunk.
  static MK_DEVICE bool node_attends(u32 node, u32 chunk) {
    for (u32 local = 0; local < Ranks::kLocalWorld; ++local) {
      if (Slots::attends(node * Ranks::kLocalWorld + local, chunk)) return true;
    }
    return false;
  }

  // Whether a rank of another node does.
  static MK_DEVICE bool is_put(const RankContext& ctx, u32 chunk) {
    for (u32 peer = 0; peer < Ranks::kPeerNodes; ++peer) {
      if (node_attends(Network::rank_of_peer(ctx, peer) / Ranks::kLocalWorld, chunk)) return true;
    }
    return false;
  }

  // Which put of its source brings a part.
  static MK_DEVICE u32 put_of(const Part& part) {
    const u32 head = part.batch * Config::kKvHeads + part.kv_head;
    return (head * Config::kRankChunks + part.rank_chunk) * kChunkPuts + part.row / kPutRows;
  }

  // A warp: a part of this rank's to the ranks of its node that need it, and to the own slot that it is put from.
  static MK_DEVICE void push_part(const Args& args, const RankContext& ctx, const Part& part, Buffer& buffer) {
    if (!part.has_rows()) return;
    if (elect_one()) {
      barrier_expect(buffer.full, Shape::kSubTileBytes);
      tma_load_4d(buffer.address, part.index < Slots::kFirstPartOfV ? args.k : args.v, buffer.full,
                  part.index % Slots::kFirstPartOfV * Shape::kSubTileCols, part.rank_chunk * Config::kChunkRows + part.row,
                  part.kv_head, part.batch);
    }
    send_part(ctx, part, buffer, is_put(ctx, part.chunk()) ? 0 : 1);
  }

  // A warp: a part that a peer on another node puts here, when it has arrived. False after an abort.
  static MK_DEVICE bool forward_part(const RankContext& ctx, u32 peer, u32 number, Buffer& buffer) {
    const Part part = part_at(Network::rank_of_peer(ctx, peer), number);
    if (!part.has_rows()) return true;
    if (!node_attends(ctx.rank / Ranks::kLocalWorld, part.chunk())) return true;
    if (elect_one()) Network::wait_put(ctx, kPush, 0, peer, put_of(part));
    __syncwarp();
    if (broadcast(is_aborted(ctx), 0) != 0) return false;
    const BlockSlot block(Slot(ctx.epoch, part.batch, part.kv_head), part.source, part.rank_chunk, part.row);
    if (elect_one()) {
      fence_sys();
      add_relaxed_sys(ctx.local_ptr(block.ready()), 1);
      if constexpr (Ranks::kLocalWorld > 1) {
        fence_proxy_async();  // NICs wrote what TMA reads
        barrier_expect(buffer.full, Shape::kSubTileBytes);
        tma_load_bytes(buffer.address, ctx.local_ptr(block.part(ctx, part.index)), Shape::kSubTileBytes, buffer.full);
      }
    }
    if constexpr (Ranks::kLocalWorld > 1) send_part(ctx, part, buffer, 1);
    return true;
  }

  // A warp, to whose buffer a part is on its way: to the peers on this node that need it, and a count on their flags behind
  // it. With `nearest` 0 also to this rank's own slot, with 1 not.
  static MK_DEVICE void send_part(const RankContext& ctx, const Part& part, Buffer& buffer, u32 nearest) {
    const Slot slot(ctx.epoch, part.batch, part.kv_head);
    if constexpr (Ranks::kLocalWorld > 1) {
      const u32 reader = lane_index();
      if (reader < Ranks::kLocalWorld && reader != ctx.local_rank() &&
          Slots::attends(ctx.node_first_rank + reader, part.chunk())) {
        Slots::wait_credit(ctx, slot, part.batch * Config::kKvHeads + part.kv_head, part.source, reader);
      }
      __syncwarp();
    }
    if (elect_one()) {
      const BlockSlot block(slot, part.source, part.rank_chunk, part.row);
      wait_barrier(ctx, buffer.full, buffer.phase, kPush, kStageFull, block.number());
      fence_proxy_async();  // the readers' TMA has read what was there
      for_each_receiver(ctx, part, nearest, [&](u32 receiver) {
        tma_store_bytes(ctx.peer_ptr(receiver, block.part(ctx, part.index)), buffer.address, Shape::kSubTileBytes);
      });
      tma_commit();
      tma_wait<0>();
      // After the wait the stores are complete. TMA is another proxy, so a proxy fence orders them before this thread's
      // counts, and a system fence makes that hold for every rank.
      fence_proxy_async();
      fence_sys();
      for_each_receiver(ctx, part, nearest,
                        [&](u32 receiver) { add_relaxed_sys(ctx.peer_ptr(receiver, block.ready()), 1); });
    }
    __syncwarp();
    buffer.phase ^= 1;
  }

  // Ranks of this node by their distance, so that the first to need a part gets it first: a rank meets the keys of the
  // ranks before it in the order of their distance.
  template <class Function>
  static MK_DEVICE void for_each_receiver(const RankContext& ctx, const Part& part, u32 nearest, Function function) {
    for (u32 distance = nearest; distance < Ranks::kLocalWorld; ++distance) {
      const u32 local = (ctx.local_rank() + distance) % Ranks::kLocalWorld;
      if (distance > 0 && !Slots::attends(ctx.node_first_rank + local, part.chunk())) continue;
      function(local);
    }
  }
};

}  // namespace mk::attention
