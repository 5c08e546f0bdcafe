// The flags of K and V for calls that give the rows.
//
// A call with few rows sends few blocks, and few tiles read them, so flags cannot count over all calls. Flags hold the
// mark of the call that wrote them. There are two sets of flags, and calls alternate between them. Several warps send
// the parts of a block, and several CTAs read a head. These warps and CTAs count in their own rank's memory, and the
// last warp or CTA stores the mark.
//
// A rank that has begun a call has finished the previous call, and has read all keys of that call. If slots have only
// one buffer, a source therefore waits until a reader has begun this call. If heads take turns in the slots, the source
// also waits for the mark of the head that had the slot before in this call.
#pragma once
#include <mk/attention/tile_scheduler.cuh>
#include <mk/comm/begin.cuh>

namespace mk::attention {

template <class Workspace>
concept KvMarksWorkspace = requires(u32 parity, u32 source, u32 node, u32 head, u32 tile) {
  Workspace::kv_marks(parity, source, head, tile);   // the last call in which a block of a source arrived
  Workspace::parts_sent(parity, node, head, tile);   // parts of a source's block that this rank has sent
};

// The workspace if heads take turns in the slots.
template <class Workspace>
concept TurnMarksWorkspace = requires(u32 parity, u32 source, u32 reader, u32 head) {
  Workspace::head_reads(parity, source, head);  // tiles of queries of this rank that have read a head of a source
  Workspace::head_marks(parity, reader, head);  // the last call in which a reader had read a head of this rank
};

template <class Config, class Workspace>
struct KvMarks {
  using Ranks = Topology<Config>;
  using Begin = comm::Begin<Config, Workspace>;

  static MK_DEVICE Symmetric<u32> ready(const RankContext& ctx, u32 source, u32 head, u32 tile) {
    return Workspace::kv_marks(ctx.parity(), source, head, tile);
  }

  template <class BlockSlot>
  static MK_DEVICE void wait_block(const RankContext& ctx, Role role, const BlockSlot& block) {
    wait_mark(ctx, ctx.local_ptr(block.ready(ctx)),
              WaitSite{role, kChunk, block.source, block.number(), ctx.mark()});
  }

  // One thread, after it has sent a part of a block to ranks of this node and a fence: counts the part. Returns true
  // for the last part, when all parts have arrived.
  template <class BlockSlot>
  static MK_DEVICE bool is_complete(const RankContext& ctx, const BlockSlot& block, u32 parts) {
    const u32 node = block.source / Ranks::kLocalWorld;
    return arrive(ctx, Workspace::parts_sent(ctx.parity(), node, block.head, block.tile), parts);
  }

  // One thread, when a tile of queries has read a head of a source: counts the tile. `readers` is the number of tiles
  // of this rank that read the head. The last tile's thread stores the mark at the sender.
  static MK_DEVICE void release(const RankContext& ctx, u32 sender, u32 source, u32 head, u32 readers)
    requires TurnMarksWorkspace<Workspace>
  {
    fence_sys();
    if (!arrive(ctx, Workspace::head_reads(ctx.parity(), source, head), readers)) return;
    store_relaxed_sys(ctx.peer_ptr(sender, Workspace::head_marks(ctx.parity(), ctx.local_rank(), head)), ctx.mark());
  }

  // One thread of a sender: waits until a reader, which is a rank of this node, no longer needs the earlier contents of
  // a head's slot.
  static MK_DEVICE void wait_room(const RankContext& ctx, u32 head, u32 reader) {
    const u32 rank = ctx.node_first_rank + reader;
    if constexpr (Config::kKvBuffers == 1) Begin::wait(ctx, rank, kPush);
    if constexpr (TurnMarksWorkspace<Workspace>) {
      if (head < Config::kKvSlots) return;
      const u32 before = head - Config::kKvSlots;
      wait_mark(ctx, ctx.local_ptr(Workspace::head_marks(ctx.parity(), reader, before)),
                WaitSite{kPush, kRoom, rank, head, ctx.mark()});
    }
  }

 private:
  // One of `count` threads arrives at a word, after a fence. The word is 0 before the first arrival and after the last.
  // Returns true for the last thread, which acquires everything that the other threads did before their fences. The
  // last thread's next stores are ordered after that. Fences of an SM's warps run one after the other, 0.5 µs each, so
  // only the last thread has a second fence.
  static MK_DEVICE bool arrive(const RankContext& ctx, Symmetric<u32> word, u32 count) {
    if (fetch_add_relaxed_gpu(ctx.local_ptr(word), 1) + 1 != count) return false;
    fence_sys();
    store_relaxed_sys(ctx.local_ptr(word), 0);
    return true;
  }
};

}  // namespace mk::attention
