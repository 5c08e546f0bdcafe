// Tensor-core products of a warpgroup (wgmma), on the simulator: products are done as late as a wait allows.
#pragma once
#include <mk/arch/sm90/descriptor.cuh>

namespace mk {

__forceinline__ void mma_fence() { mk_calls->mma_fence(sim::place()); }

__forceinline__ void mma_commit() { mk_calls->mma_commit(sim::place()); }

template <u32 kPending>
__forceinline__ void mma_wait() {
  mk_calls->mma_wait(kPending, sim::place());
}

template <u32 kPending>
__forceinline__ void mma_wait_after(float) {
  mma_wait<kPending>();
}

// The simulator multiplies the values that `unpack` returns for the words of operands. Elements of one byte are K-major,
// in shared memory.
template <ElementType E, u32 kN, bool kBMnMajor>
  requires HalfWordElement<E> || (E::kBytes == 1 && !kBMnMajor)
struct Mma {
  static void unpack(u32 word, float* values) {
    for (u32 i = 0; i < E::kPerWord; ++i) values[i] = E::at(word, i);
  }
  static constexpr sim::Element kElement = {unpack, E::kPerWord};

  static __forceinline__ void issue(Accumulator<kN>& d, u64 a, u64 b, bool accumulate) {
    mk_calls->mma(d.values, kN, a, b, kElement, kBMnMajor, accumulate, sim::place());
  }

  static __forceinline__ void issue(Accumulator<kN>& d, const u32 (&a)[4], u64 b, bool accumulate)
    requires HalfWordElement<E>
  {
    mk_calls->mma_registers(d.values, kN, a, b, kElement, kBMnMajor, accumulate, sim::place());
  }
};

// The simulator needs no fence here: every access that another thread could observe already goes through a call of the
// simulator.
template <u32 kCols>
__forceinline__ void mma_hold(Accumulator<kCols>&) {}

}  // namespace mk
