// The transfer of K and V within a node. Warps load K and V to shared memory part by part, store each part to the ranks
// that need the part, and then count it on the flags of these ranks.
#pragma once
#include <mk/attention/kv_slots.cuh>
#include <mk/attention/sequence_table.cuh>
#include <mk/attention/tile_load.cuh>
#include <mk/comm/staged_copy.cuh>

namespace mk::attention {

template <class Config>
concept KvPushConfig = KvSlotsConfig<Config> && requires {
  Config::kPushCtas;   // CTAs with warps that push
  Config::kPushWarps;  // warps that push in each of these CTAs
};

template <KvPushConfig Config, class Args, class Workspace, comm::CopySmem Smem, MaskPolicy Mask>
struct KvPush {
  using Slots = KvSlots<Config, Workspace, Mask>;
  using Slot = typename Slots::Slot;
  using BlockSlot = typename Slots::BlockSlot;
  using Sequence = attention::Sequence<Config>;
  using Table = SequenceTable<Config, Smem>;
  using Shape = TileShape<Config>;
  using Ranks = Topology<Config>;
  using StagedCopy = comm::StagedCopy;

  static constexpr u32 kPushers = Config::kPushCtas * Config::kPushWarps;

  // One thread, before the first barrier of the CTA.
  static MK_DEVICE void init_barriers(const Smem& smem) {
    for (u32 warp = 0; warp < Config::kPushWarps; ++warp) barrier_init(smem.copy_loaded(warp), 1);
  }

  // A part of a block, which is a sub-tile of K or of V. In `index`, the sub-tiles of K come before the sub-tiles of V.
  struct Part {
    u32 source, batch, kv_head, rank_chunk, row;
    u32 index;
    SequenceRows sequence;

    MK_DEVICE u32 chunk() const { return Sequence::chunk_of(source, rank_chunk); }
    MK_DEVICE bool has_rows() const { return !Sequence::kUneven || row < Sequence::chunk_rows(sequence, source, rank_chunk); }
  };

  // The number of parts of a rank. On some ranks, some parts have no rows.
  static MK_DEVICE u32 parts(const RankContext& ctx, const Smem& smem) {
    return Config::kBatch * Config::kKvHeads * Table::key_tiles(ctx, smem) * Slots::kParts;
  }

  // The order of parts: head by head, and block by block.
  static MK_DEVICE Part part_at(const RankContext& ctx, const Smem& smem, u32 source, u32 number) {
    const u32 key_tiles = Table::key_tiles(ctx, smem), head = number / Slots::kParts / key_tiles;
    const auto [sequence, rank_chunk, row] =
        Table::find_keys(ctx, smem, head / Config::kKvHeads, number / Slots::kParts % key_tiles);
    return {source, head / Config::kKvHeads, head % Config::kKvHeads, rank_chunk, row, number % Slots::kParts, sequence};
  }

  // The number of a warp among all warps that push.
  static MK_DEVICE u32 pusher(u32 warp) { return warp * Config::kPushCtas + blockIdx.x; }

  // A warp: pushes its share of own K and V to the peers that need them.
  static MK_DEVICE void push(const Args& args, const RankContext& ctx, const Smem& smem, u32 warp) {
    StagedCopy copy{ctx, smem.copy_slot(warp), smem.copy_loaded(warp)};
    for (u32 i = pusher(warp); i < parts(ctx, smem); i += kPushers) {
      const Part part = part_at(ctx, smem, ctx.rank, i);
      if (!part.has_rows()) continue;
      bring_part(args, ctx, part, copy);
      send_part(ctx, part, copy, 1);
    }
  }

  // A warp: starts to load an own part to its slot of shared memory.
  static MK_DEVICE void bring_part(const Args& args, const RankContext& ctx, const Part& part, StagedCopy& copy) {
    if (!elect_one()) return;
    copy.bring(Shape::kSubTileBytes, [&](u32 loaded) {
      load_sub_tile<Config>(ctx, part.index < Slots::kFirstPartOfV ? args.k : args.v, copy.slot, loaded,
                            part.index % Slots::kFirstPartOfV,
                            key_rows<Config>(ctx, part.sequence, part.rank_chunk, part.row), part.kv_head, part.batch);
    });
  }

  // A warp that has started to load a part to its slot: stores the part to the ranks of this node that need it, and
  // then counts the part on their flags. The warp also stores the part to this rank's own slot if `nearest` is 0, but
  // not if it is 1.
  static MK_DEVICE void send_part(const RankContext& ctx, const Part& part, StagedCopy& copy, u32 nearest) {
    const Slot slot(ctx.epoch, part.batch, part.kv_head);
    bool has_room = true;
    if constexpr (Ranks::kLocalWorld > 1) {
      const u32 reader = lane_index();
      if (reader < Ranks::kLocalWorld && reader != ctx.local_rank() &&
          Slots::attends(part.sequence, ctx.node_first_rank + reader, part.chunk())) {
        Slots::wait_credit(ctx, slot, part.source, reader);
      }
      __syncwarp();
      // After an abort, readers may still need the contents of their slots.
      has_room = broadcast(is_aborted(ctx), 0) == 0;
    }
    const BlockSlot block(slot, part.sequence, part.source, part.rank_chunk, part.row);
    if (elect_one()) {
      copy.send(block.number(), [&] {
        if (!has_room) return;
        fence_proxy_async();  // the readers' TMA has read the earlier contents of the slots
        for_each_receiver(ctx, part, nearest, [&](u32 receiver) {
          tma_store_bytes(ctx.peer_ptr(receiver, block.part(ctx, part.index)), copy.slot, Shape::kSubTileBytes);
        });
      });
      StagedCopy::finish();
      fence_sys();
      if constexpr (TakesRows<Config>) {
        if (has_room && Slots::Marks::is_complete(ctx, block, Slots::kParts)) {
          for_each_receiver(ctx, part, nearest,
                            [&](u32 receiver) { store_relaxed_sys(ctx.peer_ptr(receiver, block.ready(ctx)), ctx.mark()); });
        }
      } else if (has_room) {
        for_each_receiver(ctx, part, nearest,
                          [&](u32 receiver) { add_relaxed_sys(ctx.peer_ptr(receiver, block.ready(ctx)), 1); });
      }
    }
    __syncwarp();
  }

 private:
  // Calls `function` for the ranks of this node that need a part, by their distance from this rank. A rank meets the
  // keys of the ranks before it in the order of their distance, so the first rank to need a part gets it first.
  template <class Function>
  static MK_DEVICE void for_each_receiver(const RankContext& ctx, const Part& part, u32 nearest, Function function) {
    for (u32 distance = nearest; distance < Ranks::kLocalWorld; ++distance) {
      const u32 local = (ctx.local_rank() + distance) % Ranks::kLocalWorld;
      if (distance > 0 && !Slots::attends(part.sequence, ctx.node_first_rank + local, part.chunk())) continue;
      function(local);
    }
  }
};

}  // namespace mk::attention
