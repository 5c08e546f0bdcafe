// Dynamic scheduling: a CTA that is free takes the next work tile from a counter in device memory. CTAs whose tiles are
// short, or that have other work to do first, leave more tiles to the other CTAs.
#pragma once
#include <mk/call.cuh>

namespace mk::schedule {

template <class Workspace>
concept TileCounterWorkspace = requires(u32 parity) {
  Workspace::tiles_taken(parity);  // tiles taken in a call of this parity
};

// Calls alternate between two counters. A CTA may still take tiles of a call after the next call has begun, so a call
// resets the counter of the next call, and never its own.
template <TileCounterWorkspace Workspace>
struct TileCounter {
  // One thread of a CTA: returns the index of the next tile that no CTA has taken. The index may be past the last tile.
  static MK_DEVICE u32 take(const RankContext& ctx) {
    return fetch_add_relaxed_gpu(ctx.local_ptr(Workspace::tiles_taken(ctx.parity())), 1);
  }

  // Takes the place of mk::advance_epoch, and also resets the counter of the next call.
  static MK_DEVICE void advance_epoch(const RankContext& ctx) {
    mk::advance_epoch(ctx, [&] {
      store(ctx.local_ptr(Workspace::tiles_taken((ctx.epoch + 1) % 2)), 0);
    });
  }
};

}  // namespace mk::schedule
