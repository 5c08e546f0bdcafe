// The flags of K and V where each call gives the rows.
//
// A call with few rows sends few blocks, and has few tiles that read them, so flags cannot count over all calls. They hold
// the mark of the call that wrote them, in two sets between which calls alternate. Several warps send the parts of a block,
// and several CTAs read a head. They count themselves in their own rank's memory, and the last one stores the mark.
//
// A rank that has begun a call has finished the one before, and has read all keys of it. So where slots are not twice there,
// a source waits until a reader has begun this call. Only if heads take turns in the slots does it also wait for marks of
// the heads that had them before in this call.
#pragma once
#include <mk/attention/tile_scheduler.cuh>
#include <mk/comm/begin.cuh>

namespace mk::attention {

template <class Workspace>
concept KvMarksWorkspace = requires(u32 parity, u32 source, u32 node, u32 head, u32 tile) {
  Workspace::kv_marks(parity, source, head, tile);   // the call in which a block of a source has arrived
  Workspace::parts_sent(parity, node, head, tile);   // parts of a block that this rank has sent, of a source of a node
};

// If heads take turns in the slots.
template <class Workspace>
concept TurnMarksWorkspace = requires(u32 parity, u32 source, u32 reader, u32 head) {
  Workspace::head_reads(parity, source, head);  // tiles of queries of this rank that have read a head of a source
  Workspace::head_marks(parity, reader, head);  // the call in which all tiles of a reader have read a head of this rank
};

template <class Config, class Workspace>
struct KvMarks {
  using Ranks = Topology<Config>;
  using Begin = comm::Begin<Config, Workspace>;

  static MK_DEVICE Symmetric<u32> ready(const RankContext& ctx, u32 source, u32 head, u32 tile) {
    return Workspace::kv_marks(ctx.parity(), source, head, tile);  // @kv-marks.set
  }

  template <class BlockSlot>
  static MK_DEVICE void wait_block(const RankContext& ctx, Role role, const BlockSlot& block) {
    wait_mark(ctx, ctx.local_ptr(block.ready(ctx)),  // @kv-marks.wait
              WaitSite{role, kChunk, block.source, block.number(), ctx.mark()});
  }

  // One thread, behind the fence after a part of a block that went to ranks of this node. True for the last of the parts:
  // then all of them are there.
  template <class BlockSlot>
  static MK_DEVICE bool is_complete(const RankContext& ctx, const BlockSlot& block, u32 parts) {
    const u32 node = block.source / Ranks::kLocalWorld;
    return arrive(ctx, Workspace::parts_sent(ctx.parity(), node, block.head, block.tile), parts);  // @kv-marks.parts
  }

  // One thread, for a tile of queries that has read a head of a source; `readers` tiles of this rank do.
  static MK_DEVICE void release(const RankContext& ctx, u32 sender, u32 source, u32 head, u32 readers)
    requires TurnMarksWorkspace<Workspace>
  {
    fence_sys();  // @kv-marks.release-fence
    if (!arrive(ctx, Workspace::head_reads(ctx.parity(), source, head), readers)) return;  // @kv-marks.readers
    store_relaxed_sys(ctx.peer_ptr(sender, Workspace::head_marks(ctx.parity(), ctx.local_rank(), head)), ctx.mark());
  }

  // One thread of a sender: waits until a reader, a rank of this node, has no use any more for what the slot of a head held
  // before.
  static MK_DEVICE void wait_room(const RankContext& ctx, u32 head, u32 reader) {
    const u32 rank = ctx.node_first_rank + reader;
    if constexpr (Config::kKvBuffers == 1) Begin::wait(ctx, rank, kPush);  // @kv-marks.begun
    if constexpr (TurnMarksWorkspace<Workspace>) {
      if (head < Config::kKvSlots) return;
      const u32 before = head - Config::kKvSlots;
      wait_mark(ctx, ctx.local_ptr(Workspace::head_marks(ctx.parity(), reader, before)),  // @kv-marks.turn
                WaitSite{kPush, kRoom, rank, head, ctx.mark()});
    }
  }

 private:
  // One of `count` threads arrives at a word that is 0 before the first and behind the last of them. True for the last,
  // which acquires what the others have released.
  static MK_DEVICE bool arrive(const RankContext& ctx, Symmetric<u32> word, u32 count) {
    if (fetch_add_acq_rel_gpu(ctx.local_ptr(word), 1) + 1 != count) return false;
    store_relaxed_sys(ctx.local_ptr(word), 0);  // @kv-marks.reset
    fence_sys();
    return true;
  }
};

}  // namespace mk::attention
