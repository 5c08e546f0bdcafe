// Tensor-core products of a warpgroup (wgmma). Sums are fp32 in registers.
//
// Operands in shared memory are lines of 128 bytes with the 128-byte swizzle that TMA writes, from a 1024-byte boundary.
#pragma once
#include <mk/arch/sm90/descriptor.cuh>
#include <mk/named_barriers.cuh>

namespace mk {

// Call this before the first product after ordinary code has accessed the accumulators.
__device__ __forceinline__ void mma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void mma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most kPending committed groups of this warpgroup are unfinished.
template <u32 kPending>
__device__ __forceinline__ void mma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Waits like mma_wait, but not before `ready` has been computed. Otherwise ptxas would move work that should run beside
// the products behind the wait. No result of an fp32 operation has the bits that are compared, but ptxas does not know
// this.
template <u32 kPending>
__device__ __forceinline__ void mma_wait_after(float ready) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.eq.u32 p, %0, 0x7f800001;\n"
      "@p bar.arrive %2, 64;\n"
      "wgmma.wait_group.sync.aligned %1;\n"
      "}" ::"r"(__float_as_uint(ready)),
      "n"(kPending), "n"(static_cast<u32>(kNeverUsed))
      : "memory");
}

// d[64 x kN] = A[64 x kMmaK<E>] B[kMmaK<E> x kN] + (accumulate ? d : 0), asynchronous. B is MN-major if kBMnMajor. A
// thread holds kN / 2 of the sums; Fragment gives their rows and columns.
//
// A is K-major in shared memory, or in registers that hold a fragment of A, packed in words. Accumulators of a product,
// packed in pairs, can be A of the next product. No register of A may change before the product has been waited for.
template <ElementType E, u32 kN, bool kBMnMajor>
struct Mma;

// The registers of the sums: in the text of an instruction, and as its operands.
#define MK_TEXT_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15," \
  " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MK_TEXT_64 \
  MK_TEXT_32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47," \
  " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MK_TEXT_128 \
  MK_TEXT_64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79," \
  " %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95," \
  " %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111," \
  " %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define MK_SUMS_4(i) "+f"(d.values[i]), "+f"(d.values[i + 1]), "+f"(d.values[i + 2]), "+f"(d.values[i + 3])
#define MK_SUMS_16(i) MK_SUMS_4(i), MK_SUMS_4(i + 4), MK_SUMS_4(i + 8), MK_SUMS_4(i + 12)
#define MK_SUMS_32(i) MK_SUMS_16(i), MK_SUMS_16(i + 16)
#define MK_SUMS_64(i) MK_SUMS_32(i), MK_SUMS_32(i + 32)
#define MK_SUMS_128(i) MK_SUMS_64(i), MK_SUMS_64(i + 64)

// An instruction with `sums` registers of sums. The numbers of its inputs follow the numbers of the sums: A and B, as
// in the text `operands`; whether the sums are kept, `keeps`; and the operands that are MN-major, if B may be.
#define MK_WGMMA(shape, sums, operands, keeps, major, ...) \
  asm volatile( \
      "{\n" \
      ".reg .pred p;\n" \
      "setp.ne.b32 p, " keeps ", 0;\n" \
      "wgmma.mma_async.sync.aligned." shape " {" MK_TEXT_##sums "}, " operands ", p, 1, 1" major ";\n" \
      "}" \
      : MK_SUMS_##sums(0) \
      : __VA_ARGS__, "r"(static_cast<u32>(accumulate)), "n"(kBMnMajor ? 1 : 0))

#define MK_WORDS(a) "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])

// A and B in shared memory. `kind` is the K of the instruction and the types of its sums, A and B. `major` is the text
// behind the scales of a product, for 64, 128 and 256 columns.
#define MK_ISSUE(kind, major) \
  static __device__ __forceinline__ void issue(Accumulator<kN>& d, u64 a, u64 b, bool accumulate) { \
    if constexpr (kN == 64) MK_WGMMA("m64n64" kind, 32, "%32, %33", "%34", major("0, %35"), "l"(a), "l"(b)); \
    else if constexpr (kN == 128) MK_WGMMA("m64n128" kind, 64, "%64, %65", "%66", major("0, %67"), "l"(a), "l"(b)); \
    else MK_WGMMA("m64n256" kind, 128, "%128, %129", "%130", major("0, %131"), "l"(a), "l"(b)); \
  }
#define MK_ANY_MAJOR(operands) ", " operands
#define MK_K_MAJOR(operands) ""

// The products of elements E of two bytes.
#define MK_MMA(E, kind) \
  template <u32 kN, bool kBMnMajor> \
  struct Mma<E, kN, kBMnMajor> { \
    static_assert(kN == 64 || kN == 128 || kN == 256); \
\
    MK_ISSUE(kind, MK_ANY_MAJOR) \
\
    static __device__ __forceinline__ void issue(Accumulator<kN>& d, const u32 (&a)[4], u64 b, bool accumulate) { \
      static_assert(kN <= 128); \
      if constexpr (kN == 64) MK_WGMMA("m64n64" kind, 32, "{%32, %33, %34, %35}, %36", "%37", ", %38", MK_WORDS(a), "l"(b)); \
      else MK_WGMMA("m64n128" kind, 64, "{%64, %65, %66, %67}, %68", "%69", ", %70", MK_WORDS(a), "l"(b)); \
    } \
  }

MK_MMA(Bf16, "k16.f32.bf16.bf16");
MK_MMA(Fp16, "k16.f32.f16.f16");

// The products of e4m3. B is K-major.
template <u32 kN>
struct Mma<E4m3, kN, false> {
  static_assert(kN == 64 || kN == 128 || kN == 256);
  static constexpr bool kBMnMajor = false;

  MK_ISSUE("k32.f32.e4m3.e4m3", MK_K_MAJOR)
};

// The compiler moves no access to these registers across this statement. The statement comes after the wait for the
// products that write the registers, since to the compiler a product's registers are ready once the product is issued.
template <u32 kCols>
__device__ __forceinline__ void mma_hold(Accumulator<kCols>& d) {
#pragma unroll
  for (u32 i = 0; i < d.kCount; ++i) asm volatile("" : "+f"(d.values[i])::"memory");
}

}  // namespace mk
