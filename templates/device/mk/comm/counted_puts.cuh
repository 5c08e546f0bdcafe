// Puts of which a call makes as many as its data need. Both sides count them from what ranks have exchanged before: a
// call's first put to each peer says, among other things, how many follow.
//
// Arrivals are counted over all calls, so each rank keeps how many puts of each peer there were before a call. Calls of
// the two parities have words of their own: the warp that watches the arrivals of a call writes the word of the next
// one while others still read this call's.
#pragma once
#include <mk/comm/put.cuh>

namespace mk::comm {

template <class Config>
concept CountedPutsConfig = TopologyConfig<Config> && requires {
  Config::kChannels;  // to each peer
};

template <class Workspace>
concept CountedPutsWorkspace = NetworkWorkspace<Workspace> && requires(u32 parity, u32 peer) {
  Workspace::puts_before(parity, peer);  // puts of a peer, on each channel, before a call of this parity
};

// Only kernels of several nodes instantiate its functions, so only these need the regions.
template <class Config, class Workspace>
struct CountedPuts {
  using Network = comm::Network<Config, Workspace>;

  // What the count of arrivals from a peer is when put `index` of this call has arrived.
  static MK_DEVICE u32 arrivals_with(const RankContext& ctx, u32 peer, u32 index) {
    return load(before(ctx, ctx.epoch, peer)) + index + 1;
  }

  // Waits until put `index` of this call has arrived from a peer.
  static MK_DEVICE void wait_put(const RankContext& ctx, Role role, u32 channel, u32 peer, u32 index) {
    Network::wait_arrivals(ctx, role, channel, peer, arrivals_with(ctx, peer, index));
  }

  // A warp: copies arrival counts to this GPU's memory until `puts_of(peer)` puts of this call have arrived from each
  // peer, at least one, and stores where the next call's count from. A call may do it once per phase, with growing
  // numbers; the last one must be that of all puts.
  template <NetworkArgs Args, class PutsOf>
    requires CountedPutsConfig<Config> && CountedPutsWorkspace<Workspace>
  static MK_DEVICE void watch_arrivals(const Args& args, const RankContext& ctx, const PutsOf& puts_of) {
    const auto wanted_of = [&](u32 peer) { return load(before(ctx, ctx.epoch, peer)) + puts_of(peer); };
    Network::watch_arrivals_until(args, ctx, wanted_of);
    for (u32 peer = lane_index(); peer < Topology<Config>::kPeerNodes; peer += kWarp) {
      store(before(ctx, ctx.epoch + 1, peer), wanted_of(peer));  // @counted-puts.next
    }
  }

 private:
  static MK_DEVICE u32* before(const RankContext& ctx, u32 epoch, u32 peer) {
    return ctx.local_ptr(Workspace::puts_before(epoch % 2, peer));
  }
};

}  // namespace mk::comm
