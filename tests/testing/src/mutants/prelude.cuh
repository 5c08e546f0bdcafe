// The functions that mutated kernels call. A test inserts them before a kernel's text, with the address of the switch for SWITCH.
#include <mk/cluster.cuh>
#include <mk/deadline.cuh>
#include <mk/tma.cuh>
#include <mk/arch/sm90/mma.cuh>

namespace mk::mutants {

// In the memory of the test: the number of the active mutant, and which mutants a thread has reached.
struct Switch {
  volatile u32 active;
  volatile u8 is_reached[1 << 16];
  volatile u64 steps;  // since the mutant became active
};

// A mutant may make a loop endless that waits for nothing.
constexpr u64 kMostSteps = 200'000'000;

__forceinline__ bool is_active_here(u32 number) {
  Switch* of_test = reinterpret_cast<Switch*>(SWITCH);
  of_test->is_reached[number] = 1;
  if (++of_test->steps > kMostSteps) __trap();
  return of_test->active == number;
}

__forceinline__ constexpr bool is_active(u32 number) {
  return !__builtin_is_constant_evaluated() && is_active_here(number);
}

template <class T>
struct Plain {
  using Type = T;
};
template <class T>
struct Plain<const T> : Plain<T> {};
template <class T>
struct Plain<T&> : Plain<T> {};

template <class T>
concept Number = __is_same(T, u32) || __is_same(T, u64) || __is_same(T, int);

template <u32 kMore, u32 kLess, class T>
__forceinline__ constexpr decltype(auto) off(T&& value) {
  using Value = typename Plain<T>::Type;
  if constexpr (!Number<Value>) return static_cast<T&&>(value);
  else if constexpr (__is_same(T, Value&)) {
    // The callee may take a reference.
    const Value change = is_active(kMore) - is_active(kLess);
    return static_cast<Value&>(change == 0 ? value : *new Value(value + change));
  } else {
    return static_cast<Value>(value + is_active(kMore) - is_active(kLess));
  }
}

template <u32 kMutant, class T>
__forceinline__ constexpr T flipped(T parity) {
  return parity ^ static_cast<T>(is_active(kMutant));
}

template <u32 kMutant, class T>
__forceinline__ constexpr T first(T index) {
  return index != T{} && is_active(kMutant) ? T{} : index;
}

__forceinline__ void fence_sys(u32 mutant) { is_active(mutant) ? mk::fence_gpu() : mk::fence_sys(); }

template <class T>
__forceinline__ T load_acquire_sys(u32 mutant, const T* p) {
  return is_active(mutant) ? mk::load_relaxed_sys(p) : mk::load_acquire_sys(p);
}

__forceinline__ u32 load_acquire_gpu(u32 mutant, const u32* p) {
  return is_active(mutant) ? mk::load_relaxed_sys(p) : mk::load_acquire_gpu(p);
}

template <class T, class V>
__forceinline__ void store_release_sys(u32 mutant, T* p, V value) {
  is_active(mutant) ? mk::store_relaxed_sys(p, value) : mk::store_release_sys(p, value);
}

__forceinline__ void store_release_gpu(u32 mutant, u32* p, u32 value) {
  is_active(mutant) ? mk::store_relaxed_sys(p, value) : mk::store_release_gpu(p, value);
}

__forceinline__ void add_release_gpu(u32 mutant, u32* p, u32 value) {
  is_active(mutant) ? mk::add_relaxed_sys(p, value) : mk::add_release_gpu(p, value);
}

template <class T, class V>
__forceinline__ T fetch_add_acq_rel_gpu(u32 mutant, T* p, V value) {
  if (is_active(mutant)) return mk::sim::rmw(p, static_cast<T>(value), sim::kAdd, sim::kRelaxed, sim::kGpu);
  return mk::fetch_add_acq_rel_gpu(p, value);
}

// Waits that do not acquire.
__forceinline__ u32 wait_flag(u32 mutant, const RankContext& ctx, const u32* flag, const WaitSite& site) {
  if (!is_active(mutant)) return mk::wait_flag(ctx, flag, site);
  Deadline deadline(ctx);
  for (;;) {
    const u32 seen = load_relaxed_sys(flag);
    if (has_reached(seen, site.wanted) || deadline.expired(ctx, site, seen)) return seen;
  }
}

__forceinline__ void wait_mark(u32 mutant, const RankContext& ctx, const u32* flag, const WaitSite& site) {
  if (!is_active(mutant)) return mk::wait_mark(ctx, flag, site);
  Deadline deadline(ctx);
  for (;;) {
    const u32 seen = load_relaxed_sys(flag);
    if (seen == site.wanted || deadline.expired(ctx, site, seen)) return;
  }
}

// Waits for fewer groups, and for the reads of bulk stores in place of the writes.
template <u32 kPending>
__forceinline__ void tma_wait(u32 mutant) {
  is_active(mutant) ? mk::tma_wait_read<kPending>() : mk::tma_wait<kPending>();
}

template <u32 kPending>
__forceinline__ void mma_wait(u32 mutant) {
  is_active(mutant) ? mk::mma_wait<kPending + 1>() : mk::mma_wait<kPending>();
}

}  // namespace mk::mutants
