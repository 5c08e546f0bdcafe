// Chunks of tokens, or of their sums, that a rank puts to its peers.
//
// A peer has room for kRoomTokens tokens, which are whole chunks. A later chunk takes the place of an earlier one,
// after an acknowledgement has arrived: an empty put on a channel of its own. Acknowledgements come in the order of
// chunks. A chunk is acknowledged only if its place is wanted again, so both sides know how many acknowledgements a
// call has.
#pragma once
#include <mk/comm/put.cuh>

namespace mk::moe {

template <class Config>
concept TokenChunkConfig = comm::NetworkConfig<Config> && requires {
  Config::kMaxTokens;    // the most tokens of a rank
  Config::kChunkTokens;  // tokens of a put
  Config::kRoomTokens;   // tokens of a peer for which there is room: whole chunks
};

template <TokenChunkConfig Config, class Workspace>
struct TokenChunks {
  using Network = comm::Network<Config, Workspace>;

  static constexpr u32 kAcknowledgements = 1;  // the channel of acknowledgements
  static constexpr u32 kRoomChunks = Config::kRoomTokens / Config::kChunkTokens;
  static constexpr bool kAreAcknowledged = Config::kRoomTokens < Config::kMaxTokens;
  static_assert(Config::kChannels == (kAreAcknowledged ? 2 : 1));

  // The number of chunks of `tokens` tokens, and the number of these chunks that are acknowledged.
  static MK_DEVICE u32 count(u32 tokens) { return (tokens + Config::kChunkTokens - 1) / Config::kChunkTokens; }
  static MK_DEVICE u32 acknowledged(u32 tokens) {
    const u32 chunks = count(tokens);
    return chunks > kRoomChunks ? chunks - kRoomChunks : 0;
  }

  // The place of a token among the tokens of its peer.
  static MK_DEVICE u32 place(u32 token) { return token % Config::kRoomTokens; }

  // The acknowledgement that frees the place of a token.
  static MK_DEVICE bool is_awaited(u32 token) { return kAreAcknowledged && token >= Config::kRoomTokens; }
  static MK_DEVICE const u32* flag(const RankContext& ctx, u32 peer) {
    return ctx.local_ptr(Workspace::arrived(kAcknowledgements, peer));
  }
  static MK_DEVICE WaitSite site(const RankContext& ctx, Role role, u32 peer, u32 token) {
    const u32 wanted = Network::arrival_of(ctx, token / Config::kChunkTokens - kRoomChunks);
    return {role, kArrival, Network::rank_of_peer(ctx, peer), kAcknowledgements, wanted};
  }
  // Waits until the place of a token is free.
  static MK_DEVICE void wait_place(const RankContext& ctx, Role role, u32 peer, u32 token) {
    if (is_awaited(token)) wait_flag(ctx, flag(ctx, peer), site(ctx, role, peer, token));
  }

  // A warp: acknowledges the chunks of all peers whose places are wanted again, in order. `tokens(peer)` is the number of
  // tokens that a peer puts, and `wait(peer, first, end)` waits until this rank has read the peer's tokens [first, end).
  template <class Args, class TokensOf, class Wait>
  static MK_DEVICE void acknowledge(const Args& args, const RankContext& ctx, const TokensOf& tokens, const Wait& wait) {
    u32 most = 0;
    for (u32 peer = 0; peer < Topology<Config>::kPeerNodes; ++peer) {
      const u32 some = acknowledged(tokens(peer));
      most = some > most ? some : most;
    }
    for (u32 chunk = 0; chunk < most; ++chunk) {
      for (u32 peer = 0; peer < Topology<Config>::kPeerNodes; ++peer) {
        if (chunk >= acknowledged(tokens(peer))) continue;
        wait(peer, chunk * Config::kChunkTokens, (chunk + 1) * Config::kChunkTokens);
        if (broadcast(gives_up(ctx, kPush), 0)) return;
        if (lane_index() == 0) Network::signal(args, ctx, peer, kAcknowledgements);
        __syncwarp();
      }
    }
  }
};

}  // namespace mk::moe
