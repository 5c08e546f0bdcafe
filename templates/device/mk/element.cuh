// Types of elements of matrices in memory: their bytes, the K of an MMA with such operands, and their conversion to and
// from fp32. Plain C++: GPUs and the simulator share it.
//
// Registers hold elements in words of four bytes. The first element of a word, in memory, is in its lowest bits.
#pragma once
#include <mk/convert.cuh>

namespace mk {

constexpr u32 kVecBytes = 16;    // bytes of the longest access of a thread
constexpr u32 kLineBytes = 128;  // bytes of a line of the 128-byte swizzle, in which tiles lie in shared memory

// The constants that follow from the bytes of an element.
template <u32 kElementBytes>
struct SizedElement {
  static constexpr u32 kBytes = kElementBytes;
  static constexpr u32 kPerWord = 4 / kBytes;
  static constexpr u32 kPerVec = kVecBytes / kBytes;
  static constexpr u32 kPerLine = kLineBytes / kBytes;

  static MK_DEVICE constexpr u32 bytes(u32 count) { return count * kBytes; }
};

// The functions and constants that headers need of an element. `pack` rounds the elements of a word to nearest even,
// and `at` returns one element. Conversions make only one NaN, so no word that `pack` returns has all bits set. Words
// with all bits set can therefore stand for data that have not arrived (comm/lamport.cuh). kNans is a word of other
// NaNs, which may replace such words. Where kIsPromoted, an MMA keeps fewer bits of a sum than fp32 has, so main loops
// add the products of each stage to fp32 sums themselves.
template <class E>
concept ElementType = requires(u32 word, float (&values)[E::kPerWord]) {
  E::kNans;
  E::at(word, 0u);
  E::pack(values);
};

// An element of two bytes. `low` is the first element of a word.
template <class E>
concept HalfWordElement = ElementType<E> && E::kPerWord == 2 && requires(u32 word, float x) {
  E::low(word);
  E::high(word);
  E::pack(x, x);
};

struct Bf16 : SizedElement<2> {
  static constexpr u32 kNans = 0x7fff7fff;
  static constexpr bool kIsPromoted = false;

  static MK_DEVICE u32 pack(float low, float high) { return pack_bf16(low, high); }
  static MK_DEVICE u32 pack(const float (&values)[2]) { return pack_bf16(values[0], values[1]); }
  // A bf16 is the upper half of an fp32.
  static MK_DEVICE float low(u32 word) { return as_float(word << 16); }
  static MK_DEVICE float high(u32 word) { return as_float(word & 0xffff0000u); }
  static MK_DEVICE float at(u32 word, u32 index) { return index == 0 ? low(word) : high(word); }
};

struct Fp16 : SizedElement<2> {
  static constexpr u32 kNans = 0x7fff7fff;
  static constexpr bool kIsPromoted = false;

  static MK_DEVICE u32 pack(float low, float high) { return pack_fp16(low, high); }
  static MK_DEVICE u32 pack(const float (&values)[2]) { return pack_fp16(values[0], values[1]); }
  static MK_DEVICE float low(u32 word) { return unpack_fp16(word); }
  static MK_DEVICE float high(u32 word) { return unpack_fp16(word >> 16); }
  static MK_DEVICE float at(u32 word, u32 index) { return index == 0 ? low(word) : high(word); }
};

// Numbers up to 448, with 4 bits of significand: E4M3 of OCP's "8-bit Floating Point Specification". The type has NaN
// and no infinity. Only operands of MMAs have this type.
struct E4m3 : SizedElement<1> {
  static constexpr u32 kNans = 0x7f7f7f7f;
  static constexpr bool kIsPromoted = true;

  static MK_DEVICE u32 pack(const float (&values)[4]) { return pack_e4m3(values[0], values[1], values[2], values[3]); }
  static MK_DEVICE float at(u32 word, u32 index) { return unpack_e4m3(word >> index * 8); }
};

// An element of sums and of C.
struct Fp32 : SizedElement<4> {
  static constexpr u32 kNans = 0x7fff7fff;

  // A row of 2^30 elements has 2^32 bytes.
  static MK_DEVICE constexpr u64 bytes(u32 count) { return u64{count} * kBytes; }

  static MK_DEVICE u32 pack(const float (&values)[1]) { return as_bits(values[0]); }
  static MK_DEVICE float at(u32 word, u32) { return as_float(word); }
};

}  // namespace mk
