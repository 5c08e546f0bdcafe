// Tensor-core products of a warpgroup (wgmma), on the simulator: they are done as late as a wait allows.
#pragma once
#include <mk/descriptor.cuh>

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

template <u32 kN, bool kBMnMajor>
struct Mma {
  static __forceinline__ void issue(float (&d)[kN / 2], u64 a, u64 b, bool accumulate) {
    mk_calls->mma(d, kN, a, b, kBMnMajor, accumulate, sim::place());
  }
};

template <u32 kN, bool kBMnMajor>
struct MmaRegisters {
  static __forceinline__ void issue(float (&d)[kN / 2], const u32 (&a)[4], u64 b, bool accumulate) {
    mk_calls->mma_registers(d, kN, a, b, kBMnMajor, accumulate, sim::place());
  }
};

// Calls of the simulator are no less: whoever could see an access has been called.
template <u32 kCount>
__forceinline__ void mma_hold(float (&)[kCount]) {}

__forceinline__ void store_matrix_x4(u32 row_address, u32 r0, u32 r1, u32 r2, u32 r3) {
  const u32 matrices[] = {r0, r1, r2, r3};
  mk_calls->store_matrix(row_address, matrices, 4, sim::place());
}

namespace sim {

__forceinline__ void load_matrix(u32 row_address, u32& r0, u32& r1, u32& r2, u32& r3, bool transpose) {
  u32 matrices[4];
  mk_calls->load_matrix(row_address, matrices, 4, transpose, place());
  r0 = matrices[0], r1 = matrices[1], r2 = matrices[2], r3 = matrices[3];
}

}  // namespace sim

__forceinline__ void load_matrix_x4(u32 row_address, u32& r0, u32& r1, u32& r2, u32& r3) {
  sim::load_matrix(row_address, r0, r1, r2, r3, false);
}

__forceinline__ void load_matrix_x4_transposed(u32 row_address, u32& r0, u32& r1, u32& r2, u32& r3) {
  sim::load_matrix(row_address, r0, r1, r2, r3, true);
}

}  // namespace mk
