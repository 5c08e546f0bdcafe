//! Mistakes planted in kernels, one at a time: the simulator finds each. The kernels as they are raise no alarm.
//!
//! What it cannot find is listed in runtime/simulator/README.md.

mod simulated;

use mkernel::{BLayout, Dim, Epilogue, KernelConfig, Op, Shape, Transfer, Tuning};
use simulated::{Job, always_right, in_parallel};
use std::sync::Mutex;

/// Seeds within which a mistake must be found.
const SEEDS_TO_FIND: u64 = 50;
/// Seeds for which a kernel without a mistake must be right.
const SEEDS_WITHOUT_ALARM: u64 = 200;

/// The kernels in which mistakes are planted; each has what its mistakes need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kernel {
    /// A warp of each CTA pushes; several rounds of tiles through a ring that is reused.
    Push,
    /// A communication CTA pushes through slots of shared memory.
    Slots,
    /// Rows longer than a slot.
    LongRows,
    /// Tiles whose sum CTAs share.
    Parts,
    /// B as [K, N].
    Kn,
    /// Tiles straddle shards, every dimension has a tail.
    Tails,
}

const KERNELS: [Kernel; 6] = [
    Kernel::Push,
    Kernel::Slots,
    Kernel::LongRows,
    Kernel::Parts,
    Kernel::Kn,
    Kernel::Tails,
];

impl Kernel {
    fn job(self) -> Job {
        let large = Tuning {
            tile_m: Some(128),
            tile_n: Some(256),
            ..Tuning::default()
        };
        let push = |comm_ctas| Tuning {
            transfer: Some(Transfer::SmPush),
            comm_ctas: Some(comm_ctas),
            ..Tuning::default()
        };
        let (world, (m, n, k), b_layout, tuning, sms) = match self {
            Self::Push => {
                let tuning = Tuning {
                    k_slices: Some(2),
                    ..push(0)
                };
                (
                    2,
                    (256, 512, 512),
                    BLayout::Nk,
                    Tuning {
                        tile_m: large.tile_m,
                        tile_n: large.tile_n,
                        ..tuning
                    },
                    2,
                )
            }
            Self::Slots => (2, (256, 128, 1024), BLayout::Nk, push(1), 3),
            Self::LongRows => {
                let tuning = Tuning {
                    k_slices: Some(1),
                    ..push(1)
                };
                (2, (16, 8, 10240), BLayout::Nk, tuning, 2)
            }
            Self::Parts => (
                2,
                (512, 512, 512),
                BLayout::Nk,
                Tuning {
                    tile_m: large.tile_m,
                    tile_n: large.tile_n,
                    ..push(0)
                },
                6,
            ),
            Self::Kn => (
                2,
                (256, 264, 256),
                BLayout::Kn,
                Tuning {
                    tile_m: large.tile_m,
                    tile_n: large.tile_n,
                    ..push(0)
                },
                3,
            ),
            Self::Tails => (4, (300, 72, 136), BLayout::Nk, push(0), 3),
        };
        let config = KernelConfig {
            name: None,
            op: Op::AgGemm,
            world,
            m: Dim::Static(m),
            n: Dim::Static(n),
            k: Dim::Static(k),
            b_layout,
            epilogue: Epilogue::default(),
            tuning,
        };
        Job::new(config, Shape { m, n, k }, sms)
    }
}

/// A mistake: what is replaced by what.
struct Mutation {
    name: &'static str,
    kernel: Kernel,
    edits: &'static [(&'static str, &'static str)],
}

const fn mutation(
    name: &'static str,
    kernel: Kernel,
    edits: &'static [(&'static str, &'static str)],
) -> Mutation {
    Mutation {
        name,
        kernel,
        edits,
    }
}

/// Defines a wait that does not acquire.
const RELAXED_WAIT: (&str, &str) = (
    "namespace cfg {",
    "namespace mk { inline void relaxed_wait(const Watch&, const u32* flag, const Awaited& what) {\n\
     while (static_cast<int>(load_relaxed_sys(flag) - what.wanted) < 0) __nanosleep(32); } }\n\nnamespace cfg {",
);

const WAIT_FREE: &str = "      mk::wait_barrier(watch, smem.stage_free(ring.stage), ring.parity ^ 1, mk::kLoad, mk::kStageFree, ring.stage);\n";
const WAIT_FULL: &str = "      mk::wait_barrier(watch, smem.stage_full(ring.stage), ring.parity, mk::kMath, mk::kStageFull, ring.stage);\n";
const WAIT_OUT_FREE: &str = "      mk::wait_barrier(watch, smem.out_free(group, out.stage), out.parity ^ 1, mk::kMath, mk::kOutputFree, out.stage);\n";
const WAIT_OUT_FULL: &str = "      mk::wait_barrier(watch, smem.out_full(group, out.stage), out.parity, mk::kStore, mk::kOutputFull, out.stage);\n";
const WAIT_LOADED: &str =
    "      mk::wait_barrier(watch, loaded, parity, mk::kPush, mk::kStageFull, piece.chunk);\n";
