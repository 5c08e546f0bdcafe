// The parts that depend on the architecture: how a warpgroup multiplies (Mma, mma_descriptor and the fences and waits
// around them), where its sums are (Accumulator, Fragment), and how registers move between warpgroups.
// Each architecture is a folder of mk/arch.
#pragma once
#include <mk/arch/sm90/accumulator.cuh>
#include <mk/arch/sm90/mma.cuh>
#include <mk/arch/sm90/registers.cuh>
