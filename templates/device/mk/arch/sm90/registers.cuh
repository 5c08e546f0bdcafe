// Registers that warpgroups of a CTA give to each other (setmaxnreg).
#pragma once
#include <mk/base.cuh>

namespace mk {

// Gives registers of this warpgroup back to the SM.
template <u32 kCount>
__device__ __forceinline__ void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Takes registers that other warpgroups gave back.
template <u32 kCount>
__device__ __forceinline__ void acquire_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace mk
