// The grids before and after this one on its stream (programmatic dependent launch).
#pragma once
#include <mk/base.cuh>

namespace mk {

// Waits until the grids before this one are complete, and sees what they have written. Only a launch that may overlap with
// them starts a grid earlier; otherwise this returns at once.
__device__ __forceinline__ void wait_for_grids_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Lets the grid behind this one start when every CTA of this grid has called this, if its launch may overlap.
__device__ __forceinline__ void allow_grid_behind() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace mk
