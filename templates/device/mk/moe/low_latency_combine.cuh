// Combine for few tokens, on one node. Rows are loaded to registers, and partial sums travel as Lamport packets
// (comm/lamport.cuh). Neither passes through shared memory, and no fence or flag follows a sum.
//
// A warp computes one chunk of a sum at a time: a vector of each lane. The first warps of all CTAs begin with the
// chunks of sums for peers, and the middle warps with the chunks of own tokens. Few tokens have fewer chunks than there
// are warps, so then no warp has two chunks one after the other, and the last warps have none. Entries are loaded
// before they are needed.
//
// Packets are double-buffered by parity of the epoch. A rank that sends packets of call e + 2 has received the counts
// of call e + 1 from their receiver. The receiver has then ended call e, and cleared its packets in that call.
#pragma once
#include <mk/comm/lamport.cuh>
#include <mk/moe/sum_rows.cuh>
#include <mk/moe/topk_exchange.cuh>
#include <mk/roles.cuh>

namespace mk::moe {

template <class Config>
concept LowLatencyConfig = TopkConfig<Config> && requires {
  typename Config::Element;  // the element of rows
  Config::kRowBytes;
  Config::kLowLatencyTokens;  // the most tokens of a rank whose sums are computed here
  Config::kThreads;
};

// Only kernels of several ranks have these packets.
template <class Workspace>
concept PartialPacketsWorkspace = requires(u32 parity, u32 from, u32 token) {
  Workspace::partial_packets(parity, from, token);  // the partial sum that rank `from` has computed for a token of this rank
};
template <class Smem>
concept TokenCountsSmem = requires(const Smem smem, u32 rank) { smem.tokens_of(rank); };

template <class Config, class Args, class Workspace, class Smem>
  requires LowLatencyConfig<Config> && TopkArgs<Args>
struct LowLatencyCombine {
  using Ranks = Topology<Config>;
  using Topk = moe::Topk<Config, Args>;
  using Entry = typename Topk::Entry;
  using Exchange = TopkExchange<Config, Args, Workspace>;

  static_assert(Ranks::kNodes == 1 || Config::kLowLatencyTokens == 0, "packets travel over NVLink");

  // All warps of all CTAs: compute the sums of the tokens of all ranks that have few tokens.
  struct SumFewTokens {
    static constexpr Agent kAgent = Agent::kWarp;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 warp) {
      const u32 warps = gridDim.x * kCtaWarps, first = first_peer_chunk(warp), first_own = first_own_chunk(warp);
      const Entry own_entry = load_own_entries(args, first_own);
      if constexpr (Ranks::kWorld > 1) {
        if constexpr (!Exchange::kSendsAll) load_counts(args, ctx, smem, warp);
        send_partials(args, ctx, smem, first, warps);
      }
      add_own(args, ctx, first_own, warps, own_entry);
      if constexpr (Ranks::kWorld > 1) {
        // A rank that ends a call has received the counts of all other ranks. With Exchange::kSendsAll, nobody else
        // waits for the counts, and few tokens leave this warp idle.
        if (Exchange::kSendsAll && first == warps - 1) check_counts(args, ctx);
      }
    }
  };

  // Whether no sum passes through the pipeline. Call this when all sums of few tokens have been computed.
  static MK_DEVICE bool is_all(const Args& args, const Smem& smem) {
    if constexpr (Config::kLowLatencyTokens == 0) {
      return false;
    } else if constexpr (Ranks::kWorld == 1) {
      return pipelined_tokens<Config>(Topk::valid_tokens(load_word(args.num_tokens))) == 0;
    } else {
      u32 tokens = 0;
      for (u32 rank = 0; rank < Ranks::kWorld; ++rank) tokens |= pipelined_tokens<Config>(load_shared(smem.tokens_of(rank)));
      return tokens == 0;
    }
  }

  // Runs before the roles. Returns false if the CTA must end at once.
  static MK_DEVICE bool begin(const Args& args, const RankContext& ctx, const Smem&) {
    // The role loads these entries again. They arrive in L1 while the CTA enters the call.
    load_own_entries(args, first_own_chunk(warp_index()));
    if constexpr (Ranks::kWorld > 1) {
      if (!Exchange::enter_and_send(args, ctx)) return false;
    } else {
      if (!enter(ctx)) return false;
    }
    // Few tokens have no chunk for the last warp.
    if (threadIdx.x == Config::kThreads - 1) advance_epoch<false>(ctx);
    return true;
  }

  // Runs after the roles.
  static MK_DEVICE void end(const Args&, const RankContext& ctx) { leave(ctx); }

 private:
  static constexpr u32 kPeers = Ranks::kWorld - 1;
  static constexpr u32 kCtaWarps = Config::kThreads / kWarp;
  static constexpr u32 kVecs = Config::kRowBytes / 16;    // vectors of a row
  static constexpr u32 kChunks = kCeilDiv<kVecs, kWarp>;  // chunks of a row
  static constexpr u32 kRowsAtOnce = Config::kTopK < 8 ? Config::kTopK : 8;  // rows of a sum that are on their way to a warp

