// Eight threads of rank 0 each put a word to rank 1, through a ring of four commands. CTA 0 of rank 1 acts as the proxy
// and the NIC, and CTA 1 as the kernel that waits for the puts.
struct Layout {
  mk::CommandRing ring;
  u32* source;   // of rank 0
  u32* target;   // of rank 1, like all below
  u32* arrived;
};

__device__ __forceinline__ Layout layout(const Args& args) {
  u8* near = args.workspaces[0];
  u8* far = args.workspaces[1];
  const mk::CommandRing ring{reinterpret_cast<mk::Command*>(far + 4096), reinterpret_cast<mk::RingWords*>(far + 8192),
                             reinterpret_cast<mk::RingState*>(near + 4096), 2};
  return Layout{ring, words(near + 8192), words(far + 12288), words(far + 16384)};
}

// The words of a slot except the first one, without their phase bits.
struct Command {
  u64 words[3];
};

// Waits for all words of the command with this index.
__device__ __forceinline__ Command take(const u64* slot, u32 index) {
  const u64 phase = index / 4 % 2 == 0 ? mk::kPhaseBit : 0;
  while (static_cast<u32>(mk::load_relaxed_sys(slot)) != (mk::kTagValid | index / 4)) __nanosleep(32);
  Command command;
  for (u64& word : command.words) {
    ++slot;
    while (((word = mk::load_relaxed_sys(slot)) & mk::kPhaseBit) != phase) __nanosleep(32);
    word &= ~mk::kPhaseBit;
  }
  mk::fence_sys();
  return command;
}

// Copies the command's bytes to the target.
__device__ __forceinline__ void move(const Layout& at, const Command& command) {
  u32* to = at.target + command.words[2] / 4;
  if (command.words[0] >> 32 == 4) mk::store(to, mk::load(at.source + command.words[1] / 4));
}

KERNEL(32) {
  const mk::RankContext ctx{args.workspaces, args.host, gate(args), 100'000'000, 0, args.rank, 2, args.call, 0};
  const Layout at = layout(args);
  const u32 lane = mk::lane_index();
  if (args.rank == 0 && blockIdx.x == 0 && lane < 8) {
    const u32 word = mk::load(words(args.input) + lane);
    mk::store(words(args.output) + lane, word);
    mk::store(at.source + lane, word);
    const mk::comm::Put put{mk::kCommandPut, 0, 5, 0, 0, 4, lane * 4, lane * 4};
    const u32 index = mk::fetch_add_relaxed_gpu(&at.ring.state->claimed, 1);
    if (mk::comm::wait_command_slot(ctx, mk::kPush, at.ring, index)) mk::comm::publish_command(at.ring, index, put);
    mk::wait_flag(ctx, &at.ring.words->sent, mk::WaitSite{mk::kPush, mk::kPutSent, args.rank, index, index + 1});
    mk::store(at.source + lane, 0);
  }
  if (args.rank == 1 && blockIdx.x == 0 && lane == 0) {
    for (u32 index = 8 * (args.call - 1); index != 8 * args.call; ++index) {
      const Command command = take(reinterpret_cast<const u64*>(at.ring.slots + index % 4), index);
      mk::store_release_sys(&at.ring.words->consumed, index + 1);
      move(at, command);
      mk::store_release_sys(&at.ring.words->sent, index + 1);
      mk::store_release_sys(at.arrived, index + 1);
    }
  }
  if (args.rank == 1 && blockIdx.x == 1) {
    if (lane == 0) mk::wait_flag(ctx, at.arrived, mk::WaitSite{mk::kLoad, mk::kArrival, 0, 5, 8 * args.call});
    __syncwarp();
    if (lane < 8) mk::store(words(args.output) + lane, mk::load(at.target + lane));
  }
}
