// Combine: for each token, the sum of the rows that its experts have computed, with the router's weights. The sum is
// made on the token's rank.
//
// A rank sends the top-k entries of its tokens to the other ranks. Every rank adds up its rows of a token, and this
// partial sum is one row of elements. The token's rank adds the partial sums. Each CTA computes partial sums for peers
// and sums of own tokens, one after the other. Sums for ranks with few tokens come first, without the pipeline.
#pragma once
#include <mk/moe/low_latency_combine.cuh>
#include <mk/moe/token_sums.cuh>

namespace mk::moe {

template <class Config, class Args, class Workspace, RowSmem Smem>
  requires TopkConfig<Config> && RowConfig<Config> && TopkArgs<Args>
struct Combine {
  using Ranks = Topology<Config>;
  using Topk = moe::Topk<Config, Args>;
  using Exchange = TopkExchange<Config, Args, Workspace>;
  using Lists = TokenLists<Config, Args, Workspace>;
  using Partials = PartialSums<Config, Workspace>;
  using Sums = NodeSums<Config, Workspace>;
  using Rows = RowPipeline<Config, Smem>;
  using Loader = typename Rows::Loader;
  using Sum = TokenSum<Config, Args, Workspace, Smem>;
  using Peers = PeerTokens<Config, Args, Workspace>;
  using Own = OwnTokens<Config, Args, Workspace, Smem>;

  // Runs before the roles of the pipeline, which compute the sums of ranks with more tokens.
  using LowLatency = LowLatencyCombine<Config, Args, Workspace, Smem>;
  using SumFewTokens = typename LowLatency::SumFewTokens;

  // A warp: loads the rows of all sums that the CTA computes.
  struct Load {
    static constexpr Agent kAgent = Agent::kWarp;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32) {
      if (LowLatency::is_all(args, smem)) return;
      Loader loader{ctx, smem};
      if constexpr (Ranks::kNodes > 1) {
        load_across_nodes(args, ctx, smem, loader);
      } else {
        load_on_node(args, ctx, smem, loader);
      }
      loader.end();
    }

   private:
    // Sums for peers come first, since they still have to travel. After each sum for a peer comes a sum of an own
    // token, if its rows have arrived.
    static MK_DEVICE void load_on_node(const Args& args, const RankContext& ctx, const Smem& smem, Loader& loader) {
      Own own(args, ctx);
      Peers peers{ctx, false, 1, Ranks::kWorld - 1};
      if constexpr (Ranks::kWorld > 1) peers.begin(smem, true);
      for (;;) {
        bool is_sending = false, must = true;
        if constexpr (Ranks::kWorld > 1) {
          is_sending = load_sum_for_peer(args, ctx, smem, loader, peers, true);
          // Own sums may lag behind the sums for peers by kSumsAhead tokens. If they lagged further, the sums for peers
          // would queue for the link first, and own rows would be read at the end, when the link is idle.
          must = !is_sending || own.next + Config::kSumsAhead * part_stride<Config>() < peers.next / peers.sources;
        }
        if (!own.is_over()) {
          // This rank waits for the peers' sums of a token only after it has sent the peers its sums of later tokens,
          // or all of its sums. So ranks do not wait for each other in a circle.
          if (own.sum.is_complete(ctx, must)) own.load(args, ctx, loader);
        } else if (!is_sending) {
          break;
        }
      }
    }

