// Puts to GPUs of other nodes: commands for the proxy on the host, and arrivals. GPUs and the simulator share it.
//
// To put: the bytes are stored; one thread that knows of all of them (by a barrier of its CTA, say) posts a command. The
// fence before the command makes them visible to the NIC. On the other side the proxy raises the arrival word of the
// channel after the bytes are in memory.
//
// A wait that gives up leaves its slot unwritten, and the ring useless: the job has been aborted.
#pragma once
#include <mk/watch.cuh>

namespace mk {

// What is to be put where.
struct Put {
  u32 peer, channel, source_region, target_region, bytes;
  u64 source_offset, target_offset;
};

// The index of the caller's command. Who claims one must publish it: those behind it wait for it.
__device__ __forceinline__ u32 claim_command(const CommandRing& ring) {
  return fetch_add_relaxed_gpu(&ring.state->claimed, 1);
}

// Until the proxy has read what the index's slot held one lap ago; false if the wait gave up. What producers saw last is
// in device memory, so that only one who finds the ring full there looks across PCIe.
__device__ __forceinline__ bool wait_command_slot(const Watch& watch, Role role, const CommandRing& ring, u32 index) {
  const u32 wanted = index + 1 - (1u << ring.capacity_log2);
  u32 seen = load_relaxed_sys(&ring.state->consumed_seen);  // publish_command has a fence
  if (static_cast<int>(seen - wanted) >= 0) return true;
  Patience patience;
  for (;;) {
    seen = load_acquire_sys(&ring.words->consumed);
    if (static_cast<int>(seen - wanted) >= 0) break;
    if (patience.ends(watch, Awaited{role, kCommandSlot, watch.rank, index, wanted}, seen)) return false;
    __nanosleep(kPollPauseNs);
  }
  store_release_gpu(&ring.state->consumed_seen, seen);
  return true;
}

// Fills the slot, and publishes all that this thread did and saw before. Each word says its lap, so that they need no
// order among themselves: a fence between them would wait until PCIe has carried them.
__device__ __forceinline__ void publish_command(const CommandRing& ring, u32 index, const Put& put) {
  u64* slot = reinterpret_cast<u64*>(ring.slots + (index & ((1u << ring.capacity_log2) - 1)));
  const u32 lap = index >> ring.capacity_log2;
  const u64 phase = lap % 2 == 0 ? kPhaseBit : 0;
  const u32 whither = put.peer | put.channel << 16;
  const u32 kinds = put.source_region | put.target_region << 8 | kCommandPut << 16;
  fence_sys();
  store_relaxed_sys(slot, kTagValid | lap | u64{whither} << 32);
  store_relaxed_sys(slot + 1, phase | kinds | u64{put.bytes} << 32);
  store_relaxed_sys(slot + 2, phase | put.source_offset);
  store_relaxed_sys(slot + 3, phase | put.target_offset);
}

// Puts, and returns the command's index.
__device__ __forceinline__ u32 post_command(const Watch& watch, Role role, const CommandRing& ring, const Put& put) {
  const u32 index = claim_command(ring);
  if (wait_command_slot(watch, role, ring, index)) publish_command(ring, index, put);
  return index;
}

// Until the command and all before it have left: their sources may be overwritten. One thread at a time should wait,
// since it polls host memory.
__device__ __forceinline__ void wait_put_sent(const Watch& watch, Role role, const CommandRing& ring, u32 index) {
  wait_flag(watch, &ring.words->sent, Awaited{role, kPutSent, watch.rank, index, index + 1});
}

// Until the first `count` puts of the channel whose arrival word this is are in this GPU's memory. The word is in pinned
// host memory: only one thread of a GPU may wait at a time for arrivals, or a few, never every CTA. Polls across PCIe by a
// hundred CTAs make all that crosses it 30 times slower. Where many CTAs need what arrives, that thread raises flags in
// device memory, with release, and they wait for those. Returns how many have come, since a look takes microseconds.
__device__ __forceinline__ u32 wait_arrival(const Watch& watch, Role role, const u32* word, u32 peer, u32 channel,
                                            u32 count) {
  return wait_flag(watch, word, Awaited{role, kArrival, peer, channel, count});
}

}  // namespace mk
