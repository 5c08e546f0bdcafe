// Matrices of 8 x 8 elements of two bytes, on the simulator.
#pragma once
#include <mk/base.cuh>

namespace mk {

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
