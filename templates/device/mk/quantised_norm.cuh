// Normalised rows as elements of e4m3 with scales, as the operand A of a GEMM has them.
//
// The elements are those of the rows rounded to E, as a kernel behind the norm would compute them. They therefore have equal bits
// with any number of warps of a row.
#pragma once
#include <mk/norm.cuh>
#include <mk/quantise.cuh>

namespace mk {

// Whether normalised rows become elements of e4m3.
template <class Config>
concept QuantisesRows = NormalisesRows<Config> && requires {
  Config::kRowVecs;
  Config::kScaleVecs;  // vectors of a row that share a scale: a power of two, at most a vector for each lane, or all vectors
};

// Whether all elements of a row of Y share a scale.
template <class Config>
constexpr bool kSharesScale = false;
template <QuantisesRows Config>
constexpr bool kSharesScale<Config> = Config::kScaleVecs >= Config::kRowVecs;

// Args: Y and its scales and, with scales of blocks, the distance of their rows, y_scales_row_bytes.
template <class Args>
concept QuantisedArgs = requires(const Args& args) {
  args.y;
  args.y_row_bytes;
  args.y_scales;
};

// What a norm needs of a part of a row: the sum of squares, and the greatest |z * weight| if kHasGreatest.
template <bool kHasGreatest>
struct NormSums {
  float squares = 0.0f, greatest = 0.0f;

  // Adds two pairs of elements of a row. Their weights are used only if kHasGreatest.
  template <HalfWordElement E>
  MK_DEVICE void add(u32 left, u32 right, const u32 (&weights)[2]) {
    squares += squares_of_pair<E>(left) + squares_of_pair<E>(right);
    if constexpr (kHasGreatest) greatest = greater_of_pair<E>(greater_of_pair<E>(greatest, left, weights[0]), right, weights[1]);
  }

  // All lanes: of the parts of all lanes, in all lanes.
  MK_DEVICE NormSums of_warp() const {
    NormSums all{warp_sum(squares), greatest};
    if constexpr (kHasGreatest) all.greatest = warp_max(greatest);
    return all;
  }
};

// Only kernels that quantise instantiate the functions.
template <class E, class Config, class Args>
struct QuantisedNorm {
  using Elements = VecSum<E>;

  // The greatest magnitude of normalised elements, from their greatest |z * weight| and the scale of the norm.
  static MK_DEVICE float magnitude(float product, float scale) {
    return Quantise::greater(Quantise::kLeast, RmsNorm<Config, E>::magnitude(product, scale));
  }

  // A converged warp: stores this lane's vectors of a row: vector `first`, and every kWarp-th one behind it that the row has. `of_row` is
  // the greatest magnitude of the row if all its elements share a scale.
  template <u32 kCount>
  static MK_DEVICE void store_vecs(const Args& args, u32 row, u32 first, const Vec16 (&y)[kCount], float of_row) {
    constexpr u32 kScales = kSharesScale<Config> ? 1 : kCount;  // of this lane's vectors
    float greatest[kScales];
#pragma unroll
    for (float& of_scale : greatest) of_scale = of_row;
    if constexpr (!kSharesScale<Config>) {
#pragma unroll
      for (u32 v = 0; v < kCount; ++v) greatest[v] = has(first, v) ? greater(Quantise::kLeast, y[v]) : Quantise::kLeast;
      of_lanes(greatest);
    }
#pragma unroll
    for (u32 v = 0; v < kCount; ++v) {
      if (has(first, v)) store(args, row, first + v * kWarp, y[v], greatest[v % kScales]);
    }
  }

  // The elements of Y of a row from vector `vec` of the row on.
  static MK_DEVICE u8* elements_at(const Args& args, u32 row, u32 vec) {
    static_assert(QuantisedArgs<Args>);
    return args.y + row * args.y_row_bytes + vec * Elements::kElements;
  }

  // Stores the scale of the elements of a row from vector `vec` of the row on, if these elements are the first with the scale.
  static MK_DEVICE void store_scale(const Args& args, u32 row, u32 vec, float scale) {
    if (vec % Config::kScaleVecs == 0) store_float(scales_of(args, row) + Fp32::bytes(vec / Config::kScaleVecs), scale);
  }

 private:
  static constexpr u32 kWords = Elements::kElements / E4m3::kPerWord;  // words of the elements of a vector

  static MK_DEVICE bool has(u32 first, u32 v) { return first + v * kWarp < Config::kRowVecs; }

  // The greater of `greatest` and the magnitudes of a vector of a row.
  static MK_DEVICE float greater(float greatest, const Vec16& y) {
    const Elements all = elements(y);
#pragma unroll
    for (u32 i = 0; i < Elements::kElements; ++i) greatest = Quantise::greater(greatest, all.values[i]);
    return greatest;
  }

  // A converged warp: each magnitude becomes the greatest one of the lanes that share the scale of a block. Exchanges of several
  // magnitudes overlap.
  template <u32 kCount>
  static MK_DEVICE void of_lanes(float (&greatest)[kCount]) {
#pragma unroll
    for (u32 mask = 1; mask < Config::kScaleVecs; mask *= 2) {
#pragma unroll
      for (float& own : greatest) own = max(own, exchange(own, mask));
    }
  }

  // Stores vector `vec` of a row, which shares a scale with numbers of this greatest magnitude.
  static MK_DEVICE void store(const Args& args, u32 row, u32 vec, const Vec16& y, float greatest) {
    const float scale = Quantise::scale(greatest), to_elements = Quantise::reciprocal(scale);
    const Elements all = elements(y);
    u32 words[kWords];
#pragma unroll
    for (u32 word = 0; word < kWords; ++word) {
      const float* of_word = all.values + word * E4m3::kPerWord;
      words[word] = E4m3::pack({of_word[0] * to_elements, of_word[1] * to_elements, of_word[2] * to_elements, of_word[3] * to_elements});
    }
    u8* to = elements_at(args, row, vec);
    if constexpr (kWords == 2) store_float2(to, as_float(words[0]), as_float(words[1]));
    else store_word(to, words[0]);
    store_scale(args, row, vec, scale);
  }

  static MK_DEVICE Elements elements(const Vec16& vec) {
    Elements all;
    all.add(vec);
    return all;
  }

  // The scales of a row.
  static MK_DEVICE u8* scales_of(const Args& args, u32 row) {
    if constexpr (requires { args.y_scales_row_bytes; }) return args.y_scales + row * args.y_scales_row_bytes;
    else return args.y_scales + Fp32::bytes(row);
  }
};

}  // namespace mk
