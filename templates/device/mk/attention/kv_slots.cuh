// The slots in which K and V of other ranks arrive.
//
// Each source has kKvSlots slots at every rank that attends to its keys. A slot has room for K and V of one head. Head
// n, counted over all batches, takes slot n mod kKvSlots. Another head had that slot before, in this call or in the
// previous call. A slot holds its blocks in the swizzled layout of shared memory. A flag per block counts the block's
// parts that have arrived.
//
// A source may overwrite a slot when all tiles of queries on the receiver have read the head that had the slot. This
// permission is a credit. If all heads have slots, credits only order calls. With fewer slots, credits bound memory.
// Between nodes, no credits are used: all heads have slots in two buffers, and calls alternate between the buffers. A
// rank that starts call e + 2 has received all puts of call e + 1 from its peers on other nodes. These peers have
// therefore finished call e, and have read all of its keys.
//
// Flags and credits count over all calls, unless each call gives the rows. In that case not every call writes every
// flag, and flags hold marks: see KvMarks.
#pragma once
#include <mk/attention/kv_iterator.cuh>
#include <mk/attention/kv_marks.cuh>
#include <mk/tma.cuh>

namespace mk::attention {

template <class Config>
concept KvSlotsConfig = TileSchedulerConfig<Config> && requires {
  Config::kKvSlots;    // slots of a source, each for K and V of one head
  Config::kKvBuffers;  // buffers of slots, between which calls alternate
};

template <class Workspace>
concept KvSlotsWorkspace = requires(u32 buffer, u32 source, u32 slot, u32 tile, u32 part) {
  Workspace::kv_parts(buffer, source, slot, tile, part);  // parts of K, then parts of V
};

template <class Workspace>
concept CountsWorkspace = requires(u32 source, u32 slot, u32 tile) {
  Workspace::kv_ready(source, slot, tile);  // the parts that have arrived, over all calls
};

// Counters of the rank that sends keys to this node's ranks: the source itself, or the rank that forwards keys of
// another node. Each counter is the number of a reader's tiles of queries that have read the keys in a slot, over all
// calls. A reader is a rank of this node. `node` is the node of the source.
template <class Workspace>
concept CreditsWorkspace = requires(u32 node, u32 reader, u32 slot) {
  Workspace::slot_reads(node, reader, slot);
};

template <KvSlotsConfig Config, KvSlotsWorkspace Workspace, MaskPolicy Mask>
  requires(TakesRows<Config> ? KvMarksWorkspace<Workspace> : CountsWorkspace<Workspace>)
struct KvSlots {
  using Sequence = attention::Sequence<Config>;
  using Shape = TileShape<Config>;
  using Ranks = Topology<Config>;
  using Marks = KvMarks<Config, Workspace>;

  // Whether readers signal to a sender which slots they have read.
  static constexpr bool kHasCredits =
      Ranks::kLocalWorld > 1 && (!TakesRows<Config> || Config::kKvSlots < Config::kBatch * Config::kKvHeads);

  // A part of a block is a sub-tile of K or of V. A warp sends one part at a time.
  static constexpr u32 kParts = 2 * Shape::kSubTiles;
  static constexpr u32 kFirstPartOfV = Shape::kSubTiles;

  struct Slot {
    u32 head;            // counted over all batches
    u32 index, earlier;  // the slot, and the heads that had the slot before, over all calls

    MK_DEVICE Slot(u32 epoch, u32 batch, u32 kv_head) : head(batch * Config::kKvHeads + kv_head) {
      index = head % Config::kKvSlots;
      const u32 per_call = (Config::kBatch * Config::kKvHeads - 1 - index) / Config::kKvSlots + 1;
      earlier = (epoch - 1) * per_call + head / Config::kKvSlots;
    }
  };

  // The place of a block: a tile in a slot of a source.
  struct BlockSlot {
    u32 source, head, slot, tile;

    MK_DEVICE BlockSlot(const Slot& slot, const SequenceRows& sequence, u32 source, u32 rank_chunk, u32 row)
        : source(source), head(slot.head), slot(slot.index), tile(Sequence::rank_tile(sequence, rank_chunk, row)) {}

    MK_DEVICE Symmetric<u32> ready(const RankContext& ctx) const {
      if constexpr (TakesRows<Config>) return Marks::ready(ctx, source, head, tile);
      else return Workspace::kv_ready(source, slot, tile);
    }
    MK_DEVICE Symmetric<u8> part(const RankContext& ctx, u32 part) const {
      return Workspace::kv_parts(ctx.epoch % Config::kKvBuffers, source, slot, tile, part);
    }
    // The number of the block among all blocks, for reports.
    MK_DEVICE u32 number() const {
      return row_major<Ranks::kWorld, Config::kKvSlots, Sequence::kKeyTiles>(source, slot, tile);
    }
  };

