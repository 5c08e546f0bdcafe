// Loads, stores and fences whose order matters between CTAs, ranks and the host, on the simulator.
#pragma once
#include <mk/base.cuh>

namespace mk {

namespace sim {

template <class T>
__forceinline__ T load(const T* p, Order order, Scope scope) {
  T value;
  mk_calls->load(p, &value, sizeof(T), order, scope, place());
  return value;
}

template <class T>
__forceinline__ void store(T* p, T value, Order order, Scope scope) {
  mk_calls->store(p, &value, sizeof(T), order, scope, place());
}

template <class T>
__forceinline__ T rmw(T* p, T value, Rmw what, Order order, Scope scope) {
  return static_cast<T>(mk_calls->rmw(p, value, sizeof(T), what, order, scope, place()));
}

__forceinline__ u64 two_floats(float x, float y) {
  return u64{__builtin_bit_cast(u32, y)} << 32 | __builtin_bit_cast(u32, x);
}

}  // namespace sim

__forceinline__ u32 load(const u32* p) { return sim::load(p, sim::kWeak, sim::kCta); }
__forceinline__ void store(u32* p, u32 value) { sim::store(p, value, sim::kWeak, sim::kCta); }
__forceinline__ u64 load(const u64* p) { return sim::load(p, sim::kWeak, sim::kCta); }
__forceinline__ void store(u64* p, u64 value) { sim::store(p, value, sim::kWeak, sim::kCta); }

__forceinline__ u32 load_early(const u32* p) { return sim::load(p, sim::kEarly, sim::kGpu); }
__forceinline__ void store_early(u32* p, u32 value) { sim::store(p, value, sim::kEarly, sim::kGpu); }

__forceinline__ u32 load_shared(u32 address) {
  u32 value;
  mk_calls->load_shared(address, &value, sizeof value, sim::place());
  return value;
}
__forceinline__ void store_shared(u32 address, u32 value) {
  mk_calls->store_shared(address, &value, sizeof value, sim::place());
}

__forceinline__ u32 load_acquire_sys(const u32* p) { return sim::load(p, sim::kAcquire, sim::kSys); }
__forceinline__ u64 load_acquire_sys(const u64* p) { return sim::load(p, sim::kAcquire, sim::kSys); }
__forceinline__ u32 load_acquire_gpu(const u32* p) { return sim::load(p, sim::kAcquire, sim::kGpu); }
__forceinline__ u32 load_relaxed_sys(const u32* p) { return sim::load(p, sim::kRelaxed, sim::kSys); }
__forceinline__ u64 load_relaxed_sys(const u64* p) { return sim::load(p, sim::kRelaxed, sim::kSys); }
__forceinline__ void store_release_sys(u32* p, u32 value) { sim::store(p, value, sim::kRelease, sim::kSys); }
__forceinline__ void store_release_sys(u64* p, u64 value) { sim::store(p, value, sim::kRelease, sim::kSys); }
__forceinline__ void store_release_gpu(u32* p, u32 value) { sim::store(p, value, sim::kRelease, sim::kGpu); }
__forceinline__ void store_relaxed_sys(u32* p, u32 value) { sim::store(p, value, sim::kRelaxed, sim::kSys); }
__forceinline__ void store_relaxed_sys(u64* p, u64 value) { sim::store(p, value, sim::kRelaxed, sim::kSys); }
__forceinline__ void add_relaxed_sys(u32* p, u32 value) { sim::rmw(p, value, sim::kAdd, sim::kRelaxed, sim::kSys); }
__forceinline__ void add_relaxed_sys(u64* p, u64 value) { sim::rmw(p, value, sim::kAdd, sim::kRelaxed, sim::kSys); }
__forceinline__ void add_release_gpu(u32* p, u32 value) { sim::rmw(p, value, sim::kAdd, sim::kRelease, sim::kGpu); }
__forceinline__ u32 fetch_add_acq_rel_gpu(u32* p, u32 value) {
  return sim::rmw(p, value, sim::kAdd, sim::kAcqRel, sim::kGpu);
}
__forceinline__ u64 fetch_add_acq_rel_gpu(u64* p, u64 value) {
  return sim::rmw(p, value, sim::kAdd, sim::kAcqRel, sim::kGpu);
}
__forceinline__ u32 fetch_add_relaxed_gpu(u32* p, u32 value) {
  return sim::rmw(p, value, sim::kAdd, sim::kRelaxed, sim::kGpu);
}
__forceinline__ u32 exchange_relaxed_gpu(u32* p, u32 value) {
  return sim::rmw(p, value, sim::kExchange, sim::kRelaxed, sim::kGpu);
}
__forceinline__ u64 exchange_relaxed_sys(u64* p, u64 value) {
  return sim::rmw(p, value, sim::kExchange, sim::kRelaxed, sim::kSys);
}

__forceinline__ void fence_sys() { mk_calls->fence(sim::kFenceThread, sim::kSys, sim::place()); }
__forceinline__ void fence_sc_sys() { mk_calls->fence(sim::kFenceThread, sim::kSys, sim::place()); }
__forceinline__ void fence_gpu() { mk_calls->fence(sim::kFenceThread, sim::kGpu, sim::place()); }
__forceinline__ void fence_proxy_async() { mk_calls->fence(sim::kFenceProxyGlobal, sim::kCta, sim::place()); }
__forceinline__ void fence_proxy_async_shared() { mk_calls->fence(sim::kFenceProxyShared, sim::kCta, sim::place()); }

struct alignas(16) Vec16 {
  u32 x, y, z, w;
};

__forceinline__ Vec16 load_vec16(const u8* p) {
  return sim::load(reinterpret_cast<const Vec16*>(p), sim::kWeak, sim::kCta);
}

__forceinline__ Vec16 load_sent_vec16(const u8* p) {
  return sim::load(reinterpret_cast<const Vec16*>(p), sim::kSent, sim::kCta);
}

__forceinline__ u32 load_word(const u8* p) {
  return sim::load(reinterpret_cast<const u32*>(p), sim::kWeak, sim::kCta);
}

__forceinline__ u32 load_half(const u8* p) {
  return sim::load(reinterpret_cast<const u16*>(p), sim::kWeak, sim::kCta);
}

__forceinline__ float2 load_float2(const u8* p) {
  return sim::load(reinterpret_cast<const float2*>(p), sim::kWeak, sim::kCta);
}

// A prefetch has no effect that any thread could see.
__forceinline__ void prefetch(const u8*) {}

__forceinline__ void store_vec16(u8* p, Vec16 v) {
  sim::store(reinterpret_cast<Vec16*>(p), v, sim::kWeak, sim::kCta);
}

__forceinline__ Vec16 load_written_vec16(const u8* p) {
  return sim::load(reinterpret_cast<const Vec16*>(p), sim::kWeak, sim::kCta);
}

__forceinline__ u32 load_written_word(const u8* p) {
  return sim::load(reinterpret_cast<const u32*>(p), sim::kWeak, sim::kCta);
}

enum class Ordering { kRelaxed, kAcquire };

// Two stores and two loads, between which accesses of other threads may come: only eight bytes arrive together.
__forceinline__ void store_packet(u8* p, Vec16 v) {
  u64* words = reinterpret_cast<u64*>(p);
  sim::store(words, u64{v.y} << 32 | v.x, sim::kRelaxed, sim::kSys);
  sim::store(words + 1, u64{v.w} << 32 | v.z, sim::kRelaxed, sim::kSys);
}

template <Ordering kOrdering>
__forceinline__ Vec16 load_packet(const u8* p) {
  constexpr sim::Order order = kOrdering == Ordering::kAcquire ? sim::kAcquire : sim::kRelaxed;
  const u64* words = reinterpret_cast<const u64*>(p);
  const u64 a = sim::load(words, order, sim::kSys);
  const u64 b = sim::load(words + 1, order, sim::kSys);
  return Vec16{static_cast<u32>(a), static_cast<u32>(a >> 32), static_cast<u32>(b), static_cast<u32>(b >> 32)};
}

__forceinline__ void store_word(u8* p, u32 word) {
  sim::store(reinterpret_cast<u32*>(p), word, sim::kWeak, sim::kCta);
}

__forceinline__ void store_float(u8* p, float x) {
  sim::store(reinterpret_cast<u32*>(p), __builtin_bit_cast(u32, x), sim::kWeak, sim::kCta);
}

__forceinline__ void store_float2(u8* p, float x, float y) {
  sim::store(reinterpret_cast<u64*>(p), sim::two_floats(x, y), sim::kWeak, sim::kCta);
}

__forceinline__ Vec16 load_shared_vec16(u32 address) {
  Vec16 v;
  mk_calls->load_shared(address, &v, sizeof v, sim::place());
  return v;
}

__forceinline__ void store_shared_vec16(u32 address, Vec16 v) {
  mk_calls->store_shared(address, &v, sizeof v, sim::place());
}

__forceinline__ void store_shared_float2(u32 address, float x, float y) {
  const u64 both = sim::two_floats(x, y);
  mk_calls->store_shared(address, &both, sizeof both, sim::place());
}

__forceinline__ float4 load_float4(const float* p) {
  return sim::load(reinterpret_cast<const float4*>(p), sim::kWeak, sim::kCta);
}

__forceinline__ void store_float4(float* p, const float4& v) {
  sim::store(reinterpret_cast<float4*>(p), v, sim::kWeak, sim::kCta);
}

}  // namespace mk
