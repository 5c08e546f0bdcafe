// Sums of 16-byte vectors, element by element in fp32.
#pragma once
#include <mk/element.cuh>
#include <mk/memory.cuh>

namespace mk {

// Vectors are added one after the other, so the result depends only on their order. The sum of no vectors is -0, the
// only number that changes no addend: +0 would turn a sum of -0 into +0.
template <ElementType E>
struct VecSum {
  static constexpr u32 kElements = E::kPerVec;

  float values[kElements];

  MK_DEVICE VecSum() {
#pragma unroll
    for (u32 i = 0; i < kElements; ++i) values[i] = -0.0f;
  }

  MK_DEVICE void add(const Vec16& vec) {
    const u32 words[4] = {vec.x, vec.y, vec.z, vec.w};
#pragma unroll
    for (u32 i = 0; i < kElements; ++i) values[i] += E::at(words[i / E::kPerWord], i % E::kPerWord);
  }

  // Adds a vector times `weight`.
  MK_DEVICE void add(const Vec16& vec, float weight) {
    const u32 words[4] = {vec.x, vec.y, vec.z, vec.w};
#pragma unroll
    for (u32 i = 0; i < kElements; ++i) values[i] += E::at(words[i / E::kPerWord], i % E::kPerWord) * weight;
  }

  // Returns the sums, rounded to the type of the elements.
  MK_DEVICE Vec16 result() const {
    u32 words[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      float word[E::kPerWord];
#pragma unroll
      for (u32 j = 0; j < E::kPerWord; ++j) word[j] = values[i * E::kPerWord + j];
      words[i] = E::pack(word);
    }
    return {words[0], words[1], words[2], words[3]};
  }
};

}  // namespace mk
