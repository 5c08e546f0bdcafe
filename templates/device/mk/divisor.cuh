// Divisors that nearly always have one value.
#pragma once
#include <mk/rank_context.cuh>

namespace mk {

// If each call gives its rows, numbers of ranks, of tiles and of rows in a group are variables. A division by a
// variable takes an H200 some 200 cycles, as estimated from kernels with one division per tile. Most of these numbers
// have their largest value, except in the last group, and in calls of very few rows. A division by that constant takes
// some cycles (`docs/performance.md#usual-divisors`). kUsual is the constant, or 0 without a usual value.
template <class Config, u32 kUsual>
struct Divisor {
  u32 value;

  MK_DEVICE u32 quotient(u32 number) const {
    if constexpr (!TakesRows<Config> || kUsual == 0) return number / value;
    else return value == kUsual ? number / kUsual : number / value;
  }
  MK_DEVICE u32 remainder(u32 number) const {
    if constexpr (!TakesRows<Config> || kUsual == 0) return number % value;
    else return value == kUsual ? number % kUsual : number % value;
  }
};

}  // namespace mk
