// The hardware barriers of a CTA by number, for sync_named and arrive_named. A CTA has 16 barriers; number 0 is
// __syncthreads. All kernels share this list, so that components of one kernel cannot take one number twice.
#pragma once
#include <mk/types.cuh>

namespace mk {

enum NamedBarrier : u32 {
  kMmaTurn = 1,      // and 2, one per warpgroup: its turn at the tensor cores
  kQueriesRead = 3,  // and 4, one per warpgroup: its warps have read their queries
  kSliceRead = 5,    // plus the index of a warpgroup in the CTA: its warps have read data that other warps overwrite, or the reverse
  kHalvesQuantised = 8,  // the warpgroups have passed on the greatest magnitudes of their halves of a block
  kNeverUsed = 15    // no thread arrives: see mma_wait_after
};

}  // namespace mk
