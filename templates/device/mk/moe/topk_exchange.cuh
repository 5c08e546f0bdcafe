// The exchange of top-k entries: each rank sends the number of its tokens, and the tokens' entries.
//
// All data travel as LL packets that carry the mark of the call, so a reader waits only for the packets that it reads.
// If a rank can have only few tokens, it sends entries of all possible tokens, so that a reader need not wait for their
// number first. Packets are double-buffered by parity of the epoch. Otherwise a rank would have to wait until all ranks
// have read its packets of the previous call.
#pragma once
#include <mk/call.cuh>
#include <mk/comm/ll.cuh>
#include <mk/moe/topk.cuh>

namespace mk::moe {

template <class Config>
concept TopkExchangeConfig = TopkConfig<Config> && requires {
  Config::kThreads;
  Config::kCountPackets;  // packets with the counts of a rank
};

template <class Workspace>
concept TopkExchangeWorkspace = requires(u32 parity, u32 source, u32 i) {
  Workspace::token_counts(parity, source, i);
  Workspace::topk_packets(parity, source, i);
};

// Only kernels of several ranks instantiate these functions.
template <TopkConfig Config, TopkArgs Args, class Workspace>
struct TopkExchange {
  using Ranks = Topology<Config>;
  using Topk = moe::Topk<Config, Args>;
  using Entry = typename Topk::Entry;
  using Packet = comm::LlPacket;

  static constexpr bool kSendsAll = Config::kMaxTokens <= Config::kLowLatencyTokens;

  // Packet 0 holds the number of tokens of the call, and the number of tokens whose entries follow. For a rank of
  // another node, the latter is the number of tokens on its list for this node. Then there are two more packets with
  // the fault that the rank has found: 1 + the index of the entry, or 0 if there is no fault; the token; the row index.
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
    return Workspace::token_counts(ctx.parity(), source, packet);
  }
  static MK_DEVICE Symmetric<u8> entry_packet(const RankContext& ctx, u32 source, u32 i) {
    return Workspace::topk_packets(ctx.parity(), source, i);
  }

  // All threads of all CTAs: begin the call and send this rank's entries. Returns false if the CTA must end at once.
  static MK_DEVICE bool enter_and_send(const Args& args, const RankContext& ctx) {
    const u32 given = load_word(args.num_tokens);
    const Entry first = Topk::load_entry(args, blockIdx.x * Config::kThreads + threadIdx.x);
    if (!enter(ctx)) return false;
    send(args, ctx, given, first);
    return true;
  }

  // All threads of all CTAs: send this rank's entries to the other ranks of its node. `entry` is the first entry of the
  // thread. It was loaded at the same time as the number of tokens, and not after it.
  static MK_DEVICE void send(const Args& args, const RankContext& ctx, u32 given, Entry entry) {
    static_assert(TopkExchangeConfig<Config> && TopkExchangeWorkspace<Workspace>);
    u32 i = blockIdx.x * Config::kThreads + threadIdx.x;
    const u32 from_last = gridDim.x * Config::kThreads - 1 - i;  // the last threads have no entry if there are few
    // The packet with the counts also signals that this rank has read everything that was sent to it in earlier calls.
    if (from_last < Ranks::kLocalWorld) fence_sys();
    const u32 tokens = Topk::valid_tokens(given);
    if (from_last < Ranks::kLocalWorld) {
      comm::store_ll(ctx.peer_ptr(from_last, count_packet(ctx, ctx.rank, 0)), given, tokens, ctx.mark());
    }
    const u32 sent = (kSendsAll ? Config::kMaxTokens : tokens) * Config::kTopK;
    while (i < sent) {
      if (kSendsAll && i >= tokens * Config::kTopK) entry = Entry{};
      for (u32 distance = 1; distance < Ranks::kLocalWorld; ++distance) {
        const u32 peer = (ctx.local_rank() + distance) % Ranks::kLocalWorld;
        comm::store_ll(ctx.peer_ptr(peer, entry_packet(ctx, ctx.rank, i)), entry.row_index, entry.weight_bits, ctx.mark());
      }
      entry = Topk::load_entry(args, i += gridDim.x * Config::kThreads);
    }
  }

