// Declarations that all kernels in this folder share. The tests put this file before each kernel.
#include <mk/activation.cuh>
#include <mk/arch.cuh>
#include <mk/barrier.cuh>
#include <mk/cluster.cuh>
#include <mk/comm/command_ring.cuh>
#include <mk/copy.cuh>
#include <mk/memory.cuh>
#include <mk/pipeline.cuh>
#include <mk/tma.cuh>

using mk::u32;
using mk::u64;
using mk::u8;

// A correct kernel writes the content of `input`, 64 x 64 bf16 elements, to `output`.
struct Args {
  CUtensorMap input_map, output_map;
  u8* input;
  u8* output;
  u8* workspaces[2];  // by rank; 0 before the first call
  mk::HostPage* host;
  u32 rank;
  u32 call;  // from 1
};

// The gate of a rank, in which kernels only record that a wait has failed.
__device__ __forceinline__ mk::Gate* gate(const Args& args) {
  return reinterpret_cast<mk::Gate*>(args.workspaces[args.rank] + 8192);
}

__device__ __forceinline__ u32* words(u8* p) { return reinterpret_cast<u32*>(p); }

// Dynamic shared memory, from a boundary of 1024 bytes on.
__device__ __forceinline__ u32 shared_start() {
  extern __shared__ u8 dynamic_smem[];
  return (mk::shared_address(dynamic_smem) + 1023) & ~1023u;
}

// A macro, so that findings name the line that waits.
#define WAIT(barrier, parity)                     \
  while (!mk::barrier_try_wait(barrier, parity)) { \
  }

#define KERNEL(threads) \
  extern "C" __global__ void __launch_bounds__(threads, 1) kernel(const __grid_constant__ Args args)

