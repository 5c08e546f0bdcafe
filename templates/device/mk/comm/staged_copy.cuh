// Copies of global memory to several ranks. TMA loads bytes to a slot of shared memory once, and stores the bytes from
// there to every rank that needs them.
//
// A copy belongs to one thread, which owns the slot. elect_one always elects the same thread of a warp. The thread
// waits for each load, and leaves stores in flight until it needs the slot again. One such thread does not keep the
// link busy, but the twelve warps of a CTA do, since each warp is at another point of load, store and count. Several
// slots per thread would therefore gain nothing.
#pragma once
#include <mk/deadline.cuh>
#include <mk/tma.cuh>

namespace mk::comm {

// Rows in a slot, one after the other: `count` rows of the source from row `first` on. The slot holds bytes [part, part
// + bytes) of each row.
struct StagedRows {
  u32 address;  // address of the slot
  u32 first, count;
  u32 part, bytes;

  MK_DEVICE u32 row(u32 i) const { return address + i * bytes; }
  MK_DEVICE u32 total_bytes() const { return count * bytes; }
};

// Smem: a slot and its barrier for each warp of a CTA that only communicates.
template <class Smem>
concept CopySmem = requires(const Smem smem, u32 warp) {
  smem.copy_slot(warp);
  smem.copy_loaded(warp);
};

// One thread, before the first barrier of the CTA: initialises the slots of its kWarps warps.
template <u32 kWarps, CopySmem Smem>
MK_DEVICE void init_copy_slots(const Smem& smem) {
  for (u32 warp = 0; warp < kWarps; ++warp) barrier_init(smem.copy_loaded(warp), 1);
  fence_barrier_init();
}

struct StagedCopy {
  const RankContext& ctx;
  u32 slot;    // address in shared memory
  u32 loaded;  // barrier of the slot, initialised for one arrival
  u32 phase = 0;

  // Returns a copy through the slot of this thread's warp.
  template <CopySmem Smem>
  static MK_DEVICE StagedCopy of_warp(const RankContext& ctx, const Smem& smem) {
    const u32 warp = threadIdx.x / kWarp;
    return {ctx, smem.copy_slot(warp), smem.copy_loaded(warp)};
  }

  // Loads `bytes` bytes to the slot. `load(barrier)` issues the TMA loads, which count on the barrier. If the source
  // was written through another proxy, by a NIC for example, the caller has issued a fence_proxy_async.
  template <class Load>
  MK_DEVICE void bring(u32 bytes, const Load& load) {
    // Earlier stores must have read the slot.
    tma_wait_read<0>();
    barrier_expect(loaded, bytes);
    load(loaded);
  }

  // Stores the loaded bytes. `store()` issues the TMA stores from the slot. `index` identifies the wait in reports.
  template <class Store>
  MK_DEVICE void send(u32 index, const Store& store) {
    wait_barrier(ctx, loaded, phase, kPush, kStageFull, index);
    phase ^= 1;
    store();
    tma_commit();
  }

  // Loads bytes to the slot, and then stores them.
  template <class Load, class Store>
  MK_DEVICE void move(u32 bytes, u32 index, const Load& load, const Store& store) {
    bring(bytes, load);
    send(index, store);
  }

  // Copies `rows` rows of `row_bytes` bytes each, which is at most kRowBytes. Copies as many rows at a time as the slot
  // holds. A row that is longer than the slot is copied in parts. `load(staged, barrier)` and `store(staged)` get a
  // StagedRows.
  template <u32 kSlotBytes, u32 kRowBytes, class Load, class Store>
  MK_DEVICE void copy_rows(u32 rows, u32 row_bytes, u32 index, const Load& load, const Store& store) {
    constexpr u32 kSlotRows = kSlotBytes < kRowBytes ? 1 : kSlotBytes / kRowBytes;
    for (u32 first = 0; first < rows; first += kSlotRows) {
      const u32 count = min(kSlotRows, rows - first);
      for (u32 part = 0; part < row_bytes; part += kSlotBytes) {
        const StagedRows staged{slot, first, count, part, min(kSlotBytes, row_bytes - part)};
        move(
            staged.total_bytes(), index, [&](u32 barrier) { load(staged, barrier); }, [&] { store(staged); });
      }
    }
  }

  // Copies `bytes` contiguous bytes at `from`. `store(staged)` stores the part that is staged, as one row.
  template <u32 kSlotBytes, class Store>
  MK_DEVICE void copy_bytes(const u8* from, u32 bytes, u32 index, const Store& store) {
    copy_rows<kSlotBytes, kSlotBytes>(
        1, bytes, index,
        [&](const StagedRows& staged, u32 barrier) { tma_load_bytes(slot, from + staged.part, staged.bytes, barrier); },
        store);
  }

  // Waits until everything stored has arrived. TMA is another proxy, so a proxy fence orders its writes before this
  // thread's next accesses. After a fence_sys, a relaxed add may count the stored data.
  static MK_DEVICE void finish() {
    tma_wait<0>();
    fence_proxy_async();
  }
};

}  // namespace mk::comm
