// The elements that a thread of a warpgroup holds of a product of 64 rows: the layout of wgmma's D (PTX ISA,
// "Asynchronous Warpgroup Level Matrix Multiply-Accumulate"). Plain C++: GPUs and the simulator share it.
//
// A warp has 16 rows. A quad of its lanes shares two rows, which are eight rows apart. Columns are in blocks of eight,
// and a lane has two neighbouring columns of each block. The lane's registers hold block after block, and in each block
// the pair of the upper row, then the pair of the lower row.
#pragma once
#include <mk/element.cuh>

namespace mk {

// The warpgroups of a CTA that multiply, which are the CTA's last warps.
constexpr u32 kGroups = 2;

struct Fragment {
  static constexpr u32 kRows = 64;
  static constexpr u32 kWarpRows = 16;
  static constexpr u32 kHalfRows = 8;  // the distance from the upper row of a lane to the lower row
  static constexpr u32 kRowLanes = 4;  // a quad
  static constexpr u32 kBlockCols = 8;
  static constexpr u32 kBlockRegisters = 4;

  // The registers of a thread for some columns, in fp32.
  static MK_DEVICE constexpr u32 registers(u32 cols) { return cols / kBlockCols * kBlockRegisters; }

  // The register of a sum in the upper row (half 0) or the lower row, in a column behind the lane's first column. The half and
  // the column of a register.
  static MK_DEVICE constexpr u32 at(u32 half, u32 col) { return col / kBlockCols * kBlockRegisters + half * 2 + col % 2; }
  static MK_DEVICE constexpr u32 half_of(u32 index) { return index / 2 % 2; }
  static MK_DEVICE constexpr u32 col_of(u32 index) { return index / kBlockRegisters * kBlockCols + index % 2; }

  // A warp's number in its warpgroup, and its first row.
  static MK_DEVICE u32 warp() { return threadIdx.x % kWarpgroup / kWarp; }
  static MK_DEVICE u32 warp_row() { return warp() * kWarpRows; }

  // The upper row of a lane among the rows of its warp, and among the rows of its warpgroup.
  static MK_DEVICE u32 lane_row() { return lane_index() / kRowLanes; }
  static MK_DEVICE u32 row() { return warp_row() + lane_row(); }

  // The first of a lane's two columns in each block.
  static MK_DEVICE u32 col() { return lane_index() % kRowLanes * 2; }

  // Whether a lane is the first lane of its quad.
  static MK_DEVICE bool is_first_of_row() { return lane_index() % kRowLanes == 0; }

  // The row of the warp to whose line a lane points in Accumulator::write_blocks.
  static MK_DEVICE u32 written_row() { return lane_index() % kWarpRows; }
};

// Returns the greatest value of a quad, in all its lanes.
MK_DEVICE float quad_max(float value) {
  value = max(value, exchange(value, 1));
  return max(value, exchange(value, 2));
}

// Returns the sum of the values of a quad, added in one order in all lanes of the quad.
MK_DEVICE float quad_sum(float value) {
  value += exchange(value, 1);
  return value + exchange(value, 2);
}

}  // namespace mk
