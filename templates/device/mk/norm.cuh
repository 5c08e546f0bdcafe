// RMSNorm of rows: z * weight / sqrt(mean of squares of z + eps).
//
// The weight comes first, so that the greatest |z * weight| of a row, which is known before the mean of squares, gives the greatest
// magnitude of the normalised row: the same factor and the same rounding keep the order of numbers.
#pragma once
#include <mk/quantise.cuh>
#include <mk/vec_sum.cuh>

namespace mk {

// Whether rows of the result are normalised.
template <class Config>
concept NormalisesRows = requires { Config::kEps; };  // added to the mean of squares

// The sum of the squares of two elements, and the two elements normalised. See RmsNorm.
template <HalfWordElement E>
MK_DEVICE float squares_of_pair(u32 pair) {
  return E::low(pair) * E::low(pair) + E::high(pair) * E::high(pair);
}
template <HalfWordElement E>
MK_DEVICE u32 scaled_pair(u32 pair, float scale, u32 weight) {
  return E::pack(E::low(pair) * E::low(weight) * scale, E::high(pair) * E::high(weight) * scale);
}

// The greater of `greatest` and the |z * weight| of two elements.
template <HalfWordElement E>
MK_DEVICE float greater_of_pair(float greatest, u32 pair, u32 weight) {
  return Quantise::greater(Quantise::greater(greatest, E::low(pair) * E::low(weight)), E::high(pair) * E::high(weight));
}

// The sum of the values of all lanes of a warp, in all lanes. The order of additions never changes.
MK_DEVICE float warp_sum(float value) {
#pragma unroll
  for (u32 mask = 1; mask < kWarp; mask *= 2) value += exchange(value, mask);
  return value;
}

// The greatest value of all lanes of a warp, in all lanes.
MK_DEVICE float warp_max(float value) {
#pragma unroll
  for (u32 mask = 1; mask < kWarp; mask *= 2) value = max(value, exchange(value, mask));
  return value;
}

template <NormalisesRows Config, ElementType E>
struct RmsNorm {
  using Elements = VecSum<E>;

  static MK_DEVICE float squares(const Vec16& vec) {
    const Elements z = elements(vec);
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < Elements::kElements; ++i) sum += z.values[i] * z.values[i];
    return sum;
  }

  // The factor by which a row of `vecs` vectors is multiplied, from the sum of its squares.
  static MK_DEVICE float scale(float squares, u32 vecs) {
    const float columns = vecs * Elements::kElements;
    return reciprocal_sqrt_approx(squares / columns + Config::kEps);
  }

  // The greater of `greatest` and the |z * weight| of a vector.
  static MK_DEVICE float greater(float greatest, const Vec16& vec, const Vec16& weight) {
    const Elements z = elements(vec), w = elements(weight);
#pragma unroll
    for (u32 i = 0; i < Elements::kElements; ++i) greatest = Quantise::greater(greatest, z.values[i] * w.values[i]);
    return greatest;
  }

  // The magnitude of the normalised element whose |z * weight| is `product`.
  static MK_DEVICE float magnitude(float product, float scale) {
    float word[E::kPerWord] = {product * scale};
    return E::at(E::pack(word), 0);
  }

  static MK_DEVICE Vec16 scaled(const Vec16& vec, float scale, const Vec16& weight) {
    Elements y = elements(vec);
    const Elements w = elements(weight);
#pragma unroll
    for (u32 i = 0; i < Elements::kElements; ++i) y.values[i] = y.values[i] * w.values[i] * scale;
    return y.result();
  }

 private:
  static MK_DEVICE Elements elements(const Vec16& vec) {
    Elements all;
    all.add(vec);
    return all;
  }
};

}  // namespace mk