    // Sums for which other ranks wait come first, and sums for other nodes before sums for this node. These sums need
    // no sums of other ranks, so ranks do not wait for each other in a circle. This rank receives the counts of all
    // ranks of the node before it computes sums: those ranks have then loaded the partial sums that this rank kept for
    // them in the previous call.
    static MK_DEVICE void load_across_nodes(const Args& args, const RankContext& ctx, const Smem& smem, Loader& loader) {
      Peers near{ctx, false, 1, Ranks::kLocalWorld - 1};
      Peers far{ctx, true, 1, Ranks::kPeerNodes * (Ranks::kLocalWorld - 1)};
      if constexpr (Ranks::kLocalWorld > 1) near.begin(smem, true);
      Peers listed{ctx, true, 0, Ranks::kPeerNodes};  // the peers for whose tokens this rank puts sums
      Sum sum;
      bool is_found = false;
      Own own(args, ctx);
      for (;;) {
        bool is_sending = false, must = true;
        if constexpr (Ranks::kLocalWorld > 1) {
          is_sending = load_sum_for_peer(args, ctx, smem, loader, far, near.is_over()) ||
                       load_sum_for_peer(args, ctx, smem, loader, near, true);
          must = near.is_over() && far.is_over();
        }
        if (!is_found && (listed.has_begun || listed.begin(smem, must)) && listed.find()) {
          sum = Sum::of(args, ctx, listed.source, listed.part, listed.entry);
          is_found = true;
        }
        if (is_found) {
          if (!sum.is_complete(ctx, must)) continue;
          sum.load(loader);
          is_found = false;
        } else if (listed.is_over() && !own.is_over()) {
          if (own.sum.is_complete(ctx, must)) own.load(args, ctx, loader);
        } else if (listed.is_over() && must && !is_sending) {
          break;
        }
      }
    }

    // Loads the rows of the next partial sum for a rank of this node. Skips tokens that have no rows here. Returns
    // false if no sum is left. Also returns false if the counts of the sources have not arrived, unless `must` is true:
    // the function then waits for the counts.
    static MK_DEVICE bool load_sum_for_peer(const Args& args, const RankContext& ctx, const Smem& smem, Loader& loader,
                                            Peers& peers, bool must) {
      if (Ranks::kNodes > 1 && !peers.has_begun && !peers.begin(smem, must)) return false;
      while (peers.find()) {
        const bool is_own = peers.entry.rank() == ctx.rank;
        u32 first = Config::kTopK;
        for (u32 i = Config::kTopK; i > 0; --i) first = broadcast(is_own, i - 1) ? i - 1 : first;
        if (first == Config::kTopK) continue;
        SumRow row;
        if (is_own) row = SumRow{lane_index(), peers.entry.weight_bits, own_row(args, peers.entry) + peers.part.offset()};
        const u32 to = Partials::local_rank_of(peers.source);
        u32 first_row = 0;  // on one node, sums do not lie in slots of rows
        if constexpr (Ranks::kNodes > 1) {
          first_row = broadcast(peers.entry.row(), first);
          u32 has_slot = 1;
          if (lane_index() == first && !Partials::claim(ctx, first_row, peers.part)) {
            Topk::report_row_twice(ctx, peers.source, peers.part.token, first, peers.entry.row_index);
            has_slot = 0;
          }
          // The slot keeps the sum of the token that has the slot.
          if (broadcast(has_slot, first) == 0) continue;
        }
        loader.load_sum(row, peers.part.bytes(), Partials::destination(ctx, to, peers.source, peers.part, first_row));
        return true;
      }
      return false;
    }
  };