  // The first chunks of a warp. Warps are numbered over the CTAs.
  static MK_DEVICE u32 first_peer_chunk(u32 warp) { return warp * gridDim.x + blockIdx.x; }
  static MK_DEVICE u32 first_own_chunk(u32 warp) { return first_peer_chunk((warp + kCtaWarps / 2) % kCtaWarps); }

  // A warp: loads the entries of the token whose sum has own chunk `chunk`.
  static MK_DEVICE Entry load_own_entries(const Args& args, u32 chunk) {
    return chunk < Config::kLowLatencyTokens * kChunks ? Topk::load_entries(args, chunk / kChunks) : Entry{};
  }

  // A warp: receives the counts of all other ranks. Lane r returns the number of tokens of rank r, or 0 if the number
  // is too large.
  static MK_DEVICE u32 check_counts(const Args& args, const RankContext& ctx) {
    const u32 rank = lane_index();
    if (rank >= Ranks::kWorld) return 0;
    const u32 given = rank == ctx.rank ? load_word(args.num_tokens) : Exchange::wait_counts(ctx, rank).given();
    return Topk::check_tokens(ctx, rank, given);
  }

  // All threads of a CTA: store the numbers of tokens of all ranks in shared memory.
  static MK_DEVICE void load_counts(const Args& args, const RankContext& ctx, const Smem& smem, u32 warp) {
    static_assert(TokenCountsSmem<Smem>);
    if (warp == 0) {
      const u32 tokens = check_counts(args, ctx);
      if (lane_index() < Ranks::kWorld) store_shared(smem.tokens_of(lane_index()), tokens);
    }
    __syncthreads();
  }

  // The tokens of a peer whose sums are computed here. A peer that sends the entries of all tokens sends empty entries
  // for tokens that it does not have.
  static MK_DEVICE u32 tokens_of(const Smem& smem, u32 rank) {
    if constexpr (Exchange::kSendsAll) return Config::kMaxTokens;
    else return low_latency_tokens<Config>(load_shared(smem.tokens_of(rank)));
  }

  // A chunk of the sum of a token of a peer. Chunks are ordered by token, then by chunk, then by peer.
  struct PeerChunk {
    u32 source, token, vec;

    MK_DEVICE PeerChunk(const RankContext& ctx, u32 i)
        : source((ctx.rank + 1 + i % kPeers) % Ranks::kWorld),
          token(i / kPeers / kChunks),
          vec(i / kPeers % kChunks * kWarp + lane_index()) {}
  };

  // A warp, whose first chunk is `first`, and one of `warps` warps: sends partial sums to peers.
  static MK_DEVICE void send_partials(const Args& args, const RankContext& ctx, const Smem& smem, u32 first, u32 warps) {
    static_assert(PartialPacketsWorkspace<Workspace>);
    u32 most = 0;
    for (u32 i = 1; i < Ranks::kWorld; ++i) {
      const u32 tokens = tokens_of(smem, (ctx.rank + i) % Ranks::kWorld);
      most = tokens > most ? tokens : most;
    }
    const u32 chunks = most * kChunks * kPeers;
    comm::LlPacket ahead{};
    const auto load_ahead = [&](u32 i) {
      const PeerChunk next(ctx, i);
      if (i < chunks) ahead = Exchange::load_entries(ctx, next.source, next.token);
    };
    load_ahead(first);
    for (u32 i = first; i < chunks; i += warps) {
      const PeerChunk chunk(ctx, i);
      const comm::LlPacket packet = ahead;
      load_ahead(i + warps);
      if (chunk.token >= tokens_of(smem, chunk.source)) continue;
      Entry entry;
      if (!Exchange::wait_entries(ctx, chunk.source, chunk.token, packet, entry)) return;
      send_partial(args, ctx, chunk, entry);
    }
  }

  // A warp: sends a chunk of the partial sum of a token, unless this rank has no row of the token, for example because
  // the source does not have the token.
  static MK_DEVICE void send_partial(const Args& args, const RankContext& ctx, const PeerChunk& chunk, const Entry& entry) {
    Topk::check_entries(ctx, chunk.source, chunk.token, entry);
    const bool is_own = entry.rank() == ctx.rank;
    const SumRow row = row_of(args, entry, is_own ? ctx.rank : SumRow::kNoGroup, is_own);
    const RowOrder<Config> order(row);
    if (order.count == 0) return;
    const Vec16 sum = add_up(ctx, row, order, chunk.token, chunk.vec);
    if (chunk.vec >= kVecs) return;
    comm::store_lamport_vec<typename Config::Element>(ctx.peer_ptr(chunk.source, packets(ctx, ctx.rank, chunk.token)) + chunk.vec * 16, sum);
  }

