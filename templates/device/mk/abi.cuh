// Structs in memory that both host and device access. Host code has the same declarations as this header, and a test
// compares sizes, offsets and numbers.
#pragma once
#include <mk/codes.cuh>

namespace mk {

// The first failed wait of a rank, or the fault of the values of a call's operands. `aborted_by` is 0 if the rank's own
// deadline passed, 1 + r if rank r aborted, kHeard | r if the host has learned that rank r has failed, and kHostAbort if the
// host aborted.
struct Report {
  u32 valid, rank, cta, role, wait, peer, index, wanted, seen, epoch, aborted_by;
  u64 waited_ns;
};

constexpr u32 kHostAbort = 0xffffffffu;
constexpr u32 kHeard = 0x40000000u;  // in abort words: the host has learned that the rank in the other bits has failed
constexpr u32 kLost = 0x20000000u;   // with kHeard: the rank is lost, not only its call
constexpr u32 kLengthsHash = 0x80000000u;  // in place of a number of rows, with a hash of all lengths of the call

// Pinned host memory of one operator.
struct HostPage {
  u32 abort;     // host → device: 1, or kHeard and a rank
  u32 doorbell;  // device → host: epoch whose copies are due, written after the source of the copies
  u64 source, source_row_bytes;
  u32 claimed;    // host → device: epoch whose copies the host begins, unless they are withdrawn
  u32 answered;   // host → device: claimed epoch whose copies have ended or will never run
  u32 withdrawn;  // device → host: not 0 after a kernel gave up its copies; the host then enqueues no more copies
  Report report;  // device → host: a failed wait, after which the operator is of no use
  Report fault;   // device → host: wrong values, which concern only their call; free again when `valid` is 0
};

constexpr u32 kMaxBuckets = 4;  // the most buckets of an operator

// The start of each rank's workspace. Its counters only grow (modulo 2^32) and are never reset, so that no call has to
// wait until another call has cleaned up.
struct State {
  u32 epoch;            // calls whose number every CTA has read
  u32 readers;          // CTAs that have read the epoch, over all calls
  u32 abort;            // 1 + the rank that raised the word, or kHeard and a rank
  u32 reported;         // whether this rank's report was claimed
  u32 faulted;          // mark of the last call in which the report of wrong values was claimed
  u32 sent[kMaxRanks];  // by destination: epoch whose copies have left (copy engines)
  u32 bucket_epochs[kMaxBuckets];  // by bucket: calls that ran the bucket; see buckets.cuh
};

constexpr u32 kGateWords = 256;

// The state that calls of all operators of a communicator share on this GPU, so that one call is under way at a time.
// Counts are modulo 2^32, and nothing resets them.
struct alignas(128) Gate {
  u32 due;                               // CTAs of all calls that have counted themselves (advance_epoch)
  u32 left;                              // like `due`, but a CTA of a small grid counts itself at its end (leave)
  u64 last;                              // the name of the last call whose first CTA has entered: see call_name
  u32 failed;                            // whether this rank has given up a call; it then makes no later call
  alignas(128) u32 entered[kGateWords];  // like `due`, but a CTA adds its call's CTAs when it enters
};

constexpr u32 kTagValid = 0x80000000u;
constexpr u64 kPhaseBit = 1ull << 63;
constexpr u32 kCommandPut = 1;
constexpr u32 kCommandPutToPeers = 2;
constexpr u32 kMaxMaskPeers = 63;  // the most peers of a command with a mask

// A slot of the command ring, in pinned host memory, of 64-bit words. The last three words carry a phase bit, which
// distinguishes one lap of the ring from the next, like the tag.
struct Command {
  u32 tag;  // kTagValid | lap
  u16 peer, channel;
  u8 source_region, target_region;
  u16 kind;
  u32 bytes;
  u64 source_offset, target_offset;
};

// Host → device, in pinned host memory: commands that the proxy has read, and commands whose bytes have left.
struct RingWords {
  u32 consumed, sent;
};

// In device memory: the number of claimed commands, and the value of `consumed` that a producer read last.
struct RingState {
  u32 claimed, consumed_seen;
};

// The ring to which any number of threads of a GPU post commands.
struct CommandRing {
  Command* slots;
  RingWords* words;
  RingState* state;
  u32 capacity_log2;
};

// The memory of a kernel that is traced: offsets of its parts from the address, and the sizes of slices: of the first thread
// of a warp and of every thread. Sizes are powers of 2. See trace.cuh.
struct TraceBuffer {
  u64 address, ctas, warps, events;
  u32 first_events, other_events;
};

// The begin of a CTA by the clock of the GPU and by the clock of its SM, and the number of the call.
struct TraceCta {
  u64 begin_ns, begin_ticks;
  u32 sm, call;
};

// The end of a warp by both clocks; zero if the warp has not ended.
struct TraceWarp {
  u64 end_ns, end_ticks;
};

// An event of a thread, in ticks of its SM, modulo 2^32.
struct alignas(16) TraceEvent {
  u32 begin, end, what, index;
};

constexpr u32 kPlaceOffsetBits = 48;  // low bits of the place of a tensor in symmetric memory; the bits above hold the region

constexpr u32 kPutChannels = 2;   // channels from each peer, for all operators of a communicator
constexpr u32 kMaxPuts = 0x7fff;  // the most puts of a call to a peer on a channel

// The state that all calls across nodes of a communicator share, in device memory. Words behind this struct count the
// puts of all watched calls, modulo 2^32, by peer and channel.
struct alignas(128) NetworkState {
  u32 calls;    // calls across nodes whose number every CTA has read
  u32 watched;  // calls whose puts have all arrived
};

// A communicator's endpoint, as its kernels use it. The workspace lies at the same place of the same region on all ranks.
struct KernelEndpoint {
  CommandRing ring;
  const u8* arrivals;  // the proxy's arrival words in host memory, by peer and channel, kArrivalStride apart
  NetworkState* network;
  u64 workspace_offset;  // bytes from the start of the region
  u32 region;
};

}  // namespace mk
