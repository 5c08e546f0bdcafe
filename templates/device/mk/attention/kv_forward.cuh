// The transfer of K and V between nodes. NICs carry K and V while ranks exchange them within each node.
//
// Own K and V also go to this rank's own slots. From there, some blocks of a head at a time are put to the same slots
// of the rank of the same local rank on every other node. The receiving rank raises the flags in place of the source,
// and forwards the parts to the ranks of its node that need them. These ranks give their credits to the rank that
// forwards, and not to the source.
#pragma once
#include <mk/attention/kv_push.cuh>
#include <mk/comm/begin.cuh>
#include <mk/comm/put.cuh>

namespace mk::attention {

template <class Config>
concept KvForwardConfig = KvPushConfig<Config> && comm::NetworkConfig<Config> && requires {
  Config::kPutTiles;    // the most blocks of K and V in a put
  Config::kForwardLag;  // own parts that are sent before the first part of a peer is forwarded
};

template <KvForwardConfig Config, class Args, class Workspace, comm::CopySmem Smem, MaskPolicy Mask>
struct KvForward {
  using Push = KvPush<Config, Args, Workspace, Smem, Mask>;
  using Slots = typename Push::Slots;
  using Slot = typename Push::Slot;
  using BlockSlot = typename Push::BlockSlot;
  using Part = typename Push::Part;
  using StagedCopy = comm::StagedCopy;
  using Sequence = attention::Sequence<Config>;
  using Shape = TileShape<Config>;
  using Ranks = Topology<Config>;
  using Network = comm::Network<Config, Workspace>;
  using Begin = comm::Begin<Config, Workspace>;

  // Before a rank waits for a put of a peer, it has sent all parts of its own put of the same number. Ranks therefore
  // do not wait for each other's puts in a circle.
  static_assert(Config::kForwardLag >= Config::kPutTiles * Slots::kParts);

  static constexpr u32 kPutRows = Config::kPutTiles * Config::kTileKeys;

  // The number of puts of a chunk of a head, of the cached rows of a head, and of a call.
  static MK_DEVICE u32 chunk_puts(const RankContext& ctx) {
    if constexpr (TakesRows<Config>) return ceil_div(Sequence::chunk_tiles(Sequence::of_call(ctx)), Config::kPutTiles);
    else return kCeilDiv<Sequence::kChunkTiles, Config::kPutTiles>;
  }
  static MK_DEVICE u32 cached_puts(const RankContext& ctx) {
    if constexpr (HasCache<Config>) return ctx.rows == 0 ? 0 : ceil_div(ctx.most_cached, kPutRows);
    else return 0;
  }
  static MK_DEVICE u32 puts(const RankContext& ctx) {
    if constexpr (TakesRows<Config>) return Config::kBatch * Config::kKvHeads * head_puts(ctx);
    else return Config::kPutsPerPeer;
  }

  // Blocks of a chunk of a head that are put together.
  struct PutBlocks {
    u32 head, rank_chunk, first_row;
    u32 tiles;  // blocks that have rows
  };

  static MK_DEVICE PutBlocks put_at(const RankContext& ctx, const Smem& smem, u32 rank, u32 index) {
    const u32 per_chunk = chunk_puts(ctx), of_call = Config::kRankChunks * per_chunk;
    const u32 head = index / head_puts(ctx), within = index % head_puts(ctx);
    u32 rank_chunk = within / per_chunk, first_row = within % per_chunk * kPutRows;
    if constexpr (HasCache<Config>) {
      if (within >= of_call) {
        rank_chunk = Config::kRankChunks;
        first_row = (within - of_call) * kPutRows;
      }
    }
    const SequenceRows sequence = Push::Table::find(ctx, smem, head / Config::kKvHeads, 0).sequence;
    const u32 end = min(first_row + kPutRows, Sequence::chunk_rows(sequence, rank, rank_chunk));
    const u32 tiles = end > first_row ? (end - first_row + Config::kTileKeys - 1) / Config::kTileKeys : 0;
    return {head, rank_chunk, first_row, tiles};
  }

  // Returns the number of the put of its source that brings a part.
  static MK_DEVICE u32 put_of(const RankContext& ctx, const Part& part) {
    const u32 head = part.batch * Config::kKvHeads + part.kv_head;
    return head * head_puts(ctx) + part.rank_chunk * chunk_puts(ctx) + part.row / kPutRows;
  }

  // Whether a rank of the node attends to keys of the chunk.
  static MK_DEVICE bool node_attends(const RankContext& ctx, u32 node, u32 chunk) {
    for (u32 local = 0; local < Ranks::kLocalWorld; ++local) {
      if (Slots::attends(Sequence::of_call(ctx), node * Ranks::kLocalWorld + local, chunk)) return true;
    }
    return false;
  }

  // A warp: sends its share of own K and V, and in turn forwards the parts of peers that are kForwardLag parts behind.
  // NICs and the links of this node then carry the same heads at the same time. If all own parts were sent first, most
  // heads would wait to be forwarded.
  static MK_DEVICE void push(const Args& args, const RankContext& ctx, const Smem& smem, u32 warp) {
    StagedCopy copy{ctx, smem.copy_slot(warp), smem.copy_loaded(warp)};
    for (u32 i = Push::pusher(warp); i < Push::parts(ctx, smem) + Config::kForwardLag; i += Push::kPushers) {
      if (i < Push::parts(ctx, smem)) push_part(args, ctx, Push::part_at(ctx, smem, ctx.rank, i), copy);
      for (u32 peer = 0; peer < Ranks::kPeerNodes && i >= Config::kForwardLag; ++peer) {
        if (!forward_part(ctx, smem, peer, i - Config::kForwardLag, copy)) return;
      }
    }
  }

