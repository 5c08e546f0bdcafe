// Packets that validate themselves (Lamport buffers, as in TensorRT-LLM and FlashInfer). A slot is 0 until a packet arrives,
// and its receiver clears the slot again. No packet is 0, and its eight bytes arrive at once, so neither side needs a flag,
// a fence or a second word. Unlike LL, all bytes on the wire are data.
//
// A slot may be written again when its receiver has cleared it. The buffers of a call ensure that: a rank writes to the
// buffers of call e + 2 when it has received data of call e + 1 from the receiver, which has then ended call e.
#pragma once
#include <mk/deadline.cuh>
#include <mk/element.cuh>

namespace mk::comm {

// Two words of elements, inverted. No word that `pack` makes of numbers has all bits set (element.cuh).
struct LamportPacket {
  u64 inverted;

  MK_DEVICE bool has_arrived() const { return inverted != 0; }
  MK_DEVICE u32 first() const { return ~static_cast<u32>(inverted); }
  MK_DEVICE u32 second() const { return ~static_cast<u32>(inverted >> 32); }
};

MK_DEVICE LamportPacket load_lamport(const u64* slot) { return {load_relaxed_sys(slot)}; }

template <ElementType E>
MK_DEVICE void store_lamport(u64* slot, u32 first, u32 second) {
  const u64 inverted = ~(u64{second} << 32 | first);
  constexpr u64 kNans = ~(u64{E::kNans} << 32 | E::kNans);
  store_relaxed_sys(slot, inverted != 0 ? inverted : kNans);
}

// The receiver, when it has the packet: clears the slot.
MK_DEVICE void clear_lamport(u64* slot) { store_relaxed_sys(slot, 0); }

// A vector of elements as two packets, which may arrive one after the other. A packet whose bits are all set, which is
// two words of NaNs, becomes other NaNs on the way.
struct LamportVec {
  Vec16 inverted;

  MK_DEVICE bool have_arrived() const {
    return (inverted.x | inverted.y) != 0 && (inverted.z | inverted.w) != 0;
  }
  MK_DEVICE Vec16 data() const { return {~inverted.x, ~inverted.y, ~inverted.z, ~inverted.w}; }
};

MK_DEVICE LamportVec load_lamport_vec(const u8* slot) { return {load_packet<Ordering::kRelaxed>(slot)}; }

template <ElementType E>
MK_DEVICE void store_lamport_vec(u8* slot, const Vec16& data) {
  Vec16 inverted{~data.x, ~data.y, ~data.z, ~data.w};
  constexpr u32 kNans = ~E::kNans;
  if ((inverted.x | inverted.y) == 0) inverted.x = inverted.y = kNans;
  if ((inverted.z | inverted.w) == 0) inverted.z = inverted.w = kNans;
  store_packet(slot, inverted);
}

MK_DEVICE void clear_lamport_vec(u8* slot) { store_packet(slot, {0, 0, 0, 0}); }

}  // namespace mk::comm
