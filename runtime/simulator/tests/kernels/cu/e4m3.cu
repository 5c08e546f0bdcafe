// Adds a product of e4m3 to sums. The input is A [64][128], B [kCols][128], and the sums [64][kCols] in fp32.
constexpr u32 kCols = 64;
constexpr bool kAccumulate = true;

KERNEL(128) {
  const u32 a = shared_start(), b = a + 64 * mk::kLineBytes;
  for (u32 i = threadIdx.x; i < (64 + kCols) * 8; i += 128) {
    const u32 line = i / 8, vec = i % 8 ^ line % 8;
    mk::store_shared_vec16(a + line * mk::kLineBytes + vec * 16, mk::load_vec16(args.input + i * 16));
  }
  mk::fence_proxy_async_shared();
  __syncthreads();
  using F = mk::Fragment;
  const u32 at = (F::row() * kCols + F::col()) * 4;
  const u8* from = args.input + (64 + kCols) * mk::kLineBytes + at;
  mk::Accumulator<kCols> d;
  d.for_each([&](u32 half, u32 col, float& sum) {
    sum = mk::as_float(mk::load_word(from + (half * F::kHalfRows * kCols + col) * 4));
  });
  mk::mma_fence();
#pragma unroll
  for (u32 k = 0; k < 128; k += mk::kMmaK<mk::E4m3>) {
    mk::Mma<mk::E4m3, kCols, false>::issue(d, mk::mma_descriptor<false>(a + k), mk::mma_descriptor<false>(b + k), kAccumulate || k != 0);
  }
  mk::mma_commit();
  mk::mma_wait<0>();
  mk::mma_hold(d);
  d.for_each_pair([&](u32 half, u32 col, float x, float y) {
    mk::store_float2(args.output + at + (half * F::kHalfRows * kCols + col) * 4, x, y);
  });
}
