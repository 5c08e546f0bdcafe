// The parts that depend on the architecture: how a warpgroup multiplies (Mma, mma_descriptor and the fences and waits
// around them), the elements of a product that a thread holds (Fragment), and how registers move between warpgroups.
// Each architecture is a folder of mk/arch.
#pragma once
#include <mk/arch/sm90/fragment.cuh>
#include <mk/arch/sm90/mma.cuh>
#include <mk/arch/sm90/registers.cuh>