  // A warp: puts own K and V to the peers on other nodes that need them. Each put is posted as soon as all of its
  // blocks are in own slots.
  static MK_DEVICE void put_all(const Args& args, const RankContext& ctx, const Smem& smem) {
    const u32 lane = lane_index();
    if constexpr (Begin::kPuts > 0) {
      if (elect_one()) Begin::template put<Network>(args, ctx, 0);
    }
    for (u32 index = 0; index < puts(ctx); ++index) {
      const PutBlocks put = put_at(ctx, smem, ctx.rank, index);
      const u32 chunk = Sequence::chunk_of(ctx.rank, put.rank_chunk);
      const u32 tiles = is_put(ctx, chunk) ? put.tiles : 0;  // if 0, the put is empty, and peers only count it
      const Slot slot(ctx.epoch, put.head / Config::kKvHeads, put.head % Config::kKvHeads);
      const BlockSlot first(slot, Sequence::of_call(ctx), ctx.rank, put.rank_chunk, put.first_row);
      for (u32 i = lane; i < tiles; i += kWarp) {
        BlockSlot block = first;
        block.tile += i;
        if constexpr (TakesRows<Config>) {
          Slots::Marks::wait_block(ctx, kPush, block);
        } else {
          wait_flag(ctx, ctx.local_ptr(block.ready(ctx)),
                    WaitSite{kPush, kChunk, ctx.rank, block.number(), ctx.epoch * Slots::kParts});
        }
      }
      __syncwarp();
      if (broadcast(gives_up(ctx, kPush), 0) != 0) return;
      if (elect_one()) {
        const auto needs = [&](u32 peer) {
          return node_attends(ctx, Network::rank_of_peer(ctx, peer) / Ranks::kLocalWorld, chunk);
        };
        Network::put_to_peers(args, ctx, 0, first.part(ctx, 0), tiles * 2 * Shape::kTileBytes, needs);
      }
      __syncwarp();
    }
  }

 private:
  // The number of puts of a head. On some ranks, some puts have no rows.
  static MK_DEVICE u32 head_puts(const RankContext& ctx) { return Config::kRankChunks * chunk_puts(ctx) + cached_puts(ctx); }

  // Whether a rank of another node attends to keys of the chunk.
  static MK_DEVICE bool is_put(const RankContext& ctx, u32 chunk) {
    for (u32 peer = 0; peer < Ranks::kPeerNodes; ++peer) {
      if (node_attends(ctx, Network::rank_of_peer(ctx, peer) / Ranks::kLocalWorld, chunk)) return true;
    }
    return false;
  }

  // A warp: sends an own part to the ranks of this node that need it, and to the own slot from which it is put.
  static MK_DEVICE void push_part(const Args& args, const RankContext& ctx, const Part& part, StagedCopy& copy) {
    if (!part.has_rows()) return;
    Push::bring_part(args, ctx, part, copy);
    Push::send_part(ctx, part, copy, is_put(ctx, part.chunk()) ? 0 : 1);
  }

  // A warp: waits for a part that a peer on another node puts here, and forwards the part. Returns false after an
  // abort.
  static MK_DEVICE bool forward_part(const RankContext& ctx, const Smem& smem, u32 peer, u32 number, StagedCopy& copy) {
    const Part part = Push::part_at(ctx, smem, Network::rank_of_peer(ctx, peer), number);
    if (!part.has_rows()) return true;
    if (!node_attends(ctx, ctx.rank / Ranks::kLocalWorld, part.chunk())) return true;
    if (elect_one()) Network::wait_put(ctx, kPush, 0, peer, Begin::kPuts + put_of(ctx, part));
    __syncwarp();
    if (broadcast(is_aborted(ctx), 0) != 0) return false;
    const Slot slot(ctx.epoch, part.batch, part.kv_head);
    const BlockSlot block(slot, part.sequence, part.source, part.rank_chunk, part.row);
    if (elect_one()) {
      fence_sys();
      if constexpr (TakesRows<Config>) {
        // The put has also brought the other parts of the block.
        if (part.index == 0) store_relaxed_sys(ctx.local_ptr(block.ready(ctx)), ctx.mark());
      } else {
        add_relaxed_sys(ctx.local_ptr(block.ready(ctx)), 1);
      }
      if constexpr (Ranks::kLocalWorld > 1) {
        fence_proxy_async();  // a NIC has written what TMA reads next
        copy.bring(Shape::kSubTileBytes, [&](u32 loaded) {
          tma_load_bytes(copy.slot, ctx.local_ptr(block.part(ctx, part.index)), Shape::kSubTileBytes, loaded);
        });
      }
    }
    if constexpr (Ranks::kLocalWorld > 1) Push::send_part(ctx, part, copy, 1);
    return true;
  }
};

}  // namespace mk::attention
