// Functions of a quad, which is four lanes that share rows of a product's accumulators. Plain C++: GPUs and the
// simulator share it.
#pragma once
#include <mk/base.cuh>

namespace mk {

// Returns the greatest of the quad's values, in all its lanes.
__device__ __forceinline__ float quad_max(float value) {
  value = max(value, exchange(value, 1));
  return max(value, exchange(value, 2));
}

// Returns the sum of the quad's values, added in an order that is the same in all lanes.
__device__ __forceinline__ float quad_sum(float value) {
  value += exchange(value, 1);
  return value + exchange(value, 2);
}

}  // namespace mk
