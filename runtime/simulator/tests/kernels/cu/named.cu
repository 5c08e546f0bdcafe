// Warps 0 and 1 exchange words through shared memory; warp 2 uses another barrier meanwhile.
KERNEL(96) {
  const u32 smem = shared_start();
  if (mk::warp_index() < 2) {
    mk::store_shared(smem + threadIdx.x * 4, mk::load(words(args.input) + (threadIdx.x ^ 63)));
    mk::sync_named(1, 64);
    mk::store(words(args.output) + threadIdx.x, mk::load_shared(smem + (threadIdx.x ^ 63) * 4));
  } else {
    mk::sync_named(2, 32);
  }
}
