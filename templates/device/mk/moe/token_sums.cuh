// Sums of tokens: the rows of each sum, the time at which these rows have arrived, and the destination of the sum.
//
// On one node, every rank adds up its rows of a token and sends this partial sum to the token's rank. On several nodes,
// a rank keeps its partial sums, and other ranks load them. If the token's rank is on this node, it loads the partial
// sums itself. Otherwise the rank of the same local rank on this node loads them, adds up the node's sum and puts it to
// the token's rank. So the memory for partial sums is bounded by the rows of a rank, and not by the tokens of all
// ranks.
#pragma once
#include <mk/moe/peer_tokens.cuh>
#include <mk/moe/token_lists.cuh>

namespace mk::moe {

template <class Workspace>
concept PartialSumsWorkspace = requires(u32 from, u32 node, u32 token, u32 part) {
  Workspace::partial_ready(from, node, token, part);  // the mark of the last call in which the part was complete
};
template <class Workspace>
concept SentPartialsWorkspace = PartialSumsWorkspace<Workspace> && requires(u32 from, u32 token) {
  Workspace::partials(from, token);
};
template <class Workspace>
concept NodeSumsWorkspace = PartialSumsWorkspace<Workspace> && requires(u32 slot, u32 peer) {
  Workspace::sums_in(slot);
  Workspace::sums_out(peer, slot);
};
template <class Workspace>
concept KeptPartialsWorkspace = NodeSumsWorkspace<Workspace> && requires(u32 slot) {
  Workspace::kept_partials(slot);
};

// Partial sums of the ranks of a node. `from` is the local rank of the rank that computes a partial sum. The token
// belongs to the rank of this local rank on a node. `row` is the first row of the token on the rank that computes its
// partial sum.
template <class Config, class Workspace>
struct PartialSums {
  using Ranks = Topology<Config>;
  using Part = RowPart<Config>;

  static MK_DEVICE u32 local_rank_of(u32 rank) { return Ranks::kNodes == 1 ? rank : rank % Ranks::kLocalWorld; }
  static MK_DEVICE u32 node_of(u32 rank) { return Ranks::kNodes == 1 ? 0 : rank / Ranks::kLocalWorld; }

  static MK_DEVICE Symmetric<u32> ready(u32 from, u32 source, const Part& part) {
    static_assert(PartialSumsWorkspace<Workspace>);
    return Workspace::partial_ready(from, node_of(source), part.token, part.index);
  }

  // The destination of this rank's partial sum of a token of `source`, for the rank of this node with local rank `to`.
  static MK_DEVICE Destination destination(const RankContext& ctx, u32 to, u32 source, const Part& part, u32 row) {
    u32* flag = ctx.peer_ptr(to, ready(ctx.local_rank(), source, part));
    return {at(ctx, to, ctx.local_rank(), source, part, row) + part.offset(), flag};
  }

  // The address at which this rank finds the partial sum of rank `from`.
  static MK_DEVICE const u8* find(const RankContext& ctx, u32 from, u32 source, const Part& part, u32 row) {
    return at(ctx, ctx.local_rank(), from, source, part, row) + part.offset();
  }

  // Records that a part of this rank's partial sum of a token takes the slot of a row. Returns false if the part of
  // another token has taken the slot in this call, which means that the caller has given two tokens one row.
  static MK_DEVICE bool claim(const RankContext& ctx, u32 row, const Part& part) {
    if constexpr (Config::kHasSlotsOfRows) {
      return exchange_relaxed_gpu(ctx.local_ptr(Workspace::slot_mark(row, part.index)), ctx.mark()) != ctx.mark();
    }
    return true;
  }

 private:
  // The address of the partial sum that rank `from` computes for rank `to`.
  static MK_DEVICE u8* at(const RankContext& ctx, u32 to, u32 from, u32 source, const Part& part, u32 row) {
    if constexpr (Ranks::kNodes == 1) {
      static_assert(SentPartialsWorkspace<Workspace>);
      return ctx.peer_ptr(to, Workspace::partials(from, part.token));
    } else {
      static_assert(KeptPartialsWorkspace<Workspace>);
      const u32 of_token = source * Config::kMaxTokens + part.token;
      return ctx.peer_ptr(from, Workspace::kept_partials(Config::kHasSlotsOfRows ? row : of_token));
    }
  }
};

// The sums of this node for the tokens of ranks on other nodes.
template <class Config, class Workspace>
struct NodeSums {
  using Ranks = Topology<Config>;
  using Network = comm::Network<Config, Workspace>;
  using Chunks = TokenChunks<Config, Workspace>;
  using Partials = PartialSums<Config, Workspace>;
  using Part = RowPart<Config>;

