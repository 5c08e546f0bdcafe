// Row indices: how dispatch and combine name the rows of all ranks. Row i of rank r has the index r kMaxRows + i.
#pragma once
#include <mk/types.cuh>

namespace mk::moe {

// The index in place of a row that does not exist, since the choice has no expert: -1. All row indices are below 2^31.
constexpr u32 kNoRow = ~0u;

}  // namespace mk::moe
