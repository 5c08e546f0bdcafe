// Words of device memory with lengths that each call gives.
#pragma once
#include <mk/deadline.cuh>

namespace mk {

// The result of a warp's check of the words of a call.
struct CheckedWords {
  u32 first_wrong;  // 1 + the number of the first word that is not possible; 0 if all are possible
  u32 hash;         // a hash of all words and their order; 0 if a word is not possible
};

// Returns a number for a word. If a word changes, the sum of these numbers also changes, except in one of 2^31 cases.
MK_DEVICE u32 mix_word(u32 number, u32 word) {
  u32 bits = (word + number * 0x9e3779b9u) * 0x6a09e667u;
  bits = (bits ^ bits >> 15) * 0xbb67ae85u;
  return bits ^ bits >> 13;
}

// All threads of a warp: check `count` words from `address` on. `is_possible(number, word)` says whether a word is
// possible.
template <class IsPossible>
MK_DEVICE CheckedWords check_words(const u32* address, u32 count, IsPossible is_possible) {
  constexpr u32 kNone = ~0u;
  u32 first_wrong = kNone, hash = 0;
  for (u32 i = lane_index(); i < count; i += kWarp) {
    const u32 word = load(address + i);
    if (!is_possible(i, word)) first_wrong = min(first_wrong, i);
    hash += mix_word(i, word);
  }
  first_wrong = kNone - max_of_warp(kNone - first_wrong);
  hash = sum_of_warp(hash);
  if (first_wrong != kNone) return {first_wrong + 1, 0};
  return {0, hash};
}

}  // namespace mk