  static MK_DEVICE Symmetric<u8> row(u32 peer, u32 token) {
    static_assert(NodeSumsWorkspace<Workspace>);
    return Workspace::sums_out(peer, Chunks::place(token));
  }
  // The flag says that a part of the sum can be put.
  static MK_DEVICE Destination destination(const RankContext& ctx, u32 source, const Part& part) {
    return {ctx.local_ptr(row(Network::peer_of_rank(ctx, source), part.token)) + part.offset(),
            ctx.local_ptr(Partials::ready(ctx.local_rank(), source, part))};
  }
};

// The sum of a token for which this rank adds the partial sums of other ranks. Each lane has at most one row of the
// sum. If `flag` is not null, the row has arrived when `flag` has the value that `site` wants.
template <class Config, class Args, class Workspace, class Smem>
struct TokenSum {
  using Ranks = Topology<Config>;
  using Network = comm::Network<Config, Workspace>;
  using Partials = PartialSums<Config, Workspace>;
  using Sums = NodeSums<Config, Workspace>;
  using Lists = TokenLists<Config, Args, Workspace>;
  using Loader = typename RowPipeline<Config, Smem>::Loader;
  using Entry = TopkEntry<Config>;
  using Part = RowPart<Config>;

  Part part;
  SumRow row;
  Destination destination;
  const u32* flag = nullptr;
  WaitSite site = {};
  const u32* place_flag = nullptr;  // like `flag`, for the place of the sum, if another sum has the place before
  WaitSite place_site = {};

  // A warp: finds the rows of the sum of a token of `source`. If `source` is this rank, these are all rows of the
  // token. If `source` is a peer, they are the rows that this node has.
  static MK_DEVICE TokenSum of(const Args& args, const RankContext& ctx, u32 source, const Part& part,
                               const Entry& entry) {
    TokenSum sum{part, SumRow{}, {args.c + part.token * args.c_row_bytes + part.offset()}};
    const u32 rank = entry.rank();
    const bool is_own = rank == (Ranks::kWorld == 1 ? 0 : ctx.rank);
    const bool is_near = rank - ctx.node_first_rank < Ranks::kLocalWorld;
    u32 group = is_near ? rank : SumRow::kNoGroup;
    if constexpr (Ranks::kNodes > 1) {
      if (source != ctx.rank) {
        sum.destination = Sums::destination(ctx, source, part);
        sum.expect_place(ctx, Network::peer_of_rank(ctx, source));
      } else if (!is_near && rank < Ranks::kWorld) {
        group = rank - rank % Ranks::kLocalWorld;
      }
    }
    sum.row.position = SumRow::position_in_sum<Config>(group, is_own);
    if (sum.row.position == SumRow::kNone) return sum;
    sum.row.weight_bits = is_own ? entry.weight_bits : SumRow::kOneBits;
    if (is_own) {
      sum.row.from = own_row(args, entry) + part.offset();
    } else if (!is_near) {
      if constexpr (Ranks::kNodes > 1) sum.expect_from_node(ctx, rank);
    } else {
      sum.expect_from_rank(ctx, source, entry);
    }
    return sum;
  }

  // A warp: returns whether all rows have arrived. If `must` is true, waits for them.
  MK_DEVICE bool is_complete(const RankContext& ctx, bool must) const {
    if constexpr (Ranks::kWorld == 1) return true;
    u32 is_here = 1;
    if (flag != nullptr) {
      if (Ranks::kNodes > 1 && site.wait == kArrival) {  // this flag is a count over all calls, not a mark
        if (must) {
          wait_flag(ctx, flag, site);
        } else {
          is_here = has_reached(load_acquire_sys(flag), site.wanted);
        }
      } else if (must) {
        wait_mark(ctx, flag, site);
      } else {
        is_here = load_acquire_sys(flag) == site.wanted;
      }
    }
    if constexpr (Ranks::kNodes > 1) {
      if (place_flag != nullptr) {
        if (must) {
          wait_flag(ctx, place_flag, place_site);
        } else {
          is_here &= has_reached(load_acquire_sys(place_flag), place_site.wanted);
        }
      }
    }
    __syncwarp();
    u32 all = 1;
    for (u32 lane = 0; lane < Config::kTopK; ++lane) all &= broadcast(is_here, lane);
    return all != 0;
  }

