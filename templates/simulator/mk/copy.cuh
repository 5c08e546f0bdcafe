// Copies to shared memory that a thread issues and later waits for, on the simulator: copies complete as late as a wait
// allows.
#pragma once
#include <mk/base.cuh>

namespace mk {

__forceinline__ void copy_async(u32 dst, const u8* src, u32 bytes) {
  mk_calls->copy_async(dst, src, bytes, sim::place());
}

__forceinline__ void copy_commit() { mk_calls->copy_commit(sim::place()); }

template <u32 kPending>
__forceinline__ void copy_wait() {
  mk_calls->copy_wait(kPending, sim::place());
}

}  // namespace mk
