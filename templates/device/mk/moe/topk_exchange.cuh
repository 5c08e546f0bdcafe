// The exchange of top-k entries: each rank sends the number of its tokens, then their entries.
//
// All data travel as LL packets that carry the mark of the call, so a reader waits only for the packets that it reads.
// Packets are double-buffered by parity of the epoch: a rank that has rows of few ranks' tokens need not wait until the
// other ranks have read its packets.
#pragma once
#include <mk/comm/ll.cuh>
#include <mk/moe/topk.cuh>

namespace mk::moe {

template <class Config>
concept TopkExchangeConfig = TopkConfig<Config> && requires {
  Config::kThreads;
  Config::kCountPackets;  // of a rank, before its entries
};

template <class Workspace>
concept TopkExchangeWorkspace = requires(u32 parity, u32 source, u32 i) {
  Workspace::token_counts(parity, source, i);
  Workspace::topk_packets(parity, source, i);
};

// Only kernels of several ranks instantiate its functions.
template <TopkConfig Config, TopkArgs Args, class Workspace>
struct TopkExchange {
  using Ranks = Topology<Config>;
  using Topk = moe::Topk<Config, Args>;
  using Entry = typename Topk::Entry;
  using Packet = comm::LlPacket;

  // Packet 0 holds the number of tokens of the call, and the number of tokens whose entries follow. For a rank of
  // another node, the latter is the number of tokens on its list for this node, and two more packets hold the fault
  // that it found: 1 + the index of the entry, or 0 if there is no fault; the token; the row index.
  struct Counts {
    Packet packets[Config::kCountPackets];

    MK_DEVICE u32 given() const { return packets[0].first(); }
    MK_DEVICE u32 tokens() const { return packets[0].second(); }
    MK_DEVICE void report_fault_of(const RankContext& ctx, u32 source) const {
      if (packets[1].first() == 0) return;
      Topk::report_wrong_row_index(ctx, source, packets[1].second(), packets[1].first() - 1, packets[2].first());
    }
  };

  static MK_DEVICE Symmetric<u8> count_packet(const RankContext& ctx, u32 source, u32 packet) {
    return Workspace::token_counts(ctx.parity(), source, packet);  // @topk.counts-buffer
  }
  static MK_DEVICE Symmetric<u8> entry_packet(const RankContext& ctx, u32 source, u32 i) {
    return Workspace::topk_packets(ctx.parity(), source, i);  // @topk.buffer
  }

  // All threads of all CTAs: sends this rank's entries to the other ranks of its node. `entry` is the thread's first one;
  // it was loaded beside the number of tokens, not after it.
  static MK_DEVICE void send(const Args& args, const RankContext& ctx, u32 given, Entry entry) {
    static_assert(TopkExchangeConfig<Config> && TopkExchangeWorkspace<Workspace>);
    u32 i = blockIdx.x * Config::kThreads + threadIdx.x;
    const u32 from_last = gridDim.x * Config::kThreads - 1 - i;  // the last threads have no entry if there are few
    // The packet with the counts also signals that this rank has read everything that it was sent in earlier calls.
    if (from_last < Ranks::kLocalWorld) fence_sys();  // @topk.send-fence
    const u32 tokens = Topk::valid_tokens(given);
    if (from_last < Ranks::kLocalWorld) {
      comm::store_ll(ctx.peer_ptr(from_last, count_packet(ctx, ctx.rank, 0)), given, tokens, ctx.mark());
    }
    while (i < tokens * Config::kTopK) {
      for (u32 distance = 1; distance < Ranks::kLocalWorld; ++distance) {
        const u32 peer = (ctx.local_rank() + distance) % Ranks::kLocalWorld;
        comm::store_ll(ctx.peer_ptr(peer, entry_packet(ctx, ctx.rank, i)), entry.row_index, entry.weight_bits, ctx.mark());
      }
      entry = Topk::load_entry(args, i += gridDim.x * Config::kThreads);
    }
  }

  // Waits for the packet in a slot. `packet` is the earlier content of the slot. After an abort, the packet is an entry
  // without a row, or a count of no tokens.
  static MK_DEVICE Packet wait(const RankContext& ctx, u32 source, const u8* slot, Packet packet) {
    Deadline deadline;
    while (!packet.has_arrived(ctx.mark())) {  // @topk.wait
      packet = comm::load_ll(slot);
      if (packet.has_arrived(ctx.mark())) break;
      const WaitSite site{kPush, kRouting, source, source, ctx.mark()};
      if (deadline.expired(ctx, site, packet.words.y)) return {Vec16{~0u, ctx.mark(), 0, ctx.mark()}};
    }
    return packet;
  }

  // Waits for the counts of a rank of this node, and acquires them: the rank has then read everything that it was sent
  // before.
  static MK_DEVICE Counts wait_counts(const RankContext& ctx, u32 source) {
    const u8* slot = ctx.local_ptr(count_packet(ctx, source, 0));
    Deadline deadline;
    Counts counts{};
    for (;;) {
      const Packet packet = comm::load_ll<Ordering::kAcquire>(slot);  // @topk.acquire
      if (packet.has_arrived(ctx.mark())) {
        counts.packets[0] = packet;
        return counts;
      }
      if (deadline.expired(ctx, WaitSite{kPush, kRouting, source, source, ctx.mark()}, packet.words.y)) return counts;
    }
  }

  // The same for any rank, of which the first `packets` packets count: waits for them if it `must`, and is false if some
  // have not arrived.
  static MK_DEVICE bool find_counts(const RankContext& ctx, u32 source, u32 packets, bool must, Counts& counts) {
    bool have_arrived = true;
    for (u32 i = 0; i < packets; ++i) {
      const u8* slot = ctx.local_ptr(count_packet(ctx, source, i));
      counts.packets[i] = comm::load_ll(slot);
      if (must) counts.packets[i] = wait(ctx, source, slot, counts.packets[i]);
      have_arrived &= counts.packets[i].has_arrived(ctx.mark());
    }
    // Loads the same packet again as an acquire: the rank has then read everything that it was sent before.
    if (have_arrived) comm::load_ll<Ordering::kAcquire>(ctx.local_ptr(count_packet(ctx, source, 0)));
    return have_arrived;
  }
};

}  // namespace mk::moe
