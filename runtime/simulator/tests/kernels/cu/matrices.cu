// Four matrices of 8 x 8 bf16 from registers to shared memory and back, plain and twice transposed.
KERNEL(32) {
  const u32 lane = mk::lane_index();
  const u32 row = shared_start() + lane * 16, neighbour = shared_start() + (lane ^ 1) * 16;
  const u32* from = words(args.input) + lane;
  u32* to = words(args.output) + lane;
  u32 a, b, c, d;
  mk::store_matrix_x4(row, mk::load(from), mk::load(from + 32), mk::load(from + 64), mk::load(from + 96));
  __syncwarp();
  mk::load_matrix_x4(neighbour, a, b, c, d);
  mk::store(words(args.output) + (lane ^ 4), a);
  mk::store(words(args.output) + (lane ^ 4) + 32, b);
  __syncwarp();
  mk::load_matrix_x4_transposed(row, a, b, c, d);
  __syncwarp();
  mk::store_matrix_x4(row, a, b, c, d);
  __syncwarp();
  mk::load_matrix_x4_transposed(row, a, b, c, d);
  mk::store(to + 64, c);
  mk::store(to + 96, d);
}
