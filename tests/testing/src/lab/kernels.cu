// Kernels that tests and benchmarks run beside the kernels under test. The kernels are plain loops, so that a reader
// can see that they are right.
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// A bf16 whose bits are all ones. No kernel computes this NaN, so an element with this value was not written.
constexpr u16 kPoison = 0xffff;

__device__ float to_float(u16 bf16) { return __uint_as_float(u32{bf16} << 16); }

// Rounds to nearest even.
__device__ u16 to_bf16(float x) {
  const u32 bits = __float_as_uint(x);
  return static_cast<u16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// splitmix64
__device__ u64 mix(u64 x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Returns a nearly normal number with mean 0 and variance 1/3: the sum of four uniform numbers in -1/2 .. 1/2.
__device__ float random(u64 seed, u64 index) {
  const u64 bits = mix(mix(seed) + index);
  u32 sum = 0;
  for (u32 i = 0; i < 4; ++i) sum += static_cast<u32>(bits >> 16 * i) & 0xffff;
  return static_cast<float>(sum) / 65536.0f - 2.0f;
}

__device__ u64 global_time_ns() {
  u64 ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns)::"memory");
  return ns;
}

// Writes the rows [first_row, first_row + rows) of a random matrix times `scale`, which is the same on every GPU. Poisons
// the columns between `cols` and `stride`.
extern "C" __global__ void fill(u16* matrix, u64 rows, u64 cols, u64 stride, u64 first_row, u64 seed, float scale) {
  const u64 step = u64{gridDim.x} * blockDim.x;
  for (u64 i = u64{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * stride; i += step) {
    const u64 row = i / stride, col = i % stride;
    matrix[i] = col < cols ? to_bf16(scale * random(seed, (first_row + row) * cols + col)) : kPoison;
  }
}

struct Verdict {
  double error2, reference2;  // sums of squares
  u64 wrong, stray;           // numbers of wrong elements, and of elements between the rows that were written
  u64 first_wrong;            // the index of the first wrong element
};

constexpr u32 kSilu = 4;

// Applies an activation by its number: none, relu, gelu, gelu with tanh, silu.
__device__ double activate(u32 activation, double x) {
  switch (activation) {
    case 1: return x < 0 ? 0 : x;
    case 2: return x * normcdf(x);
    case 3: return x / 2 * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    case kSilu: return x / (1 + exp(-x));
    default: return x;
  }
}

// The epilogue of a sum. A pointer is null if the epilogue does not add its operand.
struct Finish {
  const u16* bias;
  const u16* residual;
  u64 residual_stride;
  u32 activation;
  u32 is_fp32;  // whether C has elements of fp32
  u32 is_swiglu;  // whether C is silu(gate) times up, and B has n columns of each
};

// Compares every `row_step`th row of C with activation(A · B + bias) + residual in fp64, or with SwiGLU in place of the
// activation. A thread checks one element.
extern "C" __global__ void check(const u16* a, u64 a_stride, const u16* b, u64 b_k_stride, u64 b_n_stride,
                                 const void* c, u64 c_stride, u64 m, u64 n, u64 k, u64 row_step, Verdict* verdict,
                                 double slack, Finish finish) {
  const u64 row = (u64{blockIdx.y} * blockDim.y + threadIdx.y) * row_step;
  const u64 col = u64{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= m || col >= c_stride) return;
  const u64 at = row * c_stride + col;
  const float found = finish.is_fp32 ? static_cast<const float*>(c)[at] : to_float(static_cast<const u16*>(c)[at]);
  if (col >= n) {
    // The bits of poison are all ones in both types.
    const u32 poison = finish.is_fp32 ? 0xffffffff : u32{kPoison} << 16;
    if (__float_as_uint(found) != poison) atomicAdd(&verdict->stray, u64{1});
    return;
  }
  const auto biased_sum = [&](u64 col) {
    double sum = 0;
    for (u64 i = 0; i < k; ++i) sum += double{to_float(a[row * a_stride + i]) * to_float(b[i * b_k_stride + col * b_n_stride])};
    return finish.bias ? sum + to_float(finish.bias[col]) : sum;
  };
  double sum = activate(finish.activation, biased_sum(col));
  if (finish.is_swiglu) {
    const double gate = activate(kSilu, biased_sum(col)), up = biased_sum(n + col);
    sum = gate * up;
    slack *= 1.1 * fabs(up) + fabs(gate);  // each factor multiplies the error of the other factor
  }
  if (finish.residual) sum += to_float(finish.residual[row * finish.residual_stride + col]);
  const double error = fabs(found - sum);
  // The limit is twice the rounding error, and the slack for the order of addition. The condition is not `>`, so that a
  // NaN is wrong.
  if (!(error <= fabs(sum) * (finish.is_fp32 ? 1.2e-7 : 1.0 / 128) + slack * sqrt(static_cast<double>(k)))) {
    atomicAdd(&verdict->wrong, u64{1});
    atomicMin(&verdict->first_wrong, row * n + col);
  }
  atomicAdd(&verdict->error2, error * error);
  atomicAdd(&verdict->reference2, sum * sum);
}

// Adds a checksum to `sum`, which depends on every element and on its index.
extern "C" __global__ void checksum(const u16* matrix, u64 elems, u64* sum) {
  u64 own = 0;
  const u64 step = u64{gridDim.x} * blockDim.x;
  for (u64 i = u64{blockIdx.x} * blockDim.x + threadIdx.x; i < elems; i += step) own += mix(i << 16 | matrix[i]);
  atomicAdd(sum, own);
}

// Keeps the stream busy for `ns` nanoseconds.
extern "C" __global__ void spin(u64 ns) {
  const u64 start_ns = global_time_ns();
  while (global_time_ns() - start_ns < ns) __nanosleep(1000);
}
