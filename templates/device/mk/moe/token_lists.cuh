// Lists of tokens between nodes.
//
// For each other node, a rank lists its tokens that have rows there, with all their top-k entries. It puts the list to
// the peer, which is the rank of the same local rank there. The peer forwards the list to all ranks of its node. Each
// of them sends the peer its partial sum of each token. The peer adds these sums up, and puts the results back in the
// order of the list. So the rank of a token finds its sum at the position that the token has on the list.
#pragma once
#include <mk/moe/token_chunks.cuh>
#include <mk/moe/topk_exchange.cuh>

namespace mk::moe {

template <class Config>
concept TokenListConfig = TopkExchangeConfig<Config> && TokenChunkConfig<Config> && requires {
  Config::kListHeaderBytes;  // bytes of a list before its entries
  Config::kListedTokens;     // tokens on the lists of a rank for all peers
};

template <class Workspace>
concept TokenListWorkspace = requires(u32 parity, u32 peer, u32 token) {
  Workspace::lists_ready();                // the CTAs that have listed their tokens, over all calls
  Workspace::listed(peer);                 // the tokens on the lists for a peer, over all calls
  Workspace::listed_before(parity, peer);  // the same number at the begin of a call
  Workspace::list_positions(peer, token);  // a mark, and the position of a token in the upper half
  Workspace::sums_begin(peer);             // a mark, and where the sums of a peer begin in the upper half
  Workspace::fault_mark();                 // the mark of the last call with a wrong row index
  Workspace::fault();                      // the entry, the token and the row index
  Workspace::lists_out(parity, peer);
  Workspace::lists_in(parity, peer);
};

// Only kernels of several nodes instantiate these functions.
template <class Config, class Args, class Workspace>
struct TokenLists {
  using Ranks = Topology<Config>;
  using Network = comm::Network<Config, Workspace>;
  using Topk = moe::Topk<Config, Args>;
  using Exchange = TopkExchange<Config, Args, Workspace>;
  using Chunks = TokenChunks<Config, Workspace>;

  // A list begins with six words: the number of tokens of the call, the number of tokens on the list, 1 + the index of
  // a wrong entry or 0, the token and the row index of that entry, and where the sums of the list begin on its rank. The
  // entries follow, each as its weight and its row index.
  static constexpr u32 kGiven = 0, kTokens = 1, kFault = 2, kFaultWords = 3, kBegin = kFault + kFaultWords;

  static MK_DEVICE u32* header(const RankContext& ctx, Symmetric<u8> list) {
    return reinterpret_cast<u32*>(ctx.local_ptr(list));
  }
  static MK_DEVICE u64* entries(const RankContext& ctx, Symmetric<u8> list) {
    return reinterpret_cast<u64*>(ctx.local_ptr(list) + Config::kListHeaderBytes);
  }

  // The list from a peer, on the rank that receives it.
  static MK_DEVICE Symmetric<u8> list_of(const RankContext& ctx, u32 peer) {
    return Workspace::lists_in(ctx.parity(), peer);
  }

  // All threads of all CTAs: append this rank's tokens to its lists.
  static MK_DEVICE void build(const Args& args, const RankContext& ctx, u32 given) {
    static_assert(TokenListConfig<Config> && TokenListWorkspace<Workspace>);
    const u32 end = Topk::valid_tokens(given) * Config::kTopK;
    for (u32 i = blockIdx.x * Config::kThreads + threadIdx.x; i < end; i += gridDim.x * Config::kThreads) {
      list_entry(args, ctx, i / Config::kTopK, i % Config::kTopK);
    }
    __syncthreads();
    if (threadIdx.x == 0) add_release_gpu(ctx.local_ptr(Workspace::lists_ready()), 1);
  }

  // Waits until all CTAs have listed their tokens.
  static MK_DEVICE void wait(const RankContext& ctx) {
    const WaitSite site{kPush, kCounted, ctx.rank, 0, ctx.epoch * gridDim.x};
    wait_flag(ctx, ctx.local_ptr(Workspace::lists_ready()), site);
  }

  // Returns the number of tokens on the list for a peer. The second function returns that of the list from a peer,
  // which must have arrived.
  static MK_DEVICE u32 tokens_for(const RankContext& ctx, u32 peer) {
    return load(ctx.local_ptr(Workspace::listed(peer))) -
           load(ctx.local_ptr(Workspace::listed_before(ctx.parity(), peer)));
  }
  static MK_DEVICE u32 tokens_of(const RankContext& ctx, u32 peer) {
    return min(load(header(ctx, list_of(ctx, peer)) + kTokens), Config::kMaxTokens);
  }