  // Waits for the packet in a slot. `packet` is an earlier load of the slot. After an abort, returns an entry without a
  // row, or a count of no tokens, which has not arrived.
  static MK_DEVICE Packet wait(const RankContext& ctx, u32 source, const u8* slot, Packet packet) {
    Deadline deadline(ctx);
    while (!packet.has_arrived(ctx.mark())) {
      packet = comm::load_ll(slot);
      if (packet.has_arrived(ctx.mark())) break;
      const WaitSite site{kPush, kRouting, source, source, ctx.mark()};
      if (deadline.expired(ctx, site, packet.words.y)) return {Vec16{~0u, 0, 0, 0}};
    }
    return packet;
  }

  // A warp: the packets with the entries of a token of a rank of this node, which need not have arrived.
  static MK_DEVICE Packet load_entries(const RankContext& ctx, u32 source, u32 token) {
    return lane_index() < Config::kTopK ? comm::load_ll(entry_slot(ctx, source, token)) : Packet{};
  }

  // A warp: waits for the packets with the entries. `packet` is the result of load_entries. Returns false after an
  // abort.
  static MK_DEVICE bool wait_entries(const RankContext& ctx, u32 source, u32 token, Packet packet, Entry& entry) {
    u32 is_missing = 0;
    if (lane_index() < Config::kTopK) {
      packet = wait(ctx, source, entry_slot(ctx, source, token), packet);
      entry = Entry{packet.first(), packet.second()};
      is_missing = !packet.has_arrived(ctx.mark());
    }
    __syncwarp();
    return max_of_warp(is_missing) == 0;
  }

  // Waits for the counts of a rank of this node, and acquires them. By then that rank has read everything that was sent
  // to it in earlier calls.
  static MK_DEVICE Counts wait_counts(const RankContext& ctx, u32 source) {
    const u8* slot = ctx.local_ptr(count_packet(ctx, source, 0));
    Deadline deadline(ctx);
    Counts counts{};
    for (;;) {
      const Packet packet = comm::load_ll<Ordering::kAcquire>(slot);
      if (packet.has_arrived(ctx.mark())) {
        counts.packets[0] = packet;
        return counts;
      }
      if (deadline.expired(ctx, WaitSite{kPush, kRouting, source, source, ctx.mark()}, packet.words.y)) return counts;
    }
  }

  // The slot with this lane's entry of a token.
  static MK_DEVICE const u8* entry_slot(const RankContext& ctx, u32 source, u32 token) {
    return ctx.local_ptr(entry_packet(ctx, source, token * Config::kTopK + lane_index()));
  }

  // Loads the counts of any rank, which are in its first `packets` packets, and acquires them. If `must` is true, waits
  // for the counts. Returns false if some counts have not arrived.
  static MK_DEVICE bool find_counts(const RankContext& ctx, u32 source, u32 packets, bool must, Counts& counts) {
    bool have_arrived = true;
    for (u32 i = 0; i < packets; ++i) {
      const u8* slot = ctx.local_ptr(count_packet(ctx, source, i));
      counts.packets[i] = comm::load_ll(slot);
      if (must) counts.packets[i] = wait(ctx, source, slot, counts.packets[i]);
      if (counts.packets[i].has_arrived(ctx.mark())) continue;
      counts.packets[i] = Packet{};  // after an abort no tokens and no fault
      have_arrived = must;
    }
    // This load acquires everything that the rank did before it sent the packet. By then that rank has read everything
    // that was sent to it in earlier calls.
    if (have_arrived) comm::load_ll<Ordering::kAcquire>(ctx.local_ptr(count_packet(ctx, source, 0)));
    return have_arrived;
  }
};

}  // namespace mk::moe