  // A warp, whose first chunk is `first` and has `entry`, and one of `warps` warps: stores sums of own tokens to C.
  static MK_DEVICE void add_own(const Args& args, const RankContext& ctx, u32 first, u32 warps, Entry entry) {
    const u32 tokens = low_latency_tokens<Config>(Topk::check_tokens(ctx, ctx.rank, load_word(args.num_tokens)));
    for (u32 i = first; i < tokens * kChunks; i += warps) {
      const u32 token = i / kChunks, vec = i % kChunks * kWarp + lane_index();
      Topk::check_entries(ctx, ctx.rank, token, entry);
      const u32 rank = entry.rank();
      const bool is_own = Ranks::kWorld == 1 ? rank == 0 : rank == ctx.rank;
      SumRow row = row_of(args, entry, rank < Ranks::kWorld ? rank : SumRow::kNoGroup, is_own);
      if constexpr (Ranks::kWorld > 1) {
        if (!is_own && rank < Ranks::kWorld) row.from = ctx.local_ptr(packets(ctx, rank, token));
      }
      entry = load_own_entries(args, i + warps);
      const Vec16 sum = add_up(ctx, row, RowOrder<Config>(row), token, vec);
      if (vec < kVecs) store_vec16(args.c + token * args.c_row_bytes + vec * 16, sum);
    }
  }

  static MK_DEVICE Symmetric<u8> packets(const RankContext& ctx, u32 from, u32 token) {
    return Workspace::partial_packets(ctx.parity(), from, token);
  }

  // A warp: returns the row for an entry. If the row is this rank's own, its address is set.
  static MK_DEVICE SumRow row_of(const Args& args, const Entry& entry, u32 group, bool is_own) {
    SumRow row;
    row.position = SumRow::position_in_sum<Config>(group, is_own);
    row.weight_bits = is_own ? entry.weight_bits : SumRow::kOneBits;
    if (is_own && row.position != SumRow::kNone) row.from = own_row(args, entry);
    return row;
  }

  // A warp: returns the sum of vector `vec` of all rows. Rows of other ranks are packets. Waits for the packets, and
  // clears them.
  static MK_DEVICE Vec16 add_up(const RankContext& ctx, const SumRow& row, const RowOrder<Config>& order, u32 token, u32 vec) {
    const u32 lane_in_order = order.lane();
    const bool has_vec = vec < kVecs;
    SumOfGroups<Config> sum;
    for (u32 first = 0; first < order.count; first += kRowsAtOnce) {
      const u8* from[kRowsAtOnce];
      float weights[kRowsAtOnce];
      u32 ranks[kRowsAtOnce], awaited = 0;
      Vec16 vecs[kRowsAtOnce] = {};
#pragma unroll
      for (u32 k = 0; k < kRowsAtOnce; ++k) {
        const u32 lane = broadcast(lane_in_order, (first + k) % kWarp);
        from[k] = broadcast_address(row.from, lane) + vec * 16;
        weights[k] = as_float(broadcast(row.weight_bits, lane));
        ranks[k] = broadcast(row.position, lane) / kWarp;
        if (!has_vec || first + k >= order.count) continue;
        if (Ranks::kWorld == 1 || ranks[k] == ctx.rank) vecs[k] = load_vec16(from[k]);
        else awaited |= 1u << k;
      }
      if constexpr (Ranks::kWorld > 1) wait_packets(ctx, awaited, from, ranks, token, vecs);
#pragma unroll
      for (u32 k = 0; k < kRowsAtOnce; ++k) {
        if (first + k < order.count) sum.add(vecs[k], weights[k], ranks[k]);
      }
    }
    return order.count == 0 ? Vec16{} : sum.result();  // the sum of no rows is +0
  }

  // A lane: loads the vectors whose bits are set in `awaited`, until all have arrived.
  static MK_DEVICE void wait_packets(const RankContext& ctx, u32 awaited, const u8* const (&from)[kRowsAtOnce],
                                     const u32 (&ranks)[kRowsAtOnce], u32 token, Vec16 (&vecs)[kRowsAtOnce]) {
    Deadline deadline(ctx);
    while (awaited != 0) {
      comm::LamportVec packets[kRowsAtOnce];
      u32 missing_rank = 0;
#pragma unroll
      for (u32 k = 0; k < kRowsAtOnce; ++k) {
        if ((awaited >> k & 1) != 0) packets[k] = comm::load_lamport_vec(from[k]);
      }
#pragma unroll
      for (u32 k = 0; k < kRowsAtOnce; ++k) {
        if ((awaited >> k & 1) == 0) continue;
        missing_rank = ranks[k];
        if (!packets[k].have_arrived()) continue;
        vecs[k] = packets[k].data();
        comm::clear_lamport_vec(const_cast<u8*>(from[k]));
        awaited &= ~(1u << k);
      }
      if (awaited == 0) break;
      if (deadline.expired(ctx, WaitSite{kLoad, kPeerPartial, missing_rank, token, ctx.mark()}, 0)) break;
    }
    __syncwarp();
  }

  static MK_DEVICE const u8* broadcast_address(const u8* address, u32 lane) {
    const u64 bits = reinterpret_cast<u64>(address);
    const u32 low = broadcast(static_cast<u32>(bits), lane), high = broadcast(static_cast<u32>(bits >> 32), lane);
    return reinterpret_cast<const u8*>(u64{high} << 32 | low);
  }
};

}  // namespace mk::moe
