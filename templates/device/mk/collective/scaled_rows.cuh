// Rows whose scales travel with their elements.
//
// A row on its way consists of the vectors of its elements and, behind these, the vectors of its scales, with up to four
// scales each. Scales are therefore sent, awaited and put as elements are. In the memory of the caller, scales are a tensor
// of their own, whose rows may begin at any multiple of 4 bytes, so scales are loaded and stored one by one.
#pragma once
#include <mk/element.cuh>
#include <mk/memory.cuh>

namespace mk::collective {

// The scales of each row, in fp32.
template <class Config>
concept HasScales = requires { Config::kRowScales; };

// The place of a vector of elements or of at most kMost scales.
template <class Byte, u32 kMost>
struct ScaledVec {
  Byte* address;
  u32 scales;  // the number of scales; 0 if the vector has elements

  friend MK_DEVICE Vec16 load_vec16(const ScaledVec& from) {
    if (from.scales == 0) return mk::load_vec16(from.address);
    const auto scale = [&](u32 i) { return i < kMost && i < from.scales ? load_word(from.address + Fp32::bytes(i)) : 0; };
    return {scale(0), scale(1), scale(2), scale(3)};
  }
  friend MK_DEVICE void store_vec16(const ScaledVec& to, const Vec16& data) {
    if (to.scales == 0) return mk::store_vec16(to.address, data);
    const u32 words[] = {data.x, data.y, data.z, data.w};
#pragma unroll
    for (u32 i = 0; i < kMost; ++i) {
      if (i < to.scales) store_word(to.address + Fp32::bytes(i), words[i]);
    }
  }
};

// The place of a tensor with scales, or of a shard of it, which gives the place of a vector.
template <HasScales Config, class Byte>
struct ScaledRows {
  Byte* base;
  u64 row_bytes;
  Byte* scales;
  u64 scales_row_bytes;

  static constexpr u32 kScalesOfVec = 4;
  static constexpr u32 kElementVecs = Config::kRowVecs - kCeilDiv<Config::kRowScales, kScalesOfVec>;
  static constexpr u32 kMost = Config::kRowScales < kScalesOfVec ? Config::kRowScales : kScalesOfVec;

  MK_DEVICE ScaledVec<Byte, kMost> at(u32 vec) const {
    const u32 row = vec / Config::kRowVecs, in_row = vec % Config::kRowVecs;
    if (in_row < kElementVecs) return {base + row * row_bytes + in_row * 16, 0};
    const u32 first = (in_row - kElementVecs) * kScalesOfVec;
    return {scales + row * scales_row_bytes + Fp32::bytes(first), min(kScalesOfVec, Config::kRowScales - first)};
  }
};

}  // namespace mk::collective
