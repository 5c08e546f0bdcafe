// The parts that depend on the architecture: the products of a warpgroup (Mma, mma_descriptor, and their fences and
// waits), the registers of its sums (Accumulator, Fragment), and the exchange of registers between warpgroups. Each
// architecture is a folder of mk/arch.
#pragma once
#include <mk/arch/sm90/accumulator.cuh>
#include <mk/arch/sm90/mma.cuh>
#include <mk/arch/sm90/registers.cuh>
