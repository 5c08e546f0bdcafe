// Experts, the ranks that have them, and the destinations of tokens.
//
// A rank has kLocalExperts consecutive experts. A token is sent once to each destination that has any of its experts.
// The destinations are the ranks of this node, by local rank, and then the other nodes in their order. On another node,
// the rank whose local rank equals this rank's receives the tokens and forwards them to the ranks of its node.
#pragma once
#include <mk/comm/put.cuh>

namespace mk::moe {

template <class Config>
concept ExpertConfig = TopologyConfig<Config> && requires {
  Config::kExperts;       // experts over all ranks
  Config::kLocalExperts;  // experts of a rank
  Config::kTopK;          // experts that a token chooses
  Config::kMaxTokens;     // the most tokens of a rank
  Config::kMaxRows;       // the most rows of a rank's C
};

template <ExpertConfig Config, class Workspace>
struct Experts : Topology<Config> {
  using Ranks = Topology<Config>;
  using Network = comm::Network<Config, Workspace>;

  static constexpr u32 kDestinations = Ranks::kLocalWorld + Ranks::kPeerNodes;
  static constexpr u32 kNodeExperts = Ranks::kLocalWorld * Config::kLocalExperts;
  static_assert(Ranks::kWorld * Config::kLocalExperts == Config::kExperts);

  static MK_DEVICE bool is_rank(u32 destination) { return Ranks::kNodes == 1 || destination < Ranks::kLocalWorld; }

  static MK_DEVICE u32 destination_of(const RankContext& ctx, u32 expert) {
    const u32 rank = expert / Config::kLocalExperts;
    if constexpr (Ranks::kNodes == 1) {
      return rank;
    } else {
      const u32 node = rank / Ranks::kLocalWorld, own = ctx.node_first_rank / Ranks::kLocalWorld;
      if (node == own) return rank % Ranks::kLocalWorld;
      return Ranks::kLocalWorld + (node < own ? node : node - 1);
    }
  }

  // The position of an expert in the order in which tokens are sent to a destination: the first experts of all ranks of
  // the destination, then their second experts, and so on. In this order, all ranks of a node get rows early.
  static MK_DEVICE u32 order_of(u32 expert) {
    return expert % Config::kLocalExperts * Ranks::kLocalWorld + expert / Config::kLocalExperts % Ranks::kLocalWorld;
  }

  // The experts of a destination, which are the experts of `ranks` consecutive ranks. `first` is the first expert.
  struct Range {
    u32 first, ranks;

    MK_DEVICE u32 count() const { return ranks * Config::kLocalExperts; }
    // The expert at position `i` of the order in which tokens are sent.
    MK_DEVICE u32 in_order(u32 i) const { return first + i % ranks * Config::kLocalExperts + i / ranks; }
  };
  static MK_DEVICE Range range_of(const RankContext& ctx, u32 destination) {
    if constexpr (Ranks::kNodes > 1) {
      if (!is_rank(destination)) {
        const u32 rank = Network::rank_of_peer(ctx, destination - Ranks::kLocalWorld) - ctx.local_rank();
        return {rank * Config::kLocalExperts, Ranks::kLocalWorld};
      }
    }
    return {(ctx.node_first_rank + destination) * Config::kLocalExperts, 1};
  }
};

}  // namespace mk::moe
