// Tokens: how a rank sends them to the ranks that need them, and their places on those ranks.
//
// Tokens that a rank sends to a destination have slots there, in the order of sending. A block is kBlockTokens
// consecutive slots of a source. A block has one flag, which holds the mark of the last call in which the block
// arrived.
//
// On several nodes a receiver has a segment of memory for each source (mk/moe/segments.cuh). A token of a source on
// another node has a slot among the tokens for its node, and an index among the tokens that the receiver needs. Its
// flag is the flag of the slot's block, and the index is the place in the segment. The receiver's list has both.
//
// The receiver has one buffer for the tokens of a source, although most buffers exist twice. One is enough because a
// rank sends tokens only after the receiver's message of the same call has arrived. The receiver has then finished the
// previous call.
//
// If tokens have scales, the scales of a token lie behind its elements, under the same flag.
#pragma once
#include <mk/comm/shards.cuh>
#include <mk/comm/staged_copy.cuh>
#include <mk/moe/segments.cuh>

namespace mk::moe {

template <class Config>
concept TokenConfig = MessageConfig<Config> && requires {
  typename Config::ElementA;  // the element of tokens
  Config::kHidden;       // elements of a token
  Config::kBlockTokens;  // tokens under one flag
  Config::kSlotBytes;    // shared memory of a warp that sends
};

template <class Workspace>
concept SentTokenWorkspace = requires(u32 source, u32 block, u32 slot, u32 destination) {
  Workspace::token_ready(source, block);
  Workspace::send_list(destination, slot);
};
template <class Workspace>
concept TokenWorkspace = SentTokenWorkspace<Workspace> && requires(u32 distance, u32 slot) {
  Workspace::received(distance, slot);  // a token of source (rank + 1 + distance) mod world
};

// Args: this rank's tokens.
template <class Args>
concept TokenArgs = requires(const Args& args) {
  args.tokens;
  args.token_stride_bytes;
};

// Kernels of one rank do not instantiate Tokens.
template <TokenConfig Config, class Args, class Workspace, class Smem>
struct Tokens {
  using Experts = moe::Experts<Config, Workspace>;

  static constexpr u32 kTokenBytes = Config::ElementA::bytes(Config::kHidden);
  static constexpr u32 kSentBytes = comm::kSentRowBytes<Config, kTokenBytes>;  // from a token to the next token

  // Whether scales travel with tokens. All lanes of a warp then send the scales, and the elected lane sends the tokens.
  static constexpr bool kSendsScales = comm::kSentScales<Config> > 0;
  static MK_DEVICE bool is_leader() { return !kSendsScales || elect_one(); }

  // One node: the place at which rank `receiver` has a token of rank `source`.
  static MK_DEVICE Symmetric<u8> received(u32 receiver, u32 source, u32 slot) {
    return Workspace::received((source + Experts::kWorld - receiver - 1) % Experts::kWorld, slot);
  }

  // Waits until a token of rank `source` has arrived on this rank, and returns its address. `entry` is the token's
  // entry on the source's list.
  static MK_DEVICE const u8* acquire(const RankContext& ctx, const Smem& smem, u32 source, u32 entry) {
    if constexpr (Experts::kNodes == 1) {
      wait(ctx, source, entry / Config::kBlockTokens);
      return ctx.local_ptr(received(ctx.rank, source, entry));
    } else {
      using Segments = moe::Segments<Config, Workspace, Smem>;
      wait(ctx, source, Segments::block_of(ctx, source, entry));
      return ctx.local_ptr(Segments::find(ctx, smem, source, entry));
    }
  }

  static MK_DEVICE void wait(const RankContext& ctx, u32 source, u32 block) {
    const u32* flag = ready_flag(ctx, ctx.local_rank(), source, block);
    wait_mark(ctx, flag, WaitSite{kLoad, kChunk, source, block, ctx.mark()});
  }

  static MK_DEVICE u32* ready_flag(const RankContext& ctx, u32 local_rank, u32 source, u32 block) {
    return ctx.peer_ptr(local_rank, Workspace::token_ready(source, block));
  }

  // Block `index` has slots [first, end). It is empty if first >= end.
  struct Block {
    u32 index, first, end;
  };
  static MK_DEVICE Block block_at(u32 index, u32 tokens) {
    const u32 first = index * Config::kBlockTokens;
    return {index, first, min(first + Config::kBlockTokens, tokens)};
  }

