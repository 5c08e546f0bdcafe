// Normalised rows as elements of e4m3 with scales, as the operand A of a GEMM has them.
//
// The elements are those of the rows rounded to Config::Element, as a kernel behind the norm would compute them. They therefore
// have equal bits with any number of warps of a row.
#pragma once
#include <mk/collective/norm.cuh>
#include <mk/quantise.cuh>

namespace mk::collective {

// Whether normalised rows become elements of e4m3.
template <class Config>
concept QuantisesRows = NormalisesRows<Config> && requires {
  Config::kScaleVecs;  // vectors of a row that share a scale: a power of two, at most a vector for each lane, or all vectors
};

// Whether all elements of a row of Y share a scale.
template <class Config>
constexpr bool kSharesScale = false;
template <QuantisesRows Config>
constexpr bool kSharesScale<Config> = Config::kScaleVecs >= Config::kRowVecs;

// Args: the scales of Y and, with scales of blocks, the distance of their rows, y_scales_row_bytes.
template <class Args>
concept QuantisedArgs = NormArgs<Args> && requires(const Args& args) { args.y_scales; };

// Only kernels that quantise instantiate the functions.
template <ShardConfig Config, class Args>
struct QuantisedNorm {
  using Elements = VecSum<typename Config::Element>;

  // The greatest magnitude of a normalised row, from the greatest |z * weight| and the scale of the norm.
  static MK_DEVICE float of_row(float product, float scale) {
    return Quantise::greater(Quantise::kLeast, RowNorm<Config, Args>::magnitude(product, scale));
  }

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

  // Stores vector `vec` of the tensor, which shares a scale with numbers of this greatest magnitude. The lane with the first of
  // these numbers stores the scale.
  static MK_DEVICE void store(const Args& args, u32 vec, const Vec16& y, float greatest) {
    static_assert(QuantisedArgs<Args>);
    const u32 row = vec / Config::kRowVecs, in_row = vec % Config::kRowVecs;
    const float scale = Quantise::scale(greatest), to_elements = Quantise::reciprocal(scale);
    const Elements all = elements(y);
    u32 words[kWords];
#pragma unroll
    for (u32 word = 0; word < kWords; ++word) {
      const float* of_word = all.values + word * E4m3::kPerWord;
      words[word] = E4m3::pack({of_word[0] * to_elements, of_word[1] * to_elements, of_word[2] * to_elements, of_word[3] * to_elements});
    }
    u8* to = args.y + row * args.y_row_bytes + in_row * Elements::kElements;
    if constexpr (kWords == 2) store_float2(to, as_float(words[0]), as_float(words[1]));
    else store_word(to, words[0]);
    if (in_row % Config::kScaleVecs == 0) store_float(scales_of(args, row) + Fp32::bytes(in_row / Config::kScaleVecs), scale);
  }

 private:
  static constexpr u32 kWords = Elements::kElements / E4m3::kPerWord;  // words of the elements of a vector

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

}  // namespace mk::collective