  // A thread, one per output buffer: stores the sums in its buffer to C or to a peer.
  struct Store {
    static constexpr Agent kAgent = Agent::kThread;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 buffer) {
      if (!LowLatency::is_all(args, smem)) Rows::store(ctx, smem, buffer);
    }
  };

  // A warp: adds up some columns of all sums of the CTA in fp32.
  struct Add {
    static constexpr Agent kAgent = Agent::kWarp;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32) {
      if (!LowLatency::is_all(args, smem)) Rows::add(ctx, smem);
    }
  };

  // A warp of a CTA that only communicates: watches arrivals, and stores their counts in this GPU's memory.
  struct WatchArrivals {
    static constexpr Agent kAgent = Agent::kWarp;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem&, u32) {
      Lists::watch_arrivals(args, ctx);
    }
  };

  // A warp of the CTA that watches arrivals: puts lists of tokens, then sums in chunks. It puts each chunk as soon as
  // all sums in the chunk are complete.
  struct PutSums {
    static constexpr Agent kAgent = Agent::kWarp;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem&, u32) {
      if (lane_index() == 0) Lists::put(args, ctx, load_word(args.num_tokens));
      __syncwarp();
      u32 most = 0;
      for (u32 peer = 0; peer < Ranks::kPeerNodes; ++peer) {
        Network::wait_put(ctx, kPush, 0, peer, 0);
        if (broadcast(gives_up(ctx, kPush), 0)) return;
        const u32 tokens = Lists::tokens_of(ctx, peer);
        most = tokens > most ? tokens : most;
      }
      for (u32 first = 0; first < most; first += Config::kChunkTokens) {
        for (u32 i = 0; i < Ranks::kPeerNodes; ++i) {
          const u32 peer = Lists::peer_in_turn(ctx, i);
          const u32 end = min(first + Config::kChunkTokens, Lists::tokens_of(ctx, peer));
          if (first >= end) continue;
          wait_sums(ctx, peer, first, end);
          if (broadcast(gives_up(ctx, kPush), 0)) return;
          if (lane_index() == 0) put_sums(args, ctx, peer, first, end);
          __syncwarp();
        }
      }
    }

   private:
    using Network = comm::Network<Config, Workspace>;
    using Part = RowPart<Config>;

    static MK_DEVICE void wait_sums(const RankContext& ctx, u32 peer, u32 first, u32 end) {
      const u32 source = Network::rank_of_peer(ctx, peer);
      for (u32 i = first * Part::kParts + lane_index(); i < end * Part::kParts; i += kWarp) {
        const WaitSite site{kPush, kPartial, ctx.rank, i / Part::kParts, ctx.mark()};
        wait_mark(ctx, ctx.local_ptr(Partials::ready(ctx.local_rank(), source, Part{i})), site);
      }
      __syncwarp();
    }

    static MK_DEVICE void put_sums(const Args& args, const RankContext& ctx, u32 peer, u32 first, u32 end) {
      Network::put(args, ctx, peer, 0, Sums::row(peer, first), Workspace::sums_in(Lists::sums_begin_at(ctx, peer) + first),
                   (end - first) * Config::kRowBytes);
    }
  };

  // A warp of the CTA that watches arrivals: acknowledges the sums of peers, whose places are then free for other sums.
  struct AcknowledgeSums {
    static constexpr Agent kAgent = Agent::kWarp;

    static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem&, u32) {
      Lists::wait(ctx);
      const auto tokens = [&](u32 peer) { return Lists::tokens_for(ctx, peer); };
      Lists::Chunks::acknowledge(args, ctx, tokens, [&](u32 peer, u32 first, u32) {
        comm::Network<Config, Workspace>::wait_put(ctx, kPush, 0, peer, Lists::put_of_sum(first));
      });
    }
  };

  // The other warps of the CTA that watches arrivals: forward the lists of other nodes to the ranks of this node.
  struct RelayLists {
    static constexpr Agent kAgent = Agent::kWarp;
    static constexpr u32 kWarps = Config::kThreads / kWarp - (Lists::Chunks::kAreAcknowledged ? 3 : 2);

    static MK_DEVICE void run(const Args&, const RankContext& ctx, const Smem&, u32 worker) {
      Lists::template relay<kWarps>(ctx, worker);
    }
  };

  // Runs before the roles. Returns false if the CTA must end at once.
  static MK_DEVICE bool begin(const Args& args, const RankContext& ctx, const Smem& smem) {
    if (threadIdx.x == 0) Rows::init_barriers(smem);
    if constexpr (Ranks::kWorld > 1) {
      if (!Exchange::enter_and_send(args, ctx)) return false;
      if constexpr (Ranks::kNodes > 1) Lists::build(args, ctx, load_word(args.num_tokens));
      return true;
    } else {
      return enter(ctx);
    }
  }

  // Runs after the roles.
  static MK_DEVICE void end(const Args&, const RankContext& ctx) {
    if (threadIdx.x == 0) advance_epoch<false>(ctx);
    leave(ctx);
  }
};

}  // namespace mk::moe
