// Weighted sums of rows. A CTA adds up one part of a row at a time: one warp loads the parts of the rows, most warps
// add them in fp32, and one thread per output buffer stores the sums.
//
// Parts of rows arrive through a pipeline of stages, and sums leave through output buffers. TMA moves both, so data on
// their way take no registers and hold up no warp. Each adding warp has the same columns of every part.
#pragma once
#include <mk/moe/sum_rows.cuh>
#include <mk/pipeline.cuh>
#include <mk/tma.cuh>

namespace mk::moe {

template <class Config>
concept RowConfig = TopologyConfig<Config> && requires {
  Config::kTopK;       // the most rows of a sum
  typename Config::Element;  // the element of rows
  Config::kRowBytes;
  Config::kPartBytes;  // bytes of a row that are summed at a time
  Config::kStages;
  Config::kOutputs;  // buffers, each with a thread that stores
  Config::kThreads;
};

template <class Smem>
concept RowSmem = requires(const Smem smem, u32 stage, u32 buffer) {
  smem.row(stage);
  smem.row_info(stage);
  smem.row_destination(stage);
  smem.output(buffer);
  smem.output_info(buffer);
  smem.output_destination(buffer);
  smem.row_full(stage);
  smem.row_empty(stage);
  smem.output_full(buffer);
  smem.output_empty(buffer);
};

// Part `index` of the row of a token.
template <RowConfig Config>
struct RowPart {
  static constexpr u32 kParts = kCeilDiv<Config::kRowBytes, Config::kPartBytes>;

  u32 token, index;

  // Part number `i` of all parts of all tokens.
  MK_DEVICE RowPart(u32 i = 0) : token(i / kParts), index(i % kParts) {}
  MK_DEVICE u32 offset() const { return index * Config::kPartBytes; }
  MK_DEVICE u32 bytes() const { return min(Config::kPartBytes, Config::kRowBytes - offset()); }
};

// The place of a sum, and the flag that is raised there when the sum has arrived. `flag` is null if no other rank waits
// for the sum.
struct Destination {
  u8* to = nullptr;
  u32* flag = nullptr;

  // Writes the destination as 16 bytes of shared memory.
  MK_DEVICE void write(u32 address) const {
    const u64 to_bits = reinterpret_cast<u64>(to), flag_bits = reinterpret_cast<u64>(flag);
    store_shared_vec16(address, Vec16{static_cast<u32>(to_bits), static_cast<u32>(to_bits >> 32),
                                      static_cast<u32>(flag_bits), static_cast<u32>(flag_bits >> 32)});
  }
  static MK_DEVICE Destination read(u32 address) {
    const Vec16 v = load_shared_vec16(address);
    return {reinterpret_cast<u8*>(u64{v.y} << 32 | v.x), reinterpret_cast<u32*>(u64{v.w} << 32 | v.z)};
  }
};

// The adding warps' description of the part in a stage, as 16 bytes of shared memory. For a sum in an output buffer,
// `weight_bits` and `group` have no meaning.
struct RowInfo {
  static constexpr u32 kEnd = ~0u;  // in place of a number of rows, if no more sums follow

  u32 weight_bits;
  u32 rows_left;  // rows of the sum that follow
  u32 bytes;
  u32 group = 0;  // see SumRow

  MK_DEVICE void write(u32 address) const { store_shared_vec16(address, Vec16{weight_bits, rows_left, bytes, group}); }
  static MK_DEVICE RowInfo read(u32 address) {
    const Vec16 v = load_shared_vec16(address);
    return {v.x, v.y, v.z, v.w};
  }
};

template <RowConfig Config, RowSmem Smem>
struct RowPipeline {
  // One warp loads, one warp per output buffer stores, and the others add.
  static constexpr u32 kMoverThreads = (1 + Config::kOutputs) * kWarp;
  static constexpr u32 kAdderThreads = Config::kThreads - kMoverThreads;
  static constexpr u32 kAdderWarps = kAdderThreads / kWarp;

  // A stage is full when its part has arrived, and empty when every adding warp has read it. A buffer is full when
  // every adding warp has written its columns, and empty when TMA has read it.
  using RowBarriers = PipelineBarriers<Config::kStages, 1, kAdderWarps>;
  using OutputBarriers = PipelineBarriers<Config::kOutputs, kAdderWarps, 1>;
  using Rows = Pipeline<RowBarriers, StageSites>;
  using Outputs = Pipeline<OutputBarriers, OutputSites>;

  static MK_DEVICE RowBarriers row_barriers(const Smem& smem) { return {smem.row_full(0), smem.row_empty(0)}; }
  static MK_DEVICE OutputBarriers output_barriers(const Smem& smem) {
    return {smem.output_full(0), smem.output_empty(0)};
  }

  // One thread, before the first barrier of the CTA.
  static MK_DEVICE void init_barriers(const Smem& smem) {
    row_barriers(smem).init();
    output_barriers(smem).init();
    fence_barrier_init();
  }

  // A warp: loads parts of rows to the stages. Every lane issues the load of its own row. If the lanes issued their
  // loads one after the other, each load would take about 170 ns.
  struct Loader {
    const RankContext& ctx;
    const Smem& smem;
    Rows rows;

