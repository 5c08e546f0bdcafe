// Registers that warpgroups of a CTA give to each other, on the simulator.
#pragma once
#include <mk/base.cuh>

namespace mk {

template <u32 kCount>
__forceinline__ void release_registers() {
  mk_calls->registers(kCount, 0, sim::place());
}

template <u32 kCount>
__forceinline__ void acquire_registers() {
  mk_calls->registers(kCount, 1, sim::place());
}

}  // namespace mk
