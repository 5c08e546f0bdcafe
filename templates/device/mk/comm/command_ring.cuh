// Commands of the GPU for the proxy on the host, which posts them to the NIC.
//
// Any number of threads post commands to a ring in pinned host memory. A thread whose wait is aborted leaves its slot
// unwritten, and the ring can no longer be used. That does no harm, since the communicator is then also out of use.
#pragma once
#include <mk/deadline.cuh>

namespace mk::comm {

// A command. If `kind` is kCommandPut, the command is one put to one peer. If `kind` is kCommandPutToPeers, the command
// stands for a put to each of several peers, from the source offset to an equal offset at the peer. `peer` is then the
// first of these peers, and `target_region` is their number. `target_offset` is a mask of the peers that get the bytes,
// whose lowest bit is the first peer. The other peers get empty puts.
struct Put {
  u32 kind, peer, channel, source_region, target_region, bytes;
  u64 source_offset, target_offset;
};

// Waits until the proxy has read the command that the slot of command `index` held one lap ago. Returns false after an
// abort. Device memory keeps the last count that a thread has read from the host. Only a thread that finds the ring
// full by that count reads across PCIe.
MK_DEVICE bool wait_command_slot(const RankContext& ctx, Role role, const CommandRing& ring, u32 index) {
  const u32 wanted = index + 1 - (1u << ring.capacity_log2);
  u32 seen = load_relaxed_sys(&ring.state->consumed_seen);  // the fence of publish_command makes this an acquire
  if (has_reached(seen, wanted)) return true;
  Deadline deadline(ctx);
  for (;;) {
    seen = load_acquire_sys(&ring.words->consumed);
    if (has_reached(seen, wanted)) break;
    if (deadline.expired(ctx, WaitSite{role, kCommandSlot, ctx.rank, index, wanted}, seen)) return false;
    __nanosleep(kPollPauseNs);
  }
  store_release_gpu(&ring.state->consumed_seen, seen);
  return true;
}

// Fills a slot. The fence publishes all that this thread has done and seen before, so the NIC finds the bytes of the
// put. Every word has the phase of its lap, so the words need no order among themselves. A fence between the words
// would wait until PCIe has carried the earlier words to the host.
MK_DEVICE void publish_command(const CommandRing& ring, u32 index, const Put& put) {
  u64* slot = reinterpret_cast<u64*>(ring.slots + (index & ((1u << ring.capacity_log2) - 1)));
  const u32 lap = index >> ring.capacity_log2;
  const u64 phase = lap % 2 == 0 ? kPhaseBit : 0;
  const u32 target = put.peer | put.channel << 16;
  const u32 kinds = put.source_region | put.target_region << 8 | put.kind << 16;
  fence_sys();
  store_relaxed_sys(slot, kTagValid | lap | u64{target} << 32);
  store_relaxed_sys(slot + 1, phase | kinds | u64{put.bytes} << 32);
  store_relaxed_sys(slot + 2, phase | put.source_offset);
  store_relaxed_sys(slot + 3, phase | put.target_offset);
}

// Posts a put and returns the command's index. A thread that has claimed an index must publish it, since the proxy
// takes commands in order.
MK_DEVICE u32 post_command(const RankContext& ctx, Role role, const CommandRing& ring, const Put& put) {
  const u32 index = fetch_add_relaxed_gpu(&ring.state->claimed, 1);
  if (wait_command_slot(ctx, role, ring, index)) publish_command(ring, index, put);
  return index;
}

}  // namespace mk::comm
