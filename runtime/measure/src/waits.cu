// Kernels that let the streams of all ranks begin a call at the same time.
typedef unsigned int u32;
typedef unsigned long long u64;

__device__ u64 global_time_ns() {
  u64 ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns)::"memory");
  return ns;
}

__device__ u32 load_acquire(const u32* at) {
  u32 value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

// The state of a rank's barrier, on its GPU: the numbers of arrivals and of calls since it was zeroed.
struct BarrierCounter {
  u32 arrived, calls;
};
struct BarrierCounters {
  BarrierCounter* of_rank[8];
};
// Waits until all ranks run this kernel. Returns on all ranks within a microsecond.
extern "C" __global__ void barrier(BarrierCounters counters, u32 rank, u32 world, u64 limit_ns) {
  BarrierCounter* own = counters.of_rank[rank];
  const u32 wanted = (own->calls + 1) * world;
  for (u32 peer = 0; peer < world; ++peer) {
    asm volatile("red.release.sys.global.add.u32 [%0], 1;" ::"l"(&counters.of_rank[peer]->arrived) : "memory");
  }
  const u64 start_ns = global_time_ns();
  while (static_cast<int>(load_acquire(&own->arrived) - wanted) < 0 && global_time_ns() - start_ns < limit_ns) {
  }
  own->calls += 1;
}

// Blocks the stream until the host has written `wanted`, or `limit_ns` have passed.
extern "C" __global__ void gate(const u32* word, u32 wanted, u64 limit_ns) {
  const u64 start_ns = global_time_ns();
  while (load_acquire(word) != wanted && global_time_ns() - start_ns < limit_ns) __nanosleep(200);
}