  // Returns where the sums of this rank's tokens begin on a peer, whose list must have arrived.
  static MK_DEVICE u32 sums_begin_at(const RankContext& ctx, u32 peer) {
    return min(load(header(ctx, list_of(ctx, peer)) + kBegin), Config::kListedTokens - tokens_of(ctx, peer));
  }

  // Returns the number of the put with the sum of the token at this position. The first put of a peer is its list.
  static MK_DEVICE u32 put_of_sum(u32 position) { return 1 + position / Config::kChunkTokens; }

  // One lane: waits until the position of a token on the list for a peer has been written, and returns where its sum
  // arrives. `position` is set to the former. After an abort both are 0.
  static MK_DEVICE u32 wait_slot(const RankContext& ctx, u32 peer, u32 token, u32& position) {
    position = wait_marked(ctx, Workspace::list_positions(peer, token), token);
    return wait_marked(ctx, Workspace::sums_begin(peer), token) + position;
  }

  // A warp: waits until all puts of the call have arrived. Then it saves the counts of listed tokens, from which the
  // next call goes on. A peer's list says how many sums of this rank the peer acknowledges.
  static MK_DEVICE void watch_arrivals(const Args& args, const RankContext& ctx) {
    using Phase = typename Network::Phase;
    wait(ctx);
    Network::begin_watch(args, ctx);
    const bool has_lists = Network::watch_phase(args, ctx, [](u32 channel, u32) { return Phase{0, channel == 0 ? 1u : 0u}; });
    const bool have_lists = max_of_warp(!has_lists) == 0;
    __syncwarp();  // all lanes read what each of them has acquired
    const bool have_arrived = Network::watch_phase(args, ctx, [&](u32 channel, u32 peer) {
      if (channel == 0) return Phase{1, Chunks::count(tokens_for(ctx, peer))};
      return Phase{0, have_lists ? Chunks::acknowledged(tokens_of(ctx, peer)) : 0};
    }) && have_lists;
    for (u32 peer = lane_index(); peer < Ranks::kPeerNodes; peer += kWarp) {
      const u32 listed = load(ctx.local_ptr(Workspace::listed(peer)));
      store(ctx.local_ptr(Workspace::listed_before((ctx.epoch + 1) % 2, peer)), listed);
    }
    Network::end_watch(args, ctx, have_arrived);
  }

  // One thread: puts the lists to the peers.
  static MK_DEVICE void put(const Args& args, const RankContext& ctx, u32 given) {
    wait(ctx);
    if (gives_up(ctx, kPush)) return;
    const u32* fault = ctx.local_ptr(Workspace::fault());
    const bool is_wrong = load_relaxed_sys(ctx.local_ptr(Workspace::fault_mark())) == ctx.mark();
    u32 begin = 0;
    for (u32 peer = 0; peer < Ranks::kPeerNodes; ++peer) {
      store(header(ctx, Workspace::lists_out(ctx.parity(), peer)) + kBegin, begin);
      store_relaxed_sys(ctx.local_ptr(Workspace::sums_begin(peer)), u64{begin} << 32 | ctx.mark());
      begin += tokens_for(ctx, peer);
    }
    for (u32 i = 0; i < Ranks::kPeerNodes; ++i) {
      const u32 peer = peer_in_turn(ctx, i), tokens = tokens_for(ctx, peer);
      const Symmetric<u8> list = Workspace::lists_out(ctx.parity(), peer);
      u32* words = header(ctx, list);
      store(words + kGiven, given);
      store(words + kTokens, tokens);
      for (u32 word = 0; word < kFaultWords; ++word) store(words + kFault + word, is_wrong ? load(fault + word) : 0);
      Network::put(args, ctx, peer, 0, list, list_of(ctx, Network::own_number_at(ctx, peer)),
                   Config::kListHeaderBytes + tokens * Config::kTopK * 8);
    }
  }

  // Returns the peer at place `i` of an order that begins with another peer on each node, so that not all nodes put to
  // the same node first.
  static MK_DEVICE u32 peer_in_turn(const RankContext& ctx, u32 i) {
    return (ctx.node_first_rank / Ranks::kLocalWorld + i) % Ranks::kPeerNodes;
  }

