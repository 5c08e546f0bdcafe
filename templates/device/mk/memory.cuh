// Loads, stores and fences whose order matters between CTAs, ranks and the host.
#pragma once
#include <mk/base.cuh>

namespace mk {

// Ordinary accesses, without order of their own.
__device__ __forceinline__ u32 load(const u32* p) { return *p; }
__device__ __forceinline__ void store(u32* p, u32 value) { *p = value; }
__device__ __forceinline__ u64 load(const u64* p) { return *p; }
__device__ __forceinline__ void store(u64* p, u64 value) { *p = value; }

// A load whose value counts only if no thread writes the word meanwhile, which the caller checks by other means. The
// load is one request of a CTA, while a relaxed load is a request of each warp.
__device__ __forceinline__ u32 load_early(const u32* p) { return *p; }
// A store to a word that load_early reads.
__device__ __forceinline__ void store_early(u32* p, u32 value) { *p = value; }

// Ordinary accesses to a word of this CTA's shared memory.
__device__ __forceinline__ u32 load_shared(u32 address) {
  u32 value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ void store_shared(u32 address, u32 value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

// Sees all earlier accesses of the thread, copy engine or host that stored the value.
__device__ __forceinline__ u32 load_acquire_sys(const u32* p) {
  u32 value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
}

__device__ __forceinline__ u64 load_acquire_sys(const u64* p) {
  u64 value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(p) : "memory");
  return value;
}

// Sees all earlier accesses of the thread of this GPU that stored the value.
__device__ __forceinline__ u32 load_acquire_gpu(const u32* p) {
  u32 value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
}

// Sees only the value. A fence after the load makes it an acquiring load.
__device__ __forceinline__ u32 load_relaxed_sys(const u32* p) {
  u32 value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
}

__device__ __forceinline__ u64 load_relaxed_sys(const u64* p) {
  u64 value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(p) : "memory");
  return value;
}

// Publishes all earlier accesses of this thread, to every rank and the host.
__device__ __forceinline__ void store_release_sys(u32* p, u32 value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}

__device__ __forceinline__ void store_release_sys(u64* p, u64 value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(value) : "memory");
}

// Publishes all earlier accesses of this thread, only to threads of this GPU.
__device__ __forceinline__ void store_release_gpu(u32* p, u32 value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}

__device__ __forceinline__ void store_relaxed_sys(u32* p, u32 value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}

__device__ __forceinline__ void store_relaxed_sys(u64* p, u64 value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(value) : "memory");
}

// Adds without an order of its own, so a fence_sys comes before the add. One fence and several relaxed adds take a
// third of the time of as many releasing adds, each of which waits for all stores of the thread.
__device__ __forceinline__ void add_relaxed_sys(u32* p, u32 value) {
  asm volatile("red.relaxed.sys.global.add.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}

__device__ __forceinline__ void add_relaxed_sys(u64* p, u64 value) {
  asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"(p), "l"(value) : "memory");
}

// Adds after all accesses of the warp before its __syncwarp, for CTAs of this GPU.
__device__ __forceinline__ void add_release_gpu(u32* p, u32 value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}

// Adds and returns the old value, with acquire and release among the CTAs of this GPU.
__device__ __forceinline__ u32 fetch_add_acq_rel_gpu(u32* p, u32 value) {
  u32 old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(value) : "memory");
  return old;
}

__device__ __forceinline__ u64 fetch_add_acq_rel_gpu(u64* p, u64 value) {
  u64 old;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(value) : "memory");
  return old;
}

// Adds and returns the old value, without order.
__device__ __forceinline__ u32 fetch_add_relaxed_gpu(u32* p, u32 value) {
  u32 old;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(value) : "memory");
  return old;
}

