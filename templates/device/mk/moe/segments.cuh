// Segments: the places of the tokens of each source on a rank, on several nodes.
//
// A rank has room for one token per row that it can get, and each source has a segment of that room. A source on the
// same node as the rank has one place for each token that it sends. A source on another node sends its tokens to a
// peer, which forwards them. Such a source has one place for each row that it has on the rank, or for each token that
// it sends to the node, whichever number is less. Sources come in the order of ranks. Every rank computes the segments
// that it reads, and the segments that it writes, from the messages.
//
// Tokens arrive from another node in chunks (mk/moe/token_chunks.cuh). If all these tokens have room, the rank where
// they arrive reads its own tokens there, and its list has their slots. Otherwise it copies its own tokens to the
// segment like tokens for other ranks.
#pragma once
#include <mk/moe/routing_message.cuh>
#include <mk/moe/tables.cuh>
#include <mk/moe/token_chunks.cuh>

namespace mk::moe {

template <class Config>
concept SegmentConfig = MessageConfig<Config> && TokenChunkConfig<Config> && requires {
  Config::kBlockTokens;  // tokens under one flag
};

template <class Workspace>
concept SegmentWorkspace = MessageWorkspace<Workspace> && requires(u32 token, u32 peer, u32 place) {
  Workspace::segments(token);
  Workspace::landed(peer, place);
};

// Only kernels of several nodes instantiate the functions.
template <class Config, class Workspace, class Smem>
struct Segments {
  using Experts = moe::Experts<Config, Workspace>;
  using Message = RoutingMessage<Config, Workspace>;
  using Chunks = TokenChunks<Config, Workspace>;

  // Whether the rank where tokens arrive reads its own tokens there.
  static constexpr bool kReadsLanded = !Chunks::kAreAcknowledged;

  static MK_DEVICE bool is_near(const RankContext& ctx, u32 source) {
    return source - ctx.node_first_rank < Experts::kLocalWorld;
  }
  // Whether tokens of `source` arrive from another node on the rank with this local rank.
  static MK_DEVICE bool is_peer(u32 local_rank, u32 source) { return source % Experts::kLocalWorld == local_rank; }

  // The entry of a token on the list of a rank of this node. `slot` is the token's slot among tokens for this node, and
  // `index` is its index among the tokens that the rank needs. Both are below 2^16.
  static MK_DEVICE u32 entry(u32 local_rank, u32 source, u32 slot, u32 index) {
    if (kReadsLanded && is_peer(local_rank, source)) return slot;
    return slot / Config::kBlockTokens << 16 | index;
  }

  static MK_DEVICE u32 block_of(const RankContext& ctx, u32 source, u32 entry) {
    return has_slot(ctx, source) ? entry / Config::kBlockTokens : entry >> 16;
  }
  static MK_DEVICE Symmetric<u8> find(const RankContext& ctx, const Smem& smem, u32 source, u32 entry) {
    if (kReadsLanded && !is_near(ctx, source) && is_peer(ctx.local_rank(), source)) {
      return Workspace::landed(Experts::Network::peer_of_rank(ctx, source), entry);
    }
    const u32 index = has_slot(ctx, source) ? entry : entry & 0xffff;
    return Workspace::segments(load_shared(smem.segment_begin(source)) + index);
  }

  // All threads of the CTA: fill the tables, from the messages of all ranks.
  static MK_DEVICE void place(const RankContext& ctx, const Smem& smem) {
    static_assert(SegmentConfig<Config> && SegmentWorkspace<Workspace> && SegmentTables<Smem>);
    for (u32 i = threadIdx.x; i < Experts::kWorld * Experts::kLocalWorld; i += blockDim.x) {
      const u32 source = i / Experts::kLocalWorld, local_rank = i % Experts::kLocalWorld;
      store_shared(smem.segment_tokens(source, local_rank), count_tokens(ctx, source, local_rank));
    }
    __syncthreads();
    if (threadIdx.x < Experts::kLocalWorld) add_up(ctx, smem, threadIdx.x);
    __syncthreads();
  }

 private:
  // Whether the entries of a source are slots.
  static MK_DEVICE bool has_slot(const RankContext& ctx, u32 source) {
    return is_near(ctx, source) || (kReadsLanded && is_peer(ctx.local_rank(), source));
  }

  // A thread: returns the places of the tokens of a source on a rank of this node.
  static MK_DEVICE u32 count_tokens(const RankContext& ctx, u32 source, u32 local_rank) {
    const u32 first = ctx.node_first_rank * Config::kLocalExperts, own = local_rank * Config::kLocalExperts;
    const u32* message = Message::from(ctx, source);
    const u32* rows = Message::rows(message) + first + own;
    const u32* sent = Message::sent(message) + first;
    u32 all_rows = 0, all_sent = 0;
    if (is_near(ctx, source)) {
      for (u32 e = 0; e < Config::kLocalExperts; ++e) all_sent += load(sent + own + e);
      return source == ctx.node_first_rank + local_rank ? 0 : all_sent;
    }
    if (kReadsLanded && is_peer(local_rank, source)) return 0;
    for (u32 e = 0; e < Config::kLocalExperts; ++e) all_rows += load(rows + e);
    for (u32 e = 0; e < Experts::kNodeExperts; ++e) all_sent += load(sent + e);
    return min(all_rows, all_sent);
  }

  // A thread: computes where segments begin on a rank of this node.
  static MK_DEVICE void add_up(const RankContext& ctx, const Smem& smem, u32 local_rank) {
    u32 begin = 0;
    for (u32 source = 0; source < Experts::kWorld; ++source) {
      if (local_rank == ctx.local_rank()) store_shared(smem.segment_begin(source), begin);
      if (source == ctx.rank) {
        store_shared(smem.own_segment(local_rank), begin);
      } else if (!is_near(ctx, source) && is_peer(ctx.local_rank(), source)) {
        store_shared(smem.peer_segment(Experts::Network::peer_of_rank(ctx, source), local_rank), begin);
      }
      begin += load_shared(smem.segment_tokens(source, local_rank));
    }
  }
};

}  // namespace mk::moe
