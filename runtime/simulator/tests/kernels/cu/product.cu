// Multiplies the unit matrix with the input, which TMA loads twice to the same addresses. Rows of operands in shared
// memory have kRow bytes.
constexpr u32 kRow = 128;
constexpr bool kMnMajor = true;

// Returns a descriptor for any swizzle. mk::mma_descriptor supports only the swizzle of 128 bytes.
template <bool kMajor>
__device__ __forceinline__ u64 descriptor(u32 address) {
  constexpr u64 kSwizzle = u64{kRow == 128 ? 1 : kRow == 64 ? 2 : 3} << 62;
  constexpr u64 kStride = u64{8 * kRow >> 4} << 32;
  constexpr u64 kLeading = u64{kMajor ? 64 * kRow >> 4 : 1} << 16;
  return kSwizzle | kStride | kLeading | ((address & 0x3ffff) >> 4);
}

// Returns the offset at which depth k begins in sub-tiles of 64 rows.
__device__ __forceinline__ u32 at_depth(u32 k) { return k * 2 / kRow * 64 * kRow + k * 2 % kRow; }

KERNEL(160) {
  const u32 a = shared_start(), b = a + 8192, full = b + 8192, free = full + 8;
  if (threadIdx.x == 0) {
    mk::barrier_init(full, 1);
    mk::barrier_init(free, 4);
    mk::fence_barrier_init();
  }
  for (u32 i = threadIdx.x; i < 2048; i += 160) {
    const u32 row = i * 4 % (64 * kRow) / kRow, chunk = i * 4 % kRow / 16 ^ row * kRow / 128 % 8 % (kRow / 16);
    const u32 k = i * 4 / (64 * kRow) * kRow / 2 + chunk * 8 + i % 4 * 2;
    mk::store_shared(a + i * 4, k == row ? 0x3f80 : k + 1 == row ? 0x3f800000 : 0);
  }
  mk::fence_proxy_async_shared();
  __syncthreads();
  const u32 warp = mk::warp_index();
  if (warp == 4) {
    if (mk::elect_one()) {
      for (u32 round = 0; round < 2; ++round) {
        WAIT(free, round + 1);
        mk::barrier_expect(full, 8192);
        for (u32 i = 0; i < 128 / kRow; ++i) {
          mk::tma_load_2d(b + i * 64 * kRow, args.input_map, full, i * kRow / 2, 0);
        }
      }
    }
    __syncwarp();
    return;
  }
  for (u32 round = 0; round < 2; ++round) {
    mk::Accumulator<64> d;
    WAIT(full, round);
    mk::mma_fence();
#pragma unroll
    for (u32 k = 0; k < 64; k += 16) {
      const u32 slice = kMnMajor ? k * kRow : at_depth(k);
      mk::Mma<mk::Bf16, 64, kMnMajor>::issue(d, descriptor<false>(a + at_depth(k)), descriptor<kMnMajor>(b + slice), k != 0);
    }
    mk::mma_commit();
    mk::mma_wait<0>();
    if (mk::lane_index() == 0) mk::barrier_arrive(free);
    u32* to = words(args.output) + (warp * 16 + mk::lane_index() / 4) * 32 + mk::lane_index() % 4;
#pragma unroll
    for (u32 j = 0; j < 8; ++j) {
      mk::store(to + j * 4, mk::Bf16::pack(d.values[4 * j], d.values[4 * j + 1]));
      mk::store(to + 8 * 32 + j * 4, mk::Bf16::pack(d.values[4 * j + 2], d.values[4 * j + 3]));
    }
  }
}