  // A warp, number `worker` of kWorkers: forwards the lists of peers to all ranks of this node, as the packets that
  // their sources would have sent on their own nodes.
  template <u32 kWorkers>
  static MK_DEVICE void relay(const RankContext& ctx, u32 worker) {
    const u32 lane = lane_index();
    for (u32 peer = 0; peer < Ranks::kPeerNodes; ++peer) {
      Network::wait_put(ctx, kPush, 0, peer, 0);
      if (broadcast(is_aborted(ctx), 0)) return;
      const u32 source = Network::rank_of_peer(ctx, peer);
      const Symmetric<u8> list = list_of(ctx, peer);
      const u32* words = header(ctx, list);
      for (u32 to = 0; to < Ranks::kLocalWorld && worker == 0 && lane < Config::kCountPackets; ++to) {
        u8* slot = ctx.peer_ptr(to, Exchange::count_packet(ctx, source, lane));
        // The packets also signal that this rank has read everything that was sent to it in earlier calls.
        fence_sys();
        comm::store_ll(slot, load(words + 2 * lane), load(words + 2 * lane + 1), ctx.mark());
      }
      const u32 end = tokens_of(ctx, peer) * Config::kTopK;
      for (u32 i = worker * kWarp + lane; i < end; i += kWorkers * kWarp) {
        const u64 both = load(entries(ctx, list) + i);
        for (u32 to = 0; to < Ranks::kLocalWorld; ++to) {
          comm::store_ll(ctx.peer_ptr(to, Exchange::entry_packet(ctx, source, i)), static_cast<u32>(both),
                         static_cast<u32>(both >> 32), ctx.mark());
        }
      }
    }
  }

 private:
  // One lane: waits for a word of this call, and returns its upper half. Returns 0 after an abort. `token` identifies the
  // wait in reports.
  static MK_DEVICE u32 wait_marked(const RankContext& ctx, Symmetric<u64> word, u32 token) {
    Deadline deadline(ctx);
    for (;;) {
      const u64 both = load_relaxed_sys(ctx.local_ptr(word));
      const u32 mark = static_cast<u32>(both);
      if (mark == ctx.mark()) return static_cast<u32>(both >> 32);
      if (deadline.expired(ctx, WaitSite{kLoad, kCounted, ctx.rank, token, ctx.mark()}, mark)) return 0;
    }
  }

  static MK_DEVICE u32 node_of(u32 row_index) { return row_index / Config::kMaxRows / Ranks::kLocalWorld; }

  // A thread: appends a token to the list for the node of one of its entries, unless the entry has no row, or an earlier
  // entry of the token has the same node.
  static MK_DEVICE void list_entry(const Args& args, const RankContext& ctx, u32 token, u32 index) {
    const u32 first = token * Config::kTopK, row_index = Topk::load_row_index(args, first + index);
    if (Topk::is_wrong(row_index)) return keep_fault(ctx, token, index, row_index);
    if (row_index == kNoRow) return;
    const u32 node = node_of(row_index), own_node = ctx.node_first_rank / Ranks::kLocalWorld;
    bool is_listed = node == own_node;
    for (u32 i = 0; i < index; ++i) is_listed |= node_of(Topk::load_row_index(args, first + i)) == node;
    if (is_listed) return;
    const u32 peer = node < own_node ? node : node - 1;
    const u32 position = fetch_add_relaxed_gpu(ctx.local_ptr(Workspace::listed(peer)), 1) -
                         load(ctx.local_ptr(Workspace::listed_before(ctx.parity(), peer)));
    u64* list = entries(ctx, Workspace::lists_out(ctx.parity(), peer)) + u64{position} * Config::kTopK;
    for (u32 i = 0; i < Config::kTopK; ++i) {
      store(list + i, u64{Topk::load_weight(args, first + i)} << 32 | Topk::load_row_index(args, first + i));
    }
    store_relaxed_sys(ctx.local_ptr(Workspace::list_positions(peer, token)), u64{position} << 32 | ctx.mark());
  }

  // Records a wrong row index unless this rank has recorded one in this call. The lists carry it to the other nodes.
  static MK_DEVICE void keep_fault(const RankContext& ctx, u32 token, u32 index, u32 row_index) {
    if (exchange_relaxed_gpu(ctx.local_ptr(Workspace::fault_mark()), ctx.mark()) == ctx.mark()) return;
    u32* fault = ctx.local_ptr(Workspace::fault());
    store(fault, index + 1);
    store(fault + 1, token);
    store(fault + 2, row_index);
  }
};

}  // namespace mk::moe
