// Rings of buffers. Plain C++: GPUs and the simulator share it.
#pragma once
#include <mk/base.cuh>

namespace mk {

// A place in a ring of `kStages` buffers, and the parity of the round it is in.
template <u32 kStages>
struct Ring {
  u32 stage = 0;
  u32 parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  // By at most all of them.
  __device__ __forceinline__ void advance(u32 by) {
    stage += by;
    if (stage >= kStages) {
      stage -= kStages;
      parity ^= 1;
    }
  }
};

}  // namespace mk
