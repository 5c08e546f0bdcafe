// Packets that validate themselves (Lamport buffers, as in TensorRT-LLM and FlashInfer). A slot is 0 until a packet arrives,
// and its receiver makes it 0 again. No packet is 0, and its eight bytes arrive at once, so neither side needs a flag, a
// fence or a second word. Unlike LL, all bytes on the wire are data.
//
// A slot may be written again when its receiver has made it 0. The buffers of a call provide for that: a rank writes to
// those of call e + 2 when it has received data of call e + 1 from the receiver, which has then ended call e.
#pragma once
#include <mk/deadline.cuh>

namespace mk::comm {

// Two words of data, inverted: each has two bf16, and the conversion to bf16 gives no NaN whose bits are all 1.
struct LamportPacket {
  u64 inverted;

  MK_DEVICE bool has_arrived() const { return inverted != 0; }
  MK_DEVICE u32 first() const { return ~static_cast<u32>(inverted); }
  MK_DEVICE u32 second() const { return ~static_cast<u32>(inverted >> 32); }
};

MK_DEVICE LamportPacket load_lamport(const u64* slot) { return {load_relaxed_sys(slot)}; }

MK_DEVICE void store_lamport(u64* slot, u32 first, u32 second) {
  const u64 inverted = ~(u64{second} << 32 | first);
  constexpr u64 kNans = 0x8000800080008000;  // four NaNs, inverted
  store_relaxed_sys(slot, inverted != 0 ? inverted : kNans);
}

// The receiver, when it has the packet.
MK_DEVICE void clear_lamport(u64* slot) { store_relaxed_sys(slot, 0); }

}  // namespace mk::comm
