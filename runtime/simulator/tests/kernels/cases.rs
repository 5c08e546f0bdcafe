//! The table of kernels: each right, then its wrong relatives.

use super::lab::{Beside, MATRIX_BYTES, SHAPE, Shape};

/// A right kernel.
pub struct Case {
    pub name: &'static str,
    pub text: &'static str,
    pub edits: &'static [(&'static str, &'static str)],
    pub shape: Shape,
    pub beside: Option<Beside>,
    pub wrong: &'static [Wrong],
}

/// A mistake, and what is said of it.
pub struct Wrong {
    pub what: &'static str,
    pub edits: &'static [(&'static str, &'static str)],
    pub beside: Option<Beside>,
    /// Of the finding; `failure` if the kernel's failure says it.
    pub kind: &'static str,
    /// Words of the finding, lines of the kernel among them.
    pub says: &'static [&'static str],
}

const fn wrong(
    what: &'static str,
    edits: &'static [(&'static str, &'static str)],
    kind: &'static str,
    says: &'static [&'static str],
) -> Wrong {
    Wrong {
        what,
        edits,
        beside: None,
        kind,
        says,
    }
}

macro_rules! case {
    ($name:literal, $file:literal, $edits:expr, $shape:expr, $wrong:expr) => {
        Case {
            name: $name,
            text: include_str!(concat!("cu/", $file, ".cu")),
            edits: &$edits,
            shape: $shape,
            beside: None,
            wrong: &$wrong,
        }
    };
}

const TWO_CTAS: Shape = Shape { ctas: 2, ..SHAPE };
const TWO_RANKS: Shape = Shape { ranks: 2, ..SHAPE };
const PAIR: Shape = Shape {
    ctas: 2,
    cluster: 2,
    ..SHAPE
};
const PRODUCT: Shape = Shape {
    threads: 160,
    swizzle_bytes: 128,
    bytes: MATRIX_BYTES,
    ..SHAPE
};
const TRANSPOSED: Shape = Shape {
    transposed: true,
    ..PRODUCT
};