const RELEASE_STAGE: &str = "      mk::mma_wait<0>();\n      if (lane == 0) mk::barrier_arrive(smem.stage_free(ring.stage));\n";
const RELEASE_STAGE_EARLY: &str = "      if (lane == 0) mk::barrier_arrive(smem.stage_free(ring.stage));\n      mk::mma_wait<0>();\n";

use Kernel::{Kn, LongRows, Parts, Push, Slots, Tails};

#[rustfmt::skip]
const MUTATIONS: &[Mutation] = &[
    // The ring of stages.
    mutation("too few bytes announced", Push, &[("cfg::kStageBytesA + cfg::kStageBytesB", "cfg::kStageBytesA")]),
    mutation("too many bytes announced", Push, &[("cfg::kStageBytesA + cfg::kStageBytesB", "cfg::kStageBytesA + 2 * cfg::kStageBytesB")]),
    mutation("wrong phase of a free stage", Push, &[("ring.parity ^ 1", "ring.parity")]),
    mutation("no wait for a free stage", Push, &[(WAIT_FREE, "")]),
    mutation("no wait for a full stage", Push, &[(WAIT_FULL, "")]),
    mutation("stage released before the product is done", Push, &[(RELEASE_STAGE, RELEASE_STAGE_EARLY)]),
    mutation("stage released by seven warps", Push, &[("mk::barrier_init(smem.stage_free(stage), 8);", "mk::barrier_init(smem.stage_free(stage), 7);")]),
    mutation("stage released by nine warps", Push, &[("mk::barrier_init(smem.stage_free(stage), 8);", "mk::barrier_init(smem.stage_free(stage), 9);")]),
    mutation("ring advanced by one role only", Push, &[("      ring.advance();\n    }\n  }\n}", "    }\n  }\n}")]),
    mutation("barriers unknown to TMA", Push, &[("  mk::fence_barrier_init();\n", "")]),
    mutation("no barrier of the CTA after initialising", Push, &[("  if (threadIdx.x == 0) init_barriers(smem);\n  __syncthreads();\n", "  if (threadIdx.x == 0) init_barriers(smem);\n")]),
    // Products.
    mutation("product waited for one group late", Push, &[("mk::mma_wait<0>();", "mk::mma_wait<1>();")]),
    mutation("no fence of the registers", Push, &[("      mk::mma_fence();\n", "")]),
    mutation("products never committed", Push, &[("      mk::mma_commit();\n", "")]),
    mutation("descriptor of A does not advance", Push, &[("a + k16 * mk::kDescriptorStep<false>", "a")]),
    mutation("descriptor of B advances as if of the other major", Push, &[("b + k16 * mk::kDescriptorStep<cfg::kBMnMajor>", "b + k16 * mk::kDescriptorStep<!cfg::kBMnMajor>")]),
    mutation("swapped halves of A", Push, &[("smem.a(ring.stage) + group * cfg::kGroupBytesA", "smem.a(ring.stage) + (1 - group) * cfg::kGroupBytesA")]),
    mutation("sums not started at zero", Push, &[("step != unit.first || k16 != 0", "true")]),
    mutation("wrong leading offset of a descriptor", Kn, &[("mk::mma_descriptor<cfg::kBMnMajor>(smem.b(ring.stage) + group * cfg::kGroupBytesB)", "(mk::mma_descriptor<cfg::kBMnMajor>(smem.b(ring.stage) + group * cfg::kGroupBytesB) ^ (u64{(8192 ^ 4096) >> 4} << 16))")]),
    mutation("wrong stride offset of a descriptor", Kn, &[("mk::mma_descriptor<cfg::kBMnMajor>(smem.b(ring.stage) + group * cfg::kGroupBytesB)", "(mk::mma_descriptor<cfg::kBMnMajor>(smem.b(ring.stage) + group * cfg::kGroupBytesB) ^ (u64{(1024 ^ 512) >> 4} << 32))")]),
    mutation("descriptor without its swizzle", Push, &[("mk::mma_descriptor<false>(smem.a(ring.stage) + group * cfg::kGroupBytesA)", "(mk::mma_descriptor<false>(smem.a(ring.stage) + group * cfg::kGroupBytesA) ^ 3ull << 62)")]),
    mutation("parts of B swapped", Kn, &[("unit.tile.col * cfg::kTileN + part * 64", "unit.tile.col * cfg::kTileN + (part ^ 1) * 64")]),
    // The output buffers.
    mutation("output seen by three warps", Push, &[("mk::barrier_init(smem.out_full(group, buffer), 4);", "mk::barrier_init(smem.out_full(group, buffer), 3);")]),
    mutation("no proxy fence before the output is stored", Push, &[("      mk::fence_proxy_async_shared();\n", "")]),
    mutation("warp not together before the output is stored", Push, &[("      mk::fence_proxy_async_shared();\n      __syncwarp();\n", "      mk::fence_proxy_async_shared();\n")]),
    mutation("no wait for a free output buffer", Push, &[(WAIT_OUT_FREE, "")]),
    mutation("no wait for a full output buffer", Push, &[(WAIT_OUT_FULL, "")]),
    mutation("output buffer freed while it is read", Push, &[("mk::tma_wait_read<1>();", "mk::tma_wait_read<2>();")]),
    mutation("wrong output buffer freed", Push, &[("smem.out_free(group, out.stage ^ 1)", "smem.out_free(group, out.stage)")]),
    mutation("output not swizzled", Push, &[("((lane / 16 + 2 * j) ^ (row % 8)) * 16", "(lane / 16 + 2 * j) * 16")]),
    mutation("kernel left before its stores are done", Push, &[("  mk::tma_wait<0>();\n}\n", "}\n")]),
    mutation("wait for reads where writes are meant", Push, &[("  mk::tma_wait<0>();\n}\n", "  mk::tma_wait_read<0>();\n}\n")]),
    // Rows of peers.
    mutation("rows not awaited", Push, &[("  if (first || step % cfg::kSliceSteps == 0) wait_rows(args, watch, tile.row, step / cfg::kSliceSteps);\n", "")]),
    mutation("only the first slice of K awaited", Push, &[("if (first || step % cfg::kSliceSteps == 0) wait_rows", "if (first) wait_rows")]),
    mutation("no proxy fence behind the flag", Push, &[("  mk::fence_proxy_async();\n}\n\n// Columns", "}\n\n// Columns")]),
    mutation("flag not acquired", Push, &[RELAXED_WAIT, ("    mk::wait_flag(watch, flag_at(args.workspaces[args.rank], index),", "    mk::relaxed_wait(watch, flag_at(args.workspaces[args.rank], index),")]),
    mutation("flag of another source awaited", Push, &[("const u32 source = row / cfg::kShardRows;\n    const u32 chunk", "const u32 source = (row / cfg::kShardRows + 1) % cfg::kWorld;\n    const u32 chunk")]),
    mutation("flag of the first call awaited", Push, &[("watch.epoch * cfg::kArrivals}", "cfg::kArrivals}")]),
    mutation("epoch not advanced", Push, &[("mk::store(&state->epoch, watch.epoch);", ";")]),
    mutation("warp not together before the flag", Push, &[("    __syncwarp();\n    const u32 peer", "    const u32 peer")]),
    mutation("no fence before the flag", Push, &[("      mk::fence_sys();\n      mk::add", "      mk::add")]),
    mutation("fence of this GPU where all are meant", Push, &[("      mk::fence_sys();\n      mk::add", "      mk_calls->fence(mk::sim::kFenceThread, mk::sim::kGpu, mk::sim::place());\n      mk::add")]),
    mutation("flag before the data", Push, &[("    if (piece.row < own_rows) push_piece", "    if (const u32 to = mk::lane_index(); to < cfg::kWorld && to != args.rank) {\n      mk::fence_sys();\n      mk::add_relaxed_sys(flag_at(args.workspaces[to], flag), 1);\n    }\n    if (piece.row < own_rows) push_piece"), ("      // Orders the stores of the whole warp before the counts.\n      mk::fence_sys();\n      mk::add_relaxed_sys(flag_at(args.workspaces[peer], flag), 1);\n", "")]),
    mutation("pushed to the same buffer in every call", Push, &[("const u64 gathered_row = u64{watch.epoch % 2}", "const u64 gathered_row = u64{0}")]),
    mutation("loaded from the same buffer in every call", Push, &[("tile.row * cfg::kTileM, watch.epoch % 2);", "tile.row * cfg::kTileM, 0);")]),
    mutation("exit not counted with release and acquire", Push, &[("mk::fetch_add_acq_rel_gpu(&state->exited, 1)", "mk::sim::rmw(&state->exited, 1u, mk::sim::kAdd, mk::sim::kRelaxed, mk::sim::kGpu)")]),
    mutation("tiles shifted by one", Push, &[("return Tile{row_tile_at(first + within % rows, rank), within / rows};", "return Tile{row_tile_at(first + within % rows, rank), (within / rows + 1) % (cfg::kColTiles + 1)};")]),
    mutation("tail of the shard not masked", Tails, &[("mk::min(cfg::kPieceRows, own_rows - piece.row)", "cfg::kPieceRows")]),
    mutation("row tiles start at the wrong shard", Tails, &[("(position + rank * cfg::kShardRows / cfg::kTileM) % cfg::kRowTiles", "mk::min(position + 1, cfg::kRowTiles - 1)")]),
    // Slots of shared memory.
    mutation("slot written while it is stored", LongRows, &[("      mk::tma_wait_read<0>();  // the slot is free\n", "")]),
    mutation("flag when the slot was read", Slots, &[("  mk::tma_wait<0>();\n  mk::fence_proxy_async();", "  mk::tma_wait_read<0>();\n  mk::fence_proxy_async();")]),
    mutation("bytes of one row announced", Slots, &[("mk::barrier_expect(loaded, slot_rows * bytes);", "mk::barrier_expect(loaded, bytes);")]),
    mutation("phase of the slot not advanced", Slots, &[("      parity ^= 1;\n", "")]),
    mutation("slot not awaited", Slots, &[(WAIT_LOADED, "")]),
    mutation("no fence before the counts", Slots, &[("    mk::fence_sys();\n", "")]),
    mutation("wrong slot", Slots, &[("smem.base + warp * cfg::kSlotBytes", "smem.base + (warp ^ 1) * cfg::kSlotBytes / 2")]),
    // Sums that CTAs share.
    mutation("warp not together before its partial is counted", Parts, &[("  __syncwarp();\n  if (mk::lane_index() == 0) {\n    u32* flag", "  if (mk::lane_index() == 0) {\n    u32* flag")]),
    mutation("warp not together after the partials are counted", Parts, &[("watch.epoch * cfg::kParts});\n  }\n  __syncwarp();", "watch.epoch * cfg::kParts});\n  }")]),
    mutation("partials not awaited", Parts, &[("    mk::wait_flag(watch, flag, mk::Awaited{mk::kMath, mk::kPartial, watch.rank, unit.tail, watch.epoch * cfg::kParts});\n", "")]),
    mutation("own partial added again", Parts, &[("at((unit.part + other) % cfg::kParts, sub)", "at(unit.part, sub)")]),
    mutation("warps share a flag", Parts, &[("(unit.tail * 8 + warp) * cfg::kFlagStride", "(unit.tail * 8) * cfg::kFlagStride")]),
    mutation("partial counted without release", Parts, &[("mk::add_release_gpu(flag, 1);", "mk::sim::rmw(flag, 1u, mk::sim::kAdd, mk::sim::kRelaxed, mk::sim::kGpu);")]),
];

