// A rank's view of a call: its number, the number of the call, and the memory that it can reach.
#pragma once
#include <mk/abi.cuh>
#include <mk/memory.cuh>
#include <mk/region.cuh>
#include <mk/trace.cuh>

namespace mk {

struct RankContext {
  u8* const* workspaces;  // workspaces of the ranks of this node, by local rank
  HostPage* host;
  Gate* gate;
  u64 deadline_ns;
  u32 operator_number;  // number of the operator in its communicator, from 1
  u32 rank;
  u32 local_world;      // ranks of this node
  u32 epoch;            // number of this call, from 1, modulo 2^32; among the calls of its bucket if the operator has buckets
  u32 node_first_rank;  // the rank of this node whose local rank is 0
  NetworkState* network = nullptr;  // null if the kernel has one node
  u32 network_call = 0;             // number of this call among the calls across nodes, from 1, modulo 2^32

  // For kernels whose rows, or whose offsets of packed sequences, each call gives: see Offsets.
  u32 rows = 0;             // rows of this call; 0 if too many were given
  u32 lengths = 0;          // the value that ranks compare: the rows of this call, or kLengthsHash and a hash of all its lengths
  u32 max_rows = 0;         // the most rows that a call may have
  u32 refused_rows = 0;     // the given rows, if too many
  u32 refused_length = 0;   // 1 + the number of the first offset, or of the first number of cached rows, that is not possible
  u32 most_cached = 0;      // the most rows of a sequence that any rank has in its cache
  Symmetric<u64> begun{0};  // announcements of this call, by rank: its mark, and its lengths in the upper half

  // For operators with buckets: see buckets.cuh.
  u32 other_calls = 0;                  // earlier calls that ran other buckets
  u32* bucket_epoch = nullptr;          // the word of the state for this bucket
  u32 bucket_epochs[kMaxBuckets] = {};  // the words of all buckets when the call began

  u64 result_place = 0;  // place of this rank's result in symmetric memory, for kernels that store to peers' results

  Trace trace{};

  MK_DEVICE u32 local_rank() const { return rank - node_first_rank; }
  MK_DEVICE u8* workspace() const { return workspaces[local_rank()]; }

  // Buffers exist twice, and calls alternate between them. A rank that starts call e + 2 has received data of call e +
  // 1 from every peer. Each peer has therefore finished call e, and no thread reads the buffers any more that call e +
  // 2 overwrites.
  MK_DEVICE u32 parity() const { return epoch % 2; }

  // The mark of this call, for words that not every call writes. Such a word may be as old as the operator, so no
  // window distinguishes old epochs from new epochs, and the word is compared for equality. Words that were never
  // written are 0, which is the mark of no call: call 2^32, whose epoch is 0, has the mark of call 2^31 instead. A mark
  // repeats after 2^31 calls at the earliest, and then misleads only a wait for a word that was last written in exactly
  // that call. A mark of 64 bits would never repeat, but packets have only 32 bits beside their data.
  MK_DEVICE u32 mark() const { return mark_of(epoch); }
  static MK_DEVICE u32 mark_of(u32 number) { return number != 0 ? number : 0x80000000u; }

  // The number of this call among all calls of the operator, as in reports and announcements, and its parity.
  MK_DEVICE u32 call() const { return epoch + other_calls; }
  MK_DEVICE u32 call_parity() const { return call() % 2; }
  MK_DEVICE u32 call_mark() const { return mark_of(call()); }

  // An address of this rank's workspace, and of the workspace of a peer of this node (NVSHMEM: nvshmem_ptr).
  template <class T>
  MK_DEVICE T* local_ptr(Symmetric<T> address) const {
    return address.on(workspace());
  }
  template <class T>
  MK_DEVICE T* peer_ptr(u32 peer, Symmetric<T> address) const {
    return address.on(workspaces[peer]);
  }

  MK_DEVICE State* state() const { return local_ptr(Symmetric<State>{0}); }
};

// Whether each call gives the rows.
template <class Config>
concept TakesRows = requires { Config::kMaxRows; };  // the most rows of a call

// Whether the rows belong to packed sequences, whose lengths each call gives as offsets.
template <class Config>
concept IsPacked = TakesRows<Config> && requires { Config::kSequences; };  // the most sequences of a call

// Whether queries attend to cached rows of K and V, whose numbers each call gives for each rank and sequence.
template <class Config>
concept HasCache = TakesRows<Config> && requires { Config::kCachedRows; };  // the most cached rows of a sequence on a rank

// The distribution of ranks over nodes.
template <class Config>
concept TopologyConfig = requires {
  Config::kNodes;
  Config::kLocalWorld;  // ranks of a node
};

template <TopologyConfig Config>
struct Topology {
  static constexpr u32 kNodes = Config::kNodes;
  static constexpr u32 kLocalWorld = Config::kLocalWorld;
  static constexpr u32 kWorld = kNodes * kLocalWorld;
  static constexpr u32 kPeerNodes = kNodes - 1;
};

}  // namespace mk
