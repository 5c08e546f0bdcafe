// The share of a CTA in the tokens of other ranks. It consists of parts of rows. The parts are ordered by token, then
// by part of the row, then by source.
#pragma once
#include <mk/comm/put.cuh>
#include <mk/moe/row_pipeline.cuh>
#include <mk/moe/topk_exchange.cuh>

namespace mk::moe {

// The CTAs that add up rows take parts in turn.
template <class Config>
MK_DEVICE u32 first_part() {
  return blockIdx.x - Config::kCommCtas;
}
template <class Config>
MK_DEVICE u32 part_stride() {
  return gridDim.x - Config::kCommCtas;
}

template <class Config, class Args, class Workspace>
struct PeerTokens {
  using Ranks = Topology<Config>;
  using Network = comm::Network<Config, Workspace>;
  using Topk = moe::Topk<Config, Args>;
  using Exchange = TopkExchange<Config, Args, Workspace>;
  using Entry = TopkEntry<Config>;
  using Part = RowPart<Config>;

  const RankContext& ctx;
  bool is_far;      // whether the sources are ranks of other nodes
  u32 first_local;  // the local rank of the first source minus this rank's
  u32 sources;
  u32 next = first_part<Config>(), end = 0;
  bool has_begun = false;
  u32 source = 0;
  Part part;
  Entry entry;
  comm::LlPacket ahead = {};  // the packet of the next part, loaded early

  MK_DEVICE bool is_over() const { return has_begun && next >= end; }

  MK_DEVICE u32 source_at(u32 i) const {
    if constexpr (Ranks::kNodes > 1) {
      const u32 local = (ctx.local_rank() + first_local + (is_far ? i / Ranks::kPeerNodes : i)) % Ranks::kLocalWorld;
      const u32 first = is_far ? Network::rank_of_peer(ctx, i % Ranks::kPeerNodes) - ctx.local_rank() : ctx.node_first_rank;
      return local + first;
    } else {
      return (ctx.rank + first_local + i) % Ranks::kWorld;
    }
  }

  // A warp: loads the counts of all sources. If `must` is true, or if there is one node, it waits for the counts.
  // Returns false if some counts have not arrived. If the sums of few tokens have come before, the counts are in shared
  // memory.
  template <class Smem>
  MK_DEVICE bool begin(const Smem& smem, bool must) {
    u32 most = 0, is_missing = 0;
    load_ahead();
    for (u32 i = lane_index(); i < sources; i += kWarp) {
      const u32 from = source_at(i);
      u32 tokens;
      if constexpr (Config::kLowLatencyTokens > 0) {
        tokens = pipelined_tokens<Config>(load_shared(smem.tokens_of(from)));
      } else {
        typename Exchange::Counts counts;
        if constexpr (Ranks::kNodes > 1) {
          if (!Exchange::find_counts(ctx, from, is_far ? Config::kCountPackets : 1, must, counts)) is_missing = 1;
          if (is_missing != 0) continue;
          if (is_far) counts.report_fault_of(ctx, from);
        } else {
          counts = Exchange::wait_counts(ctx, from);
        }
        Topk::check_tokens(ctx, from, counts.given());
        tokens = counts.tokens();
      }
      most = tokens > most ? tokens : most;
    }
    // By then the sources have read the memory that TMA overwrites next. TMA is another proxy, so this takes a proxy
    // fence.
    fence_proxy_async();
    __syncwarp();
    if (Ranks::kNodes > 1 && max_of_warp(is_missing) != 0) return false;
    end = max_of_warp(most) * Part::kParts * sources;
    has_begun = true;
    return true;
  }

  // A warp: finds the next part of the CTA's share, and stores it in `source`, `part` and `entry`. Returns false if no
  // part is left.
  MK_DEVICE bool find() {
    while (next < end) {
      source = source_at(next % sources), part = Part{next / sources};
      comm::LlPacket packet = ahead;
      // Lanes without an entry load the packet with the counts. They may have loaded it early, before begin() saw that
      // it had arrived.
      if (lane_index() >= Config::kTopK) packet = Exchange::wait(ctx, source, next_slot(), packet);
      const bool exists = part.token < pipelined_tokens<Config>(broadcast(packet.second(), Config::kTopK));
      if (exists) packet = Exchange::wait(ctx, source, next_slot(), packet);
      __syncwarp();
      next += part_stride<Config>();
      load_ahead();
      if (!exists) continue;
      // A sum without one of its rows would be wrong.
      if (max_of_warp(!packet.has_arrived(ctx.mark())) != 0) return give_up();
      entry = lane_index() < Config::kTopK ? Entry{packet.first(), packet.second()} : Entry{};
      // A source on another node has found its wrong row indices itself, and its counts report them.
      if (Ranks::kNodes == 1 || !is_far) Topk::check_entries(ctx, source, part.token, entry);
      return true;
    }
    return false;
  }

 private:
  // Ends the CTA's share after an abort.
  MK_DEVICE bool give_up() {
    next = end;
    return false;
  }

  MK_DEVICE const u8* next_slot() const {
    const u32 lane = lane_index(), from = source_at(next % sources);
    if (lane >= Config::kTopK) return ctx.local_ptr(Exchange::count_packet(ctx, from, 0));
    return ctx.local_ptr(Exchange::entry_packet(ctx, from, Part{next / sources}.token * Config::kTopK + lane));
  }
  MK_DEVICE void load_ahead() {
    if (next < Config::kMaxTokens * Part::kParts * sources) ahead = comm::load_ll(next_slot());
  }
};

}  // namespace mk::moe