#[test]
fn every_mistake_is_found() {
    let missed = Mutex::new(Vec::new());
    in_parallel(MUTATIONS, |mutation| {
        let owned = |(from, to): &(&str, &str)| ((*from).to_owned(), (*to).to_owned());
        let mut job = mutation.kernel.job();
        job.edits = mutation.edits.iter().map(owned).collect();
        match (0..SEEDS_TO_FIND).find_map(|seed| Some((seed, job.run(seed).err()?))) {
            Some((seed, failure)) => {
                let line = failure
                    .lines()
                    .find(|line| !line.contains("simulator found"))
                    .unwrap_or("");
                println!("{}: seed {seed}: {line}", mutation.name);
                // A text that does not compile, or a replacement that finds nothing, proves nothing.
                if failure.contains("does not compile") || failure.contains("a rank panicked") {
                    missed
                        .lock()
                        .expect("no panic")
                        .push(format!("{}: {failure}", mutation.name));
                }
            }
            None => missed
                .lock()
                .expect("no panic")
                .push(format!("{}: not found", mutation.name)),
        }
    });
    let missed = missed.into_inner().expect("no panic");
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn kernels_as_they_are_raise_no_alarm() {
    let shards: Vec<(Kernel, u64)> = KERNELS
        .iter()
        .flat_map(|kernel| (0..8).map(move |shard| (*kernel, shard)))
        .collect();
    let failures = Mutex::new(Vec::new());
    in_parallel(&shards, |(kernel, shard)| {
        let seeds = SEEDS_WITHOUT_ALARM / 8;
        let name = format!("{kernel:?}");
        if let Err(failure) = always_right(&name, &kernel.job(), shard * seeds..(shard + 1) * seeds)
        {
            failures.lock().expect("no panic").push(failure);
        }
    });
    let failures = failures.into_inner().expect("no panic");
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
