// How K and V travel within a node: warps bring them to shared memory part by part, and store each part to the ranks that
// need it, a count behind it.
#pragma once
#include <mk/attention/kv_slots.cuh>
#include <mk/comm/staged_copy.cuh>

namespace mk::attention {

template <class Config>
concept KvPushConfig = KvSlotsConfig<Config> && requires {
  Config::kPushCtas;
  Config::kPushWarps;  // of each
};

template <KvPushConfig Config, class Args, class Workspace, comm::CopySmem Smem, MaskPolicy Mask>
struct KvPush {
  using Slots = KvSlots<Config, Workspace, Mask>;
  using Slot = typename Slots::Slot;
  using BlockSlot = typename Slots::BlockSlot;
  using Sequence = attention::Sequence<Config>;
  using Shape = TileShape<Config>;
  using Ranks = Topology<Config>;
  using StagedCopy = comm::StagedCopy;

  static constexpr u32 kParts = Config::kBatch * Config::kKvHeads * Sequence::kRowTiles * Slots::kParts;  // of a rank
  static constexpr u32 kPushers = Config::kPushCtas * Config::kPushWarps;

  // One thread.
  static MK_DEVICE void init_barriers(const Smem& smem) {
    for (u32 warp = 0; warp < Config::kPushWarps; ++warp) barrier_init(smem.copy_loaded(warp), 1);
  }

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

  // The number of a warp among all that push.
  static MK_DEVICE u32 pusher(u32 warp) { return warp * Config::kPushCtas + blockIdx.x; }

  // A warp: its share of own K and V to the peers that need them.
  static MK_DEVICE void push(const Args& args, const RankContext& ctx, const Smem& smem, u32 warp) {
    StagedCopy copy{ctx, smem.copy_slot(warp), smem.copy_loaded(warp)};
    for (u32 i = pusher(warp); i < kParts; i += kPushers) {
      const Part part = part_at(ctx.rank, i);
      if (!part.has_rows()) continue;
      bring_part(args, part, copy);
      send_part(ctx, part, copy, 1);
    }
  }

  // A warp: an own part to its slot.
  static MK_DEVICE void bring_part(const Args& args, const Part& part, StagedCopy& copy) {
    if (!elect_one()) return;
    copy.bring(Shape::kSubTileBytes, [&](u32 loaded) {
      tma_load_4d(copy.slot, part.index < Slots::kFirstPartOfV ? args.k : args.v, loaded,
                  part.index % Slots::kFirstPartOfV * Shape::kSubTileCols, part.rank_chunk * Config::kChunkRows + part.row,
                  part.kv_head, part.batch);
    });
  }

  // A warp, to whose slot a part is on its way: to the peers on this node that need it, and a count on their flags behind
  // it. With `nearest` 0 also to this rank's own slot, with 1 not.
  static MK_DEVICE void send_part(const RankContext& ctx, const Part& part, StagedCopy& copy, u32 nearest) {
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
      copy.send(block.number(), [&] {
        fence_proxy_async();  // the readers' TMA has read what was there
        for_each_receiver(ctx, part, nearest, [&](u32 receiver) {
          tma_store_bytes(ctx.peer_ptr(receiver, block.part(ctx, part.index)), copy.slot, Shape::kSubTileBytes);
        });
      });
      StagedCopy::finish();
      fence_sys();  // @kv-push.count-fence
      for_each_receiver(ctx, part, nearest,
                        [&](u32 receiver) { add_relaxed_sys(ctx.peer_ptr(receiver, block.ready()), 1); });
    }
    __syncwarp();
  }

 private:
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