    MK_DEVICE Loader(const RankContext& ctx, const Smem& smem) : ctx(ctx), smem(smem), rows(ctx, row_barriers(smem)) {}

    MK_DEVICE void load(const SumRow& row, u32 bytes, u32 rows_left, const Destination& destination) const {
      const u32 stage = rows.stage(), full = rows.barriers.full(stage);
      rows.producer_acquire();
      RowInfo{row.weight_bits, rows_left, bytes, BatchInvariant<Config> ? row.group() : 0}.write(smem.row_info(stage));
      destination.write(smem.row_destination(stage));
      barrier_expect(full, bytes);
      if (bytes > 0) tma_load_bytes(smem.row(stage), row.from, bytes, full);
    }

    // All lanes: load the rows of a sum, up to kStages rows at a time. Returns the number of rows. If the number is 0,
    // nothing is stored.
    MK_DEVICE u32 load_sum(const SumRow& row, u32 bytes, const Destination& destination) {
      const RowOrder<Config> order(row);
      const u32 count = order.count;
      for (u32 first = 0; first < count; first += Config::kStages) {
        const u32 next = min(count, first + Config::kStages);
        if (row.position != SumRow::kNone && order.before >= first && order.before < next) {
          Loader lane = *this;
          lane.rows.state.advance(order.before - first);
          lane.load(row, bytes, count - order.before - 1, destination);
        }
        __syncwarp();
        rows.state.advance(next - first);
      }
      return count;
    }

    // Tells the adding warps that no more sums follow.
    MK_DEVICE void end() {
      if (lane_index() == 0) load(SumRow{}, 0, RowInfo::kEnd, Destination{});
      __syncwarp();
    }
  };

  // An adding warp: adds up its columns of all sums.
  static MK_DEVICE void add(const RankContext& ctx, const Smem& smem) {
    constexpr u32 kVecs = kCeilDiv<Config::kPartBytes / 16, kAdderThreads>;  // vectors of a thread
    const u32 first = threadIdx.x - kMoverThreads;
    SumOfGroups<Config> sums[kVecs];
    Rows rows{ctx, row_barriers(smem)};
    Outputs outputs{ctx, output_barriers(smem)};
    for (;;) {
      rows.consumer_wait();
      const u32 stage = rows.stage();
      const RowInfo info = RowInfo::read(smem.row_info(stage));
      const Destination destination = Destination::read(smem.row_destination(stage));
      const float weight = as_float(info.weight_bits);
#pragma unroll
      for (u32 i = 0; i < kVecs; ++i) {
        const u32 at = (first + i * kAdderThreads) * 16;
        if (at >= info.bytes) continue;
        sums[i].add(load_shared_vec16(smem.row(stage) + at), weight, info.group);
      }
      __syncwarp();
      rows.consumer_release_warp();
      if (info.rows_left == RowInfo::kEnd) break;
      if (info.rows_left > 0) continue;
      outputs.producer_acquire();
      const u32 buffer = outputs.stage();
#pragma unroll
      for (u32 i = 0; i < kVecs; ++i) {
        const u32 at = (first + i * kAdderThreads) * 16;
        if (at >= info.bytes) continue;
        store_shared_vec16(smem.output(buffer) + at, sums[i].result());
        sums[i] = {};
      }
      if (first == 0) {
        RowInfo{info.weight_bits, info.rows_left, info.bytes}.write(smem.output_info(buffer));
        destination.write(smem.output_destination(buffer));
      }
      fence_proxy_async_shared();
      outputs.producer_commit_warp();
    }
    for (u32 i = 0; i < Config::kOutputs; ++i) {  // each storing thread gets the end
      outputs.producer_acquire();
      if (first == 0) RowInfo{0, RowInfo::kEnd, 0}.write(smem.output_info(outputs.stage()));
      outputs.producer_commit_warp();
    }
  }

  // One thread: stores the sums in one output buffer. It waits until a sum has arrived at a peer before it raises the
  // flag. Meanwhile the threads of the other buffers continue.
  static MK_DEVICE void store(const RankContext& ctx, const Smem& smem, u32 buffer) {
    const OutputBarriers barriers = output_barriers(smem);
    for (u32 phase = 0;; phase ^= 1) {
      wait_barrier(ctx, barriers.full(buffer), phase, kStore, kOutputFull, buffer);
      const RowInfo info = RowInfo::read(smem.output_info(buffer));
      if (info.rows_left == RowInfo::kEnd) break;
      const Destination destination = Destination::read(smem.output_destination(buffer));
      tma_store_bytes(destination.to, smem.output(buffer), info.bytes);
      tma_commit();
      if constexpr (Topology<Config>::kWorld > 1) {
        if (destination.flag != nullptr) {
          tma_wait<0>();
          fence_proxy_async();
          store_release_sys(destination.flag, ctx.mark());
        }
      }
      tma_wait_read<0>();
      barrier_arrive(barriers.empty(buffer));
    }
    tma_wait<0>();
  }
};

}  // namespace mk::moe
