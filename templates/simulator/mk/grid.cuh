// The grids before and after this grid on its stream, on the simulator.
#pragma once
#include <mk/base.cuh>

namespace mk {

__forceinline__ void wait_for_grids_before() { mk_calls->grid_wait(sim::place()); }

__forceinline__ void allow_grid_behind() { mk_calls->grid_allow(sim::place()); }

}  // namespace mk
