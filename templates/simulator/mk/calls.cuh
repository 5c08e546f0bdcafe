// The calls that primitives make to the simulator. The simulator fills the table when it loads a kernel.
#pragma once
#include <mk/types.cuh>

namespace mk::sim {

// The place in the kernel at which a primitive was called: the place of the inlined call, which debug information
// names.
using Place = u64;

__attribute__((always_inline)) inline Place place() {
  Place here;
#if defined(__x86_64__)
  // The address lies inside this instruction, since the next instruction may belong to another line.
  asm volatile("lea -1(%%rip), %0" : "=r"(here));
#elif defined(__aarch64__)
  asm volatile("adr %0, ." : "=r"(here));
#else
#error "the simulator runs on x86-64 and aarch64"
#endif
  return here;
}

// The running thread.
struct Thread {
  u32 thread, threads, cta, ctas, cluster_rank;
};

// The kinds of access that the order of memory distinguishes. `order` in src/world/calls/memory.rs decodes these
// numbers. An early access is weak, but may race with another launch, whose kernel then does not use the value. A read
// of data that are sent is weak, but a later write of the same launch needs no order after the read.
enum Order : u32 { kWeak = 0, kRelaxed = 1, kAcquire = 2, kRelease = 3, kAcqRel = 4, kEarly = 5, kSent = 6 };
enum Scope : u32 { kCta = 0, kGpu = 1, kSys = 2 };
enum Rmw : u32 { kAdd = 0, kExchange = 1 };
enum Fence : u32 { kFenceThread = 0, kFenceProxyGlobal = 1, kFenceProxyShared = 2, kFenceBarrierInit = 3 };

// The type of the elements of A and B. `unpack` converts the elements of a word.
struct Element {
  void (*unpack)(u32 word, float* values);
  u32 per_word;
};

// The functions of the simulator. Bump kVersion with every change here; the simulator refuses kernels of another
// version.
struct Calls {
  static constexpr u64 kVersion = 12;
  static constexpr u64 kNextPolled = ~0ull;

  const Thread* (*thread)();
  void (*trap)(Place);
  // An index of a region is beyond its extent.
  void (*wrong_index)(u32 index, u32 extent, Place);
  void (*sleep)(u32 ns, Place);
  u64 (*time_ns)();
  u32 (*elect)(Place);
  u32 (*shuffle)(u32 value, u32 lane, Place);
  u32 (*shuffle_xor)(u32 value, u32 mask, Place);
  void (*sync_warp)(Place);
  void (*sync_threads)(u32 barrier, u32 threads, Place);
  // Barrier 0 like sync_threads: returns whether one of the threads has a value that is not 0.
  u32 (*sync_threads_or)(u32 value, u32 threads, Place);
  void (*arrive_threads)(u32 barrier, u32 threads, Place);
  void (*sync_cluster)(Place);
  // Waits for the grids before this grid on its stream, and lets the next grid start.
  void (*grid_wait)(Place);
  void (*grid_allow)(Place);
  void (*registers)(u32 count, u32 acquire, Place);
  // Announces the next wait of the thread, for reports. Role 0: the thread waits for nothing; `wait` then tells whether
  // the previous wait has ended. `seen`: the last value that the wait has seen, or kNextPolled: the word that is polled
  // next.
  void (*waiting)(u32 role, u32 wait, u32 peer, u32 index, u32 wanted, u64 seen, Place);

  // Waits of this kernel end early from now on, so that threads use data that no rank has sent.
  void (*aborted)(Place);

  void (*load)(const void* from, void* to, u32 bytes, u32 order, u32 scope, Place);
  void (*store)(void* to, const void* from, u32 bytes, u32 order, u32 scope, Place);
  u64 (*rmw)(void* at, u64 value, u32 bytes, u32 rmw, u32 order, u32 scope, Place);
  void (*fence)(u32 fence, u32 scope, Place);
  void (*load_shared)(u32 from, void* to, u32 bytes, Place);
  void (*store_shared)(u32 to, const void* from, u32 bytes, Place);

  void (*barrier_init)(u32 barrier, u32 arrivals, Place);
  void (*barrier_expect_bytes)(u32 barrier, u32 bytes, Place);
  // `scope` kCta: only of the thread's own CTA; kGpu: of the cluster.
  void (*barrier_arrive)(u32 barrier, u32 bytes, u32 scope, Place);
  u32 (*barrier_try_wait)(u32 barrier, u32 parity, u32 scope, Place);

  // Boxes of tensors. `at` has one coordinate for each dimension of the map. `ctas`: a bit per CTA of the cluster.
  void (*tensor_load)(u32 to, const CUtensorMap* map, u32 barrier, const u32* at, u32 dims, u32 ctas, Place);
  void (*tensor_store)(const CUtensorMap* map, u32 from, const u32* at, u32 dims, Place);
  void (*bulk_load)(u32 to, const void* from, u32 bytes, u32 barrier, Place);
  void (*bulk_store)(void* to, u32 from, u32 bytes, Place);
  void (*bulk_commit)(Place);
  void (*bulk_wait)(u32 pending, u32 read_only, Place);
  // Writes 16 bytes to shared memory: `bytes` bytes from global memory, and zeros behind these bytes.
  void (*copy_async)(u32 to, const void* from, u32 bytes, Place);
  void (*copy_commit)(Place);
  void (*copy_wait)(u32 pending, Place);

  void (*mma_fence)(Place);
  void (*mma)(float* d, u32 n, u64 a, u64 b, Element element, u32 b_mn_major, u32 accumulate, Place);
  void (*mma_registers)(float* d, u32 n, const u32* a, u64 b, Element element, u32 b_mn_major, u32 accumulate, Place);
  void (*mma_commit)(Place);
  void (*mma_wait)(u32 pending, Place);
  void (*store_matrix)(u32 row, const u32* matrices, u32 count, Place);
  void (*load_matrix)(u32 row, u32* matrices, u32 count, u32 transpose, Place);
};

}  // namespace mk::sim

// One table per kernel. The symbol is hidden, so that each shared object has a table of its own.
extern "C" __attribute__((visibility("hidden"))) const mk::sim::Calls* mk_calls;