  // Whether queries of a rank attend to keys of a chunk of another rank.
  static MK_DEVICE bool attends(const SequenceRows& sequence, u32 rank, u32 chunk) {
    for (u32 own = 0; own < Config::kRankChunks; ++own) {
      if (Sequence::template attends<Mask>(Sequence::chunk_of(rank, own), chunk) &&
          (!Sequence::kUneven || Sequence::chunk_rows(sequence, rank, own) > 0)) {
        return true;
      }
    }
    return false;
  }

  // Waits until K and V of another rank's block have arrived.
  static MK_DEVICE void wait_block(const RankContext& ctx, const QueryTile& tile, const KvBlock& block) {
    const Slot slot(ctx.epoch, tile.batch, tile.head / Shape::kHeadsPerKv);
    const BlockSlot at(slot, tile.sequence, block.source, block.rank_chunk, block.row);
    if constexpr (TakesRows<Config>) {
      Marks::wait_block(ctx, kLoad, at);
    } else {
      wait_flag(ctx, ctx.local_ptr(at.ready(ctx)),
                WaitSite{kLoad, kChunk, block.source, at.number(), (slot.earlier + 1) * kParts});
    }
    // Another rank's TMA or a NIC has written the block, and the flag has acquired it for this thread. TMA is another
    // proxy, and may read the block only after this fence.
    fence_proxy_async();
  }

  // One thread: loads K (`part` 0) or V (kFirstPartOfV) of another rank's block to shared memory.
  static MK_DEVICE void load_block(const RankContext& ctx, const QueryTile& tile, const KvBlock& block, u32 part, u32 to,
                                   u32 full) {
    const Slot slot(ctx.epoch, tile.batch, tile.head / Shape::kHeadsPerKv);
    const BlockSlot at(slot, tile.sequence, block.source, block.rank_chunk, block.row);
    tma_load_bytes(to, ctx.local_ptr(at.part(ctx, part)), Shape::kTileBytes, full);
  }

  // ---- credits

  // Whether queries of a rank's chunk attend to any chunk of keys of another rank, which may have no rows. Tiles of other
  // chunks are not counted as readers. Such tiles wait for nothing, so they could be counted for a later head before
  // other tiles have read an earlier head.
  static MK_DEVICE bool meets(u32 rank, u32 rank_chunk, u32 source) {
    for (u32 other = 0; other < Sequence::kKeyChunks; ++other) {
      if (Sequence::template attends<Mask>(Sequence::chunk_of(rank, rank_chunk), Sequence::chunk_of(source, other))) return true;
    }
    return false;
  }

  // Returns the number of tiles of queries of a rank that read a head of another rank's keys.
  static MK_DEVICE u32 readers(const SequenceRows& sequence, u32 rank, u32 source) {
    u32 tiles = 0;
    for (u32 own = 0; own < Config::kRankChunks; ++own) {
      if (!meets(rank, own, source)) continue;
      tiles += (Sequence::chunk_rows(sequence, rank, own) + Config::kTileRows - 1) / Config::kTileRows;
    }
    return tiles * Shape::kHeadsPerKv;
  }

  // A warp, when its CTA has read all keys of a tile of queries: counts the tile at every rank that sent the keys. No
  // credits are counted for sources of this rank's own local rank: these keys are this rank's own, or NICs have put
  // them here.
  static MK_DEVICE void release_slots(const RankContext& ctx, const QueryTile& tile)
    requires(kHasCredits)
  {
    for (u32 source = lane_index(); source < Ranks::kWorld; source += kWarp) {
      const u32 sender = source % Ranks::kLocalWorld;
      if (sender == ctx.local_rank() || !meets(ctx.rank, tile.rank_chunk, source)) continue;
      const Slot slot(ctx.epoch, tile.batch, tile.head / Shape::kHeadsPerKv);
      if constexpr (TakesRows<Config>) {
        Marks::release(ctx, sender, source, slot.head, readers(tile.sequence, ctx.rank, source));
      } else {
        static_assert(CreditsWorkspace<Workspace>);
        fence_sys();
        const u32 node = source / Ranks::kLocalWorld;
        add_relaxed_sys(ctx.peer_ptr(sender, Workspace::slot_reads(node, ctx.local_rank(), slot.index)), 1);
      }
    }
  }

  // One thread of a sender: waits until a reader, which is a rank of this node, has read the earlier contents of a slot
  // of the source.
  static MK_DEVICE void wait_credit(const RankContext& ctx, const Slot& slot, u32 source, u32 reader) {
    if constexpr (TakesRows<Config>) {
      Marks::wait_room(ctx, slot.head, reader);
    } else {
      static_assert(CreditsWorkspace<Workspace>);
      const u32 node = source / Ranks::kLocalWorld;
      wait_flag(ctx, ctx.local_ptr(Workspace::slot_reads(node, reader, slot.index)),
                WaitSite{kPush, kRoom, ctx.node_first_rank + reader, slot.head,
                         slot.earlier * readers(Sequence::of_call(ctx), ctx.node_first_rank + reader, source)});
    }
  }
};

}  // namespace mk::attention