__device__ __forceinline__ u32 exchange_relaxed_gpu(u32* p, u32 value) {
  u32 old;
  asm volatile("atom.relaxed.gpu.global.exch.b32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(value) : "memory");
  return old;
}

__device__ __forceinline__ u64 exchange_relaxed_sys(u64* p, u64 value) {
  u64 old;
  asm volatile("atom.relaxed.sys.global.exch.b64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(value) : "memory");
  return old;
}

// Orders this thread's accesses before the fence, and everything that it has acquired, before its accesses after the
// fence, for every thread that sees the later accesses.
__device__ __forceinline__ void fence_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// A fence_sys that also orders the thread's earlier stores before its later loads. If two threads each store a word,
// then have this fence, and then load the other's word, at least one of the threads sees the other's store.
__device__ __forceinline__ void fence_sc_sys() { asm volatile("fence.sc.sys;" ::: "memory"); }

// A fence like fence_sys, for threads of this GPU alone.
__device__ __forceinline__ void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// Orders this thread's ordinary accesses to global memory, and everything that it has acquired, against the copy engine of
// the SM (TMA). A fence that includes shared memory also waits for data of the SM on its way to peers (measured: `combine`
// took 10 % longer).
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// Orders this thread's ordinary accesses to shared memory against TMA.
__device__ __forceinline__ void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

struct alignas(16) Vec16 {
  u32 x, y, z, w;
};

// Loads 16 bytes of an operand, which L1 does not keep. Headers do not use the path of read-only data (ld.global.nc): this
// kernel may write an operand that is also a result, and the previous grid may write an operand while this grid waits.
__device__ __forceinline__ Vec16 load_vec16(const u8* p) {
  Vec16 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// Loads 16 bytes of an operand to send them in packets. Any thread may store a result at the same address that was
// computed from the contents of the packets: no load returns a value that depends on its own result, so this needs no
// fence.
__device__ __forceinline__ Vec16 load_sent_vec16(const u8* p) { return load_vec16(p); }

// Loads a word of an operand. Neighbours share lines, so L1 keeps them.
__device__ __forceinline__ u32 load_word(const u8* p) {
  u32 word;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(word) : "l"(p));
  return word;
}

// Loads two bytes of an operand. Neighbours share lines, so L1 keeps them.
__device__ __forceinline__ u32 load_half(const u8* p) {
  u16 half;
  asm volatile("ld.global.u16 %0, [%1];" : "=h"(half) : "l"(p));
  return half;
}

// Loads two fp32 of an operand, at a multiple of 8 bytes. Neighbours share lines, so L1 keeps them.
__device__ __forceinline__ float2 load_float2(const u8* p) {
  float2 v;
  asm volatile("ld.global.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(p));
  return v;
}

// Prefetches the line at `p`, which must be mapped memory, to L2. Does not wait for the line.
__device__ __forceinline__ void prefetch(const u8* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// Loads 16 bytes that other threads have written during this kernel, and that a flag has acquired.
__device__ __forceinline__ Vec16 load_written_vec16(const u8* p) {
  Vec16 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

// Loads a word that this thread has written during this kernel.
__device__ __forceinline__ u32 load_written_word(const u8* p) {
  u32 word;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(word) : "l"(p) : "memory");
  return word;
}

enum class Ordering { kRelaxed, kAcquire };

// Stores a packet of comm/ll.cuh, or two packets of comm/lamport.cuh: two times eight bytes. Each eight bytes arrive at
// once.
__device__ __forceinline__ void store_packet(u8* p, Vec16 v) {
  asm volatile(
      "{\n"
      ".reg .b64 a, b;\n"
      "mov.b64 a, {%1, %2};\n"
      "mov.b64 b, {%3, %4};\n"
      "st.relaxed.sys.global.v2.b64 [%0], {a, b};\n"
      "}" ::"l"(p),
      "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
      : "memory");
}

// Loads a packet of comm/ll.cuh, or two packets of comm/lamport.cuh. An acquire sees all earlier accesses of the
// threads that stored the packets.
template <Ordering kOrdering>
__device__ __forceinline__ Vec16 load_packet(const u8* p) {
  Vec16 v;
#define MK_LOAD_PACKET(ordering)                    \
  asm volatile(                                     \
      "{\n"                                         \
      ".reg .b64 a, b;\n"                           \
      "ld." ordering ".sys.global.v2.b64 {a, b}, [%4];\n" \
      "mov.b64 {%0, %1}, a;\n"                      \
      "mov.b64 {%2, %3}, b;\n"                      \
      "}"                                           \
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)  \
      : "l"(p)                                      \
      : "memory")
  if constexpr (kOrdering == Ordering::kAcquire) {
    MK_LOAD_PACKET("acquire");
  } else {
    MK_LOAD_PACKET("relaxed");
  }
#undef MK_LOAD_PACKET
  return v;
}

__device__ __forceinline__ void store_vec16(u8* p, Vec16 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

__device__ __forceinline__ void store_word(u8* p, u32 word) {
  asm volatile("st.global.u32 [%0], %1;" ::"l"(p), "r"(word) : "memory");
}

__device__ __forceinline__ void store_float(u8* p, float x) {
  asm volatile("st.global.f32 [%0], %1;" ::"l"(p), "f"(x) : "memory");
}

__device__ __forceinline__ void store_float2(u8* p, float x, float y) {
  asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(p), "f"(x), "f"(y) : "memory");
}

__device__ __forceinline__ Vec16 load_shared_vec16(u32 address) {
  Vec16 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

__device__ __forceinline__ void store_shared_vec16(u32 address, Vec16 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

__device__ __forceinline__ void store_shared_float2(u32 address, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}

__device__ __forceinline__ float4 load_float4(const float* p) {
  float4 v;
  asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory");
  return v;
}

__device__ __forceinline__ void store_float4(float* p, const float4& v) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}

}  // namespace mk