  // A warp: loads the rows, and returns their number.
  MK_DEVICE u32 load(Loader& loader) const {
    // Other ranks and NICs have written the rows, and the flags have acquired them. TMA is another proxy, so a proxy
    // fence comes before it loads them.
    if constexpr (Ranks::kWorld > 1) fence_proxy_async();
    return loader.load_sum(row, part.bytes(), destination);
  }

 private:
  // Expects the row as the partial sum of another rank of this node.
  MK_DEVICE void expect_from_rank(const RankContext& ctx, u32 source, const Entry& entry) {
    if constexpr (Ranks::kLocalWorld > 1) {
      const u32 rank = entry.rank(), from = rank - ctx.node_first_rank;
      row.from = Partials::find(ctx, from, source, part, entry.row());
      flag = ctx.local_ptr(Partials::ready(from, source, part));
      site = WaitSite{kLoad, kPeerPartial, rank, part.token, ctx.mark()};
    }
  }

  // Expects the row as the sum of another node, which the peer on that node has put.
  MK_DEVICE void expect_from_node(const RankContext& ctx, u32 rank) {
    const u32 peer = Network::peer_of_rank(ctx, rank);
    u32 position;
    const u32 slot = Lists::wait_slot(ctx, peer, part.token, position);
    const u32 wanted = Network::arrival_of(ctx, Lists::put_of_sum(position));
    row.from = ctx.local_ptr(Workspace::sums_in(slot)) + part.offset();
    flag = ctx.local_ptr(Workspace::arrived(0, peer));
    site = WaitSite{kLoad, kArrival, Network::rank_of_peer(ctx, peer), 0, wanted};
  }

  // An earlier sum for the peer has the place of this one until the peer has received it.
  MK_DEVICE void expect_place(const RankContext& ctx, u32 peer) {
    using Chunks = TokenChunks<Config, Workspace>;
    if constexpr (Chunks::kAreAcknowledged) {
      if (!Chunks::is_awaited(part.token)) return;
      place_flag = Chunks::flag(ctx, peer);
      place_site = Chunks::site(ctx, kLoad, peer, part.token);
    }
  }
};

// The share of a CTA in this rank's tokens.
template <class Config, class Args, class Workspace, class Smem>
struct OwnTokens {
  using Topk = moe::Topk<Config, Args>;
  using Sum = TokenSum<Config, Args, Workspace, Smem>;
  using Part = RowPart<Config>;

  u32 next = first_part<Config>(), end;
  TopkEntry<Config> ahead;  // the entries of the next part's token, loaded early
  Sum sum;

  // The first entries are loaded at the same time as the number of tokens, and not after it.
  MK_DEVICE OwnTokens(const Args& args, const RankContext& ctx) {
    const u32 given = load_word(args.num_tokens);
    if (next < Config::kMaxTokens * Part::kParts) ahead = Topk::load_entries(args, Part{next}.token);
    end = pipelined_tokens<Config>(Topk::check_tokens(ctx, ctx.rank, given)) * Part::kParts;
    find(args, ctx);
  }

  MK_DEVICE bool is_over() const { return next >= end; }

  MK_DEVICE void load(const Args& args, const RankContext& ctx, typename Sum::Loader& loader) {
    if (sum.load(loader) == 0) store_zeros();
    next += part_stride<Config>();
    find(args, ctx);
  }

 private:
  // A warp: stores the sum of no rows, which has passed through no stage.
  MK_DEVICE void store_zeros() const {
    for (u32 at = lane_index() * 16; at < sum.part.bytes(); at += kWarp * 16) store_vec16(sum.destination.to + at, Vec16{});
  }

  MK_DEVICE void find(const Args& args, const RankContext& ctx) {
    if (is_over()) return;
    const Part part{next};
    const TopkEntry<Config> entry = ahead;
    const u32 after = next + part_stride<Config>();
    if (after < end) ahead = Topk::load_entries(args, Part{after}.token);
    Topk::check_entries(ctx, ctx.rank, part.token, entry);
    sum = Sum::of(args, ctx, ctx.rank, part, entry);
  }
};

}  // namespace mk::moe
