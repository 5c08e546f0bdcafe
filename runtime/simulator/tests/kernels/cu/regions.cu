// Copies the matrix element by element. Each thread copies a row.
#include <mk/region.cuh>

using Rows = mk::Region<u32, 0, 4, 64, 32>;

KERNEL(64) {
  for (u32 col = 0; col < 32; ++col) {
    const u32 value = mk::load(Rows::at(threadIdx.x, col).on(args.input));
    mk::store(Rows::at(threadIdx.x, col).on(args.output), value);
  }
}
