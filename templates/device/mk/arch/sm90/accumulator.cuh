// The sums of a product in the registers of a warpgroup. Plain C++: GPUs and the simulator share it.
#pragma once
#include <mk/arch/sm90/descriptor.cuh>
#include <mk/arch/sm90/fragment.cuh>
#include <mk/matrix.cuh>
#include <mk/memory.cuh>

namespace mk {

// A thread's sums of 64 rows and kCols columns, in fp32. `Registers` is an array, or a pointer to the registers of a
// larger accumulator.
//
// A sum is named by its row, which is the lane's upper (half 0) or lower row, and by its column behind the lane's first
// column: 0 and 1, 8 and 9, and so on.
template <u32 kCols, class Registers>
struct Accumulator {
  static constexpr u32 kCount = Fragment::registers(kCols);
  static constexpr u32 kBlocks = kCols / Fragment::kBlockCols;

  Registers values;

  MK_DEVICE float& at(u32 half, u32 col) { return values[Fragment::at(half, col)]; }

  // Two neighbours of a row, from an even column on.
  MK_DEVICE float* pair(u32 half, u32 col) { return values + Fragment::at(half, col); }

  // Part `index` of the columns, in the same registers.
  template <u32 kPartCols>
  MK_DEVICE Accumulator<kPartCols, float*> part(u32 index) {
    return {values + index * Fragment::registers(kPartCols)};
  }

  MK_DEVICE void fill(float value) {
#pragma unroll
    for (u32 i = 0; i < kCount; ++i) values[i] = value;
  }

  MK_DEVICE void add(const Accumulator& addends) {
#pragma unroll
    for (u32 i = 0; i < kCount; ++i) values[i] += addends.values[i];
  }

  // Calls `body(half, col, sum)` for each sum.
  template <class Body>
  MK_DEVICE void for_each(const Body& body) {
#pragma unroll
    for (u32 i = 0; i < kCount; ++i) body(Fragment::half_of(i), Fragment::col_of(i), values[i]);
  }

  // Calls `body(half, col, x, y)` for each two neighbours of a row.
  template <class Body>
  MK_DEVICE void for_each_pair(const Body& body) {
#pragma unroll
    for (u32 i = 0; i < kCount; i += 2) body(Fragment::half_of(i), Fragment::col_of(i), values[i], values[i + 1]);
  }

  // The four sums of a block of eight columns: two of the upper row, and two of the lower row.
  MK_DEVICE float4 block(u32 index) {
    const float* d = values + index * Fragment::kBlockRegisters;
    return {d[0], d[1], d[2], d[3]};
  }
  MK_DEVICE void add(u32 index, const float4& addends) {
    float* d = values + index * Fragment::kBlockRegisters;
    d[0] += addends.x, d[1] += addends.y, d[2] += addends.z, d[3] += addends.w;
  }

  // The sums of two blocks from column `col` on, rounded to elements of two bytes.
  template <HalfWordElement E>
  MK_DEVICE Vec16 packed_blocks(u32 col) {
    const float* d = values + Fragment::at(0, col);
    return {E::pack(d[0], d[1]), E::pack(d[2], d[3]), E::pack(d[4], d[5]), E::pack(d[6], d[7])};
  }
  template <HalfWordElement E>
  MK_DEVICE void add_packed_blocks(u32 col, const Vec16& v) {
    float* d = values + Fragment::at(0, col);
    d[0] += E::low(v.x), d[1] += E::high(v.x), d[2] += E::low(v.y), d[3] += E::high(v.y);
    d[4] += E::low(v.z), d[5] += E::high(v.z), d[6] += E::low(v.w), d[7] += E::high(v.w);
  }

  // A warp: writes two blocks of its rows, from column `col` on, to lines of the 128-byte swizzle, as elements of two bytes.
  // `line` is the line of the lane's Fragment::written_row(), and `vec` the first block's vector of the line.
  template <HalfWordElement E>
  MK_DEVICE void write_blocks(u32 line, u32 vec, u32 col) {
    const u32 row = Fragment::written_row();
    const u32 to = line + ((lane_index() / Fragment::kWarpRows + vec) ^ (row % 8)) * kVecBytes;
    const Vec16 v = packed_blocks<E>(col);
    store_matrix_x4(to, v.x, v.y, v.z, v.w);
  }
};

}  // namespace mk