  // One thread, or a warp if scales travel: copies a block of own tokens for destination `to` to address `there`. All
  // tokens have arrived when the function returns, and the leader may raise their flag.
  static MK_DEVICE void send(const Args& args, comm::StagedCopy& copy, u32 to, const Block& block, u8* there) {
    const u32* list = copy.ctx.local_ptr(Workspace::send_list(to, block.first));
    if constexpr (kSendsScales) send_scales(args, list, block, there);
    if (is_leader()) copy_tokens(args, copy, list, block, there);
    if constexpr (kSendsScales) __syncwarp();
  }

  // A warp: stores the scales of a block of own tokens.
  static MK_DEVICE void send_scales(const Args& args, const u32* list, const Block& block, u8* there) {
    comm::store_scales<comm::kSentScales<Config>, kSentBytes>(
        args, block.end - block.first, [&](u32 i) { return load(list + i); }, 0, 1,
        [&](u32) { return there + kTokenBytes; });
  }

  // One thread: copies the elements of a block of own tokens through the warp's slot of shared memory.
  static MK_DEVICE void copy_tokens(const Args& args, comm::StagedCopy& copy, const u32* list, const Block& block, u8* there) {
    copy.template copy_rows<Config::kSlotBytes, kTokenBytes>(
        block.end - block.first, kTokenBytes, block.first,
        [&](const comm::StagedRows& staged, u32 barrier) {
          for (u32 i = 0; i < staged.count; ++i) {
            const u64 from = load(list + staged.first + i) * args.token_stride_bytes + staged.part;
            tma_load_bytes(staged.row(i), args.tokens + from, staged.bytes, barrier);
          }
        },
        [&](const comm::StagedRows& staged) {
          if constexpr (kSendsScales) {
            for (u32 i = 0; i < staged.count; ++i) {
              tma_store_bytes(there + (staged.first + i) * kSentBytes + staged.part, staged.row(i), staged.bytes);
            }
          } else {
            // One store takes several tokens only if they are whole, since then they lie side by side.
            tma_store_bytes(there + staged.first * kTokenBytes + staged.part, staged.address, staged.total_bytes());
          }
        });
    copy.finish();
  }

  // Returns the maximum of `tokens(i)` for i < count.
  template <class CountOf>
  static MK_DEVICE u32 greatest(u32 count, const CountOf& tokens) {
    u32 most = 0;
    for (u32 i = 0; i < count; ++i) {
      const u32 some = tokens(i);
      most = some > most ? some : most;
    }
    return most;
  }

  // A thread calls this before it stores tokens to other ranks by TMA. Those ranks have read the same slots in the
  // previous call by ordinary loads. Routing has acquired the end of these loads. TMA is another proxy, so a proxy
  // fence orders the thread's stores after the loads.
  static MK_DEVICE void begin_sending() { fence_proxy_async(); }
};

// The sending of tokens on one node.
template <TokenConfig Config, class Args, TokenWorkspace Workspace, TokenTables Smem>
struct TokenPush {
  using Tokens = moe::Tokens<Config, Args, Workspace, Smem>;
  using Experts = typename Tokens::Experts;

  // A warp, number `sender` of `senders`: sends all tokens.
  static MK_DEVICE void run(const Args& args, const RankContext& ctx, const Smem& smem, u32 sender, u32 senders) {
    if (Tokens::kSendsScales || elect_one()) push(args, ctx, smem, sender, senders);
  }

 private:
  // One thread, or a warp if scales travel: sends blocks of tokens to all other ranks in turn, and raises a flag
  // after each block. Tokens for a rank's first expert come first.
  static MK_DEVICE void push(const Args& args, const RankContext& ctx, const Smem& smem, u32 sender, u32 senders) {
    constexpr u32 kOthers = Experts::kWorld - 1;
    auto copy = comm::StagedCopy::of_warp(ctx, smem);
    Tokens::begin_sending();
    const u32 most = Tokens::greatest(Experts::kWorld, [&](u32 to) { return load_shared(smem.tokens_to(to)); });
    for (u32 i = sender; i / kOthers * Config::kBlockTokens < most; i += senders) {
      const u32 to = (ctx.rank + 1 + i % kOthers) % Experts::kWorld;
      const auto block = Tokens::block_at(i / kOthers, load_shared(smem.tokens_to(to)));
      if (block.first >= block.end) continue;
      Tokens::send(args, copy, to, block, ctx.peer_ptr(to, Tokens::received(to, ctx.rank, block.first)));
      if (Tokens::is_leader()) store_release_sys(Tokens::ready_flag(ctx, to, ctx.rank, block.index), ctx.mark());
    }
  }
};

}  // namespace mk::moe