pub const CASES: &[Case] = &[
    case!(
        "a message between CTAs",
        "message",
        [],
        TWO_CTAS,
        [
            wrong(
                "stored without release",
                &[(
                    "mk::store_release_gpu(flag, 1)",
                    "mk::store_relaxed_sys(flag, 1)"
                )],
                "race",
                &[
                    "mk::store(words(args.output) + lane, mk::load(data + lane))",
                    "mk::store(data + lane,"
                ]
            ),
            wrong(
                "loaded without acquire",
                &[("mk::load_acquire_gpu(flag)", "mk::load_relaxed_sys(flag)")],
                "race",
                &[
                    "not ordered after an earlier write",
                    "mk::store(data + lane,"
                ]
            ),
            wrong(
                "published by one lane for itself",
                &[("__syncwarp();  // one lane publishes for all", "")],
                "race",
                &["mk::store(data + lane,"]
            ),
            wrong(
                "seen by one lane for itself",
                &[("__syncwarp();  // one lane has seen for all", "")],
                "race",
                &["mk::load(data + lane)"]
            ),
            wrong(
                "never sent",
                &[("if (lane == 0) mk::store_release_gpu(flag, 1);", "")],
                "deadlock",
                &[
                    "CTA 1 wait",
                    "ended already: CTA 0 of rank 0",
                    "mk::load_acquire_gpu(flag) != 1"
                ]
            ),
        ]
    ),
    case!(
        "slots between ranks",
        "ranks",
        [],
        Shape {
            calls: 3,
            ..TWO_RANKS
        },
        [
            wrong(
                "released at the scope of the GPU",
                &[("mk::store_release_sys(sent", "mk::store_release_gpu(sent")],
                "race",
                &["rank 1", "rank 0"]
            ),
            wrong(
                "acquired at the scope of the GPU",
                &[("mk::load_acquire_sys(sent)", "mk::load_acquire_gpu(sent)")],
                "race",
                &["rank 1", "rank 0"]
            ),
            wrong(
                "reused before it was read",
                &[(
                    "while (mk::load_acquire_sys(taken) != args.call - 1) __nanosleep(32);",
                    ""
                )],
                "race",
                &[
                    "is written, not ordered after an earlier read",
                    "mk::store(slot + lane,",
                    "mk::load(slot + lane)"
                ]
            ),
            wrong(
                "given back before it was read",
                &[(
                    "mk::store(words(args.output) + lane, mk::load(slot + lane));\n    __syncwarp();\n    if (lane == 0) mk::store_release_sys(taken, args.call);",
                    "if (lane == 0) mk::store_release_sys(taken, args.call);\n    mk::store(words(args.output) + lane, mk::load(slot + lane));"
                )],
                "race",
                &["mk::store(slot + lane,", "mk::load(slot + lane)"]
            ),
        ]
    ),
    case!(
        "relaxed accesses and fences",
        "fences",
        [],
        TWO_RANKS,
        [
            wrong(
                "no fence of the writer",
                &[("mk::fence_sys();  // of the writer", "")],
                "race",
                &["mk::load(data + lane)", "mk::store(data + lane,"]
            ),
            wrong(
                "no fence of the reader",
                &[("mk::fence_sys();  // of the reader", "")],
                "race",
                &["mk::load(data + lane)", "mk::store(data + lane,"]
            ),
            wrong(
                "a fence that reaches the GPU alone",
                &[("mk::fence_sys();  // of the writer", "mk::fence_gpu();")],
                "race",
                &["mk::load(data + lane)", "mk::store(data + lane,"]
            ),
        ]
    ),
    case!(
        "words",
        "words",
        [],
        Shape {
            bytes: 4096,
            ..TWO_CTAS
        },
        [
            wrong(
                "two writers of one word",
                &[("args.output) + half * 256", "args.output)")],
                "race",
                &[
                    "is written, not ordered after an earlier write",
                    "CTA 0",
                    "CTA 1",
                    "mk::store(to + i"
                ]
            ),
            wrong(
                "a constant that the kernel writes",
                &[
                    (
                        "const u8* source = args.input",
                        "__syncwarp();\n  const u8* source = args.output"
                    ),
                    ("+ half * 2048 + 1024;\n  u8*", "+ half * 2048;\n  u8*")
                ],
                "read of a constant",
                &["ld.global.nc", "mk::load_vec16(source", "mk::store(to + i"]
            ),
            wrong(
                "a read of what nobody wrote",
                &[("u64*>(args.input)", "u64*>(args.output)")],
                "uninitialised read",
                &["mk::load(from + i)"]
            ),
            wrong(
                "a read out of bounds",
                &[("mk::load(from + i)", "mk::load(from + i + 1000)")],
                "failure",
                &["load out of bounds", "8192 bytes"]
            ),
            wrong(
                "a write out of bounds",
                &[("mk::store(to + i,", "mk::store(to - 1 + i,")],
                "failure",
                &["store out of bounds"]
            ),
            wrong(
                "a plain access",
                &[("mk::load(from + i)", "from[i]")],
                "plain access",
                &["without a primitive", "from[i]", "rank 0, CTA"]
            ),
            wrong(
                "a division by zero",
                &[("mk::load(from + i)", "mk::load(from + i) / args.rank")],
                "arithmetic",
                &["divided by zero", "/ args.rank"]
            ),
        ]
    ),
    case!(
        "named barriers",
        "named",
        [],
        Shape {
            threads: 96,
            bytes: 256,
            ..SHAPE
        },
        [
            wrong(
                "none",
                &[("mk::sync_named(1, 64);", "")],
                "race",
                &["shared memory", "mk::load_shared(smem"]
            ),
            wrong(
                "of one warp",
                &[("mk::sync_named(1, 64);", "mk::sync_named(1, 32);")],
                "race",
                &["shared memory"]
            ),
            wrong(
                "two of one name",
                &[("mk::sync_named(2, 32);", "mk::sync_named(1, 32);")],
                "named barrier",
                &["mk::sync_named(1, 64)", "mk::sync_named(1, 32)"]
            ),
            wrong(
                "a name that is none",
                &[("mk::sync_named(1, 64);", "mk::sync_named(16, 64);")],
                "named barrier",
                &["barrier 16", "mk::sync_named(16, 64)"]
            ),
            wrong(
                "too many awaited",
                &[("mk::sync_named(1, 64);", "mk::sync_named(1, 96);")],
                "deadlock",
                &["64 threads", "mk::sync_named(1, 96)"]
            ),
        ]
    ),
    case!(
        "barriers in shared memory",
        "barriers",
        [],
        Shape {
            threads: 64,
            bytes: 512,
            ..SHAPE
        },
        [
            wrong(
                "too many arrive",
                &[(
                    "if (lane == 0) mk::barrier_arrive(full",
                    "mk::barrier_arrive(full"
                )],
                "barrier over-arrived",
                &["arrival 2", "of 1", "mk::barrier_arrive(full"]
            ),
            wrong(
                "too few arrive",
                &[(
                    "mk::barrier_init(full + i * 8, 1)",
                    "mk::barrier_init(full + i * 8, 2)"
                )],
                "deadlock",
                &["lacks 1 of 2 arrivals", "wait(full"]
            ),
            wrong(
                "the wrong phase",
                &[(
                    "wait(full + ring.stage * 8, ring.parity)",
                    "wait(full + ring.stage * 8, ring.parity ^ 1)"
                )],
                "uninitialised read",
                &["mk::load_shared(buffer)"]
            ),
            wrong(
                "a buffer that is not free",
                &[("wait(free + ring.stage * 8, ring.parity ^ 1)", "")],
                "race",
                &["mk::store_shared(buffer", "mk::load_shared(buffer)"]
            ),
            wrong(
                "nobody knows that they are there",
                &[("__syncthreads();", "")],
                "barrier",
                &["no barrier was initialised"]
            ),
            wrong(
                "an arrival before the words",
                &[(
                    "__syncwarp();\n      if (lane == 0) mk::barrier_arrive(full",
                    "if (lane == 0) mk::barrier_arrive(full"
                )],
                "race",
                &["mk::store_shared(buffer"]
            ),
            wrong(
                "out of bounds",
                &[("smem + ring.stage * 128", "smem + 20480 + ring.stage * 128")],
                "failure",
                &["out of bounds: shared memory has 20480 bytes"]
            ),
        ]
    ),
    case!(
        "matrices",
        "matrices",
        [],
        Shape {
            bytes: 512,
            ..SHAPE
        },
        [
            wrong(
                "loaded before all stored",
                &[(
                    "__syncwarp();\n  mk::load_matrix_x4(row, a, b, c, d);",
                    "mk::load_matrix_x4(row, a, b, c, d);"
                )],
                "race",
                &[
                    "mk::load_matrix_x4(row, a, b, c, d)",
                    "mk::store_matrix_x4(row, mk::load(from)"
                ]
            ),
            wrong(
                "rows off their boundary",
                &[("mk::lane_index() * 16;", "mk::lane_index() * 16 + 8;")],
                "alignment",
                &["not a multiple of 16", "mk::store_matrix_x4"]
            ),
            wrong(
                "lanes that are elsewhere",
                &[(
                    "__syncwarp();\n  mk::load_matrix_x4(row",
                    "if (mk::lane_index() < 7) __syncwarp();\n  mk::load_matrix_x4(row"
                )],
                "warp diverged",
                &["Sync", "mk::load_matrix_x4"]
            ),
        ]
    ),
    case!(
        "leaders",
        "leaders",
        [],
        Shape {
            threads: 64,
            ..SHAPE
        },
        [
            wrong(
                "lane 0 is not the leader",
                &[(
                    "if (leads) mk::barrier_arrive(full)",
                    "if (lane == 0) mk::barrier_arrive(full)"
                )],
                "race",
                &[
                    "mk::load_shared(smem + lane * 4)",
                    "mk::store_shared(smem + i * 4"
                ]
            ),
            wrong(
                "a shuffle of some lanes",
                &[(
                    "const u32 of_lane = mk::broadcast(own, i);",
                    "if (lane < 4) continue;\n      const u32 of_lane = mk::broadcast(own, i);"
                )],
                "deadlock",
                &["mk::broadcast(own, i)"]
            ),
        ]
    ),
    case!(
        "loads by TMA",
        "load",
        [],
        Shape {
            threads: 64,
            bytes: MATRIX_BYTES,
            ..SHAPE
        },
        [
            wrong(
                "into a place that is read",
                &[("wait(free, round + 1);", "")],
                "race",
                &[
                    "is written by TMA",
                    "mk::tma_load_2d(smem",
                    "mk::load_shared(smem + i * 4)"
                ]
            ),
            wrong(
                "TMA does not know the barrier",
                &[("mk::fence_barrier_init();", "")],
                "missing fence",
                &["fence_barrier_init", "mk::tma_load_2d"]
            ),
            wrong(
                "more bytes than announced",
                &[(
                    "mk::barrier_expect(full, 8192)",
                    "mk::barrier_expect(full, 4096)"
                )],
                "deadlock",
                &["-4096 bytes", "wait(full, round)"]
            ),
            wrong(
                "to the end of shared memory",
                &[("mk::tma_load_2d(smem,", "mk::tma_load_2d(smem + 16384,")],
                "failure",
                &["tensor load of 8192 bytes", "out of bounds"]
            ),
            wrong(
                "of which nobody waits",
                &[(
                    "wait(full, round);\n      for (u32 i = lane; i < 2048; i += mk::kWarp)",
                    "if (round == 0) wait(full, 0);\n      for (u32 i = lane; round == 0 && i < 2048; i += mk::kWarp)"
                )],
                "copy left behind",
                &["mk::tma_load_2d"]
            ),
        ]
    ),
    case!(
        "stores by TMA",
        "store",
        [],
        Shape {
            bytes: MATRIX_BYTES,
            ..SHAPE
        },
        [
            wrong(
                "TMA does not know the words",
                &[("mk::fence_proxy_async_shared();", "")],
                "missing proxy fence",
                &["mk::tma_store_bytes", "mk::store_shared(smem + i * 4"]
            ),
            wrong(
                "words that TMA still reads",
                &[("mk::tma_wait_read<0>();", "")],
                "race",
                &["mk::store_shared(smem + i * 4", "mk::tma_store_bytes"]
            ),
            wrong(
                "words that nobody wrote",
                &[(
                    "mk::store_shared(smem + i * 4",
                    "mk::store_shared(smem + 4096 + i * 4"
                )],
                "uninitialised read",
                &["mk::tma_store_bytes"]
            ),
            wrong(
                "out of bounds",
                &[(
                    "args.output + part * 2048",
                    "args.output + 16 + part * 2048"
                )],
                "failure",
                &["a bulk copy out of bounds"]
            ),
            wrong(
                "the CTA ends before TMA has read",
                &[
                    (
                        "for (u32 part = 0; part < 4;",
                        "for (u32 part = 3; part < 4;"
                    ),
                    ("mk::tma_wait_read<0>();", "")
                ],
                "copy left behind",
                &["mk::tma_store_bytes"]
            ),
        ]
    ),
    case!(
        "both ways of access to global memory",
        "relay",
        [],
        Shape {
            ctas: 3,
            bytes: MATRIX_BYTES,
            ..SHAPE
        },
        [
            wrong(
                "published before TMA has written",
                &[(
                    "mk::tma_wait<0>();\n    mk::store_release_gpu",
                    "mk::tma_wait_read<0>();\n    mk::store_release_gpu"
                )],
                "race",
                &["mk::load(words(first) + i)", "mk::tma_store_bytes(first"]
            ),
            wrong(
                "TMA does not know what was acquired",
                &[("mk::fence_proxy_async();", "")],
                "missing proxy fence",
                &[
                    "mk::tma_load_bytes(smem, second",
                    "mk::store(words(second) + i"
                ]
            ),
            wrong(
                "a fence for shared memory alone",
                &[(
                    "mk::fence_proxy_async();",
                    "mk::fence_proxy_async_shared();"
                )],
                "missing proxy fence",
                &["mk::tma_load_bytes(smem, second"]
            ),
        ]
    ),
    case!(
        "products, B along N",
        "product",
        [],
        PRODUCT,
        [
            wrong(
                "no fence before them",
                &[("mk::mma_fence();", "")],
                "missing fence",
                &["no wgmma.fence", "descriptor<kMnMajor>(b + slice)"]
            ),
            wrong(
                "tensor cores do not know A",
                &[("mk::fence_proxy_async_shared();", "")],
                "missing proxy fence",
                &[
                    "descriptor<kMnMajor>(b + slice)",
                    "mk::store_shared(a + i * 4"
                ]
            ),
            wrong(
                "B is overwritten before they are done",
                &[(
                    "mk::mma_wait<0>();\n    if (mk::lane_index() == 0) mk::barrier_arrive(free);",
                    "if (mk::lane_index() == 0) mk::barrier_arrive(free);\n    mk::mma_wait<0>();"
                )],
                "race",
                &["mk::tma_load_2d(b", "descriptor<kMnMajor>(b + slice)"]
            ),
            wrong(
                "a thread with another operand",
                &[(
                    "descriptor<kMnMajor>(b + slice)",
                    "descriptor<kMnMajor>(b + slice + (threadIdx.x == 77 ? 1024 : 0))"
                )],
                "warpgroup diverged",
                &["another of its warpgroup"]
            ),
            wrong(
                "a warp that does not commit",
                &[("mk::mma_commit();", "if (warp != 2) mk::mma_commit();")],
                "deadlock",
                &["products"]
            ),
        ]
    ),
    case!(
        "products, rows of 64 bytes, B along N",
        "product",
        [("kRow = 128", "kRow = 64")],
        Shape {
            swizzle_bytes: 64,
            ..PRODUCT
        },
        []
    ),
    case!(
        "products, rows of 32 bytes, B along N",
        "product",
        [("kRow = 128", "kRow = 32")],
        Shape {
            swizzle_bytes: 32,
            ..PRODUCT
        },
        []
    ),
    case!(
        "products, B along K",
        "product",
        [("kMnMajor = true", "kMnMajor = false")],
        TRANSPOSED,
        []
    ),
    case!(
        "products, rows of 64 bytes, B along K",
        "product",
        [
            ("kMnMajor = true", "kMnMajor = false"),
            ("kRow = 128", "kRow = 64")
        ],
        Shape {
            swizzle_bytes: 64,
            ..TRANSPOSED
        },
        []
    ),
    case!(
        "products, rows of 32 bytes, B along K",
        "product",
        [
            ("kMnMajor = true", "kMnMajor = false"),
            ("kRow = 128", "kRow = 32")
        ],
        Shape {
            swizzle_bytes: 32,
            ..TRANSPOSED
        },
        []
    ),
    case!(
        "a multicast in a cluster",
        "multicast",
        [],
        Shape {
            threads: 64,
            box_rows: 32,
            bytes: MATRIX_BYTES,
            ..PAIR
        },
        [
            wrong(
                "barriers that may not be there",
                &[(
                    "mk::cluster_sync();  // barriers are there",
                    "__syncthreads();"
                )],
                "barrier",
                &["no barrier was initialised"]
            ),
            wrong(
                "CTAs that end too early",
                &[("mk::cluster_sync();  // no CTA is needed any more", "")],
                "ended CTA",
                &["cluster_sync or wait", "mk::barrier_arrive_cluster"]
            ),
            wrong(
                "the other CTA is not asked",
                &[
                    ("mk::barrier_init(free, 2)", "mk::barrier_init(free, 1)"),
                    (
                        "mk::barrier_arrive_cluster(mk::cluster_address(free, other));",
                        ""
                    )
                ],
                "race",
                &[
                    "is written by TMA",
                    "mk::tma_load_2d_multicast",
                    "mk::load_shared(smem + i * 4)"
                ]
            ),
            wrong(
                "a wait that does not see other CTAs",
                &[(
                    "mk::barrier_try_wait_cluster(free",
                    "mk::barrier_try_wait(free"
                )],
                "race",
                &["mk::tma_load_2d_multicast", "mk::load_shared(smem + i * 4)"]
            ),
            wrong(
                "an arrival that does not reach other CTAs",
                &[("mk::barrier_arrive_cluster(", "mk::barrier_arrive(")],
                "barrier",
                &["another CTA's", "mk::barrier_arrive(mk::cluster_address"]
            ),
            wrong(
                "CTAs that are not there",
                &[("0b11)", "0b111)")],
                "cluster",
                &["a cluster that has 2"]
            ),
        ]
    ),
    case!(
        "words in the shared memory of neighbours",
        "neighbours",
        [],
        Shape { bytes: 256, ..PAIR },
        [
            wrong(
                "read before they are written",
                &[("mk::cluster_sync();  // both have written", "")],
                "uninitialised read",
                &["mk::load_shared(own)"]
            ),
            wrong(
                "the CTA may have ended",
                &[("mk::cluster_sync();  // both have read", "")],
                "ended CTA",
                &["mk::load_shared_cluster(there)"]
            ),
        ]
    ),
    case!(
        "waits with a deadline",
        "watch",
        [],
        TWO_RANKS,
        [wrong(
            "too little is sent",
            &[(
                "mk::store_release_sys(flag, 8)",
                "mk::store_release_sys(flag, 7)"
            )],
            "deadlock",
            &[
                "in role load wait for",
                "number 24, from rank 0: wanted 8, seen 7",
                "mk::wait_flag(watch, flag"
            ]
        ),]
    ),
    Case {
        name: "copies by the host",
        text: include_str!("cu/host.cu"),
        edits: &[],
        shape: SHAPE,
        beside: Some(Beside { in_order: true }),
        wrong: &[Wrong {
            what: "a flag before the copy",
            edits: &[],
            beside: Some(Beside { in_order: false }),
            kind: "race",
            says: &[
                "a copy of the host's",
                "mk::load(words(args.workspaces[0]) + lane)",
            ],
        }],
    },
];
