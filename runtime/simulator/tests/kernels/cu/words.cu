// Two CTAs copy a half of the data each by ordinary accesses, in words of 64 bits and in vectors of 16 bytes.
KERNEL(32) {
  const u32 lane = mk::lane_index();
  const u32 half = blockIdx.x;
  const u64* from = reinterpret_cast<const u64*>(args.input) + half * 256;
  u64* to = reinterpret_cast<u64*>(args.output) + half * 256;
  for (u32 i = lane; i < 128; i += mk::kWarp) mk::store(to + i, mk::load(from + i));
  const u8* source = args.input + half * 2048 + 1024;
  u8* target = args.output + half * 2048 + 1024;
  mk::store_vec16(target + lane * 16, mk::load_vec16(source + lane * 16));
  mk::store_vec16(target + 512 + lane * 16, mk::load_vec16(source + 512 + lane * 16));
}
