// Matrices of 8 x 8 elements of two bytes, on their way between the registers of a warp and shared memory.
#pragma once
#include <mk/base.cuh>

namespace mk {

// Stores four matrices from a warp's registers to the rows at which its lanes point.
__device__ __forceinline__ void store_matrix_x4(u32 row_address, u32 r0, u32 r1, u32 r2, u32 r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row_address), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3)
               : "memory");
}

// Loads four matrices. Lane l gets elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of each matrix.
__device__ __forceinline__ void load_matrix_x4(u32 row_address, u32& r0, u32& r1, u32& r2, u32& r3) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
               : "r"(row_address)
               : "memory");
}

// Loads four matrices, each transposed. Lane l gets elements l / 4 of rows 2 (l % 4) and 2 (l % 4) + 1.
__device__ __forceinline__ void load_matrix_x4_transposed(u32 row_address, u32& r0, u32& r1, u32& r2, u32& r3) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
               : "r"(row_address)
               : "memory");
}

}  // namespace mk
