// The grids before and after this grid on its stream (programmatic dependent launch).
#pragma once
#include <mk/base.cuh>

namespace mk {

// Waits until the grids before this grid are complete, and sees their writes. Only a launch that may overlap with these
// grids starts a grid before they end; otherwise this returns at once.
__device__ __forceinline__ void wait_for_grids_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Lets the next grid on the stream start when every CTA of this grid has called this, if the next grid's launch may
// overlap.
__device__ __forceinline__ void allow_grid_behind() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace mk
