//! The warps of a CTA: barriers, shared memory, and operations that lanes perform together.

use super::*;

cases! {
    "named barriers": "named", Shape { threads: 96, bytes: 256, ..SHAPE }, [] {
        "no barrier": ["mk::sync_named(1, 64);" => ""],
            "race", ["shared memory", "mk::load_shared(smem"];
        "a barrier of one warp": ["mk::sync_named(1, 64);" => "mk::sync_named(1, 32);"],
            "race", ["shared memory"];
        "two barriers with the same number": ["mk::sync_named(2, 32);" => "mk::sync_named(1, 32);"],
            "named barrier", ["mk::sync_named(1, 64)", "mk::sync_named(1, 32)"];
        "a number that does not exist": ["mk::sync_named(1, 64);" => "mk::sync_named(16, 64);"],
            "named barrier", ["barrier 16", "mk::sync_named(16, 64)"];
        "a barrier for too many threads": ["mk::sync_named(1, 64);" => "mk::sync_named(1, 96);"],
            "deadlock", ["64 threads", "mk::sync_named(1, 96)"];
    }
    "turns": "turns", Shape { threads: 64, bytes: 512, ..SHAPE }, [] {
        "the reader does not wait": ["mk::sync_named(1, 64);" => "mk::arrive_named(1, 64);"],
            "race", ["mk::load_shared(shared_start()", "mk::store_shared(buffer"];
        "the buffer is not free": ["if (round > 0) mk::sync_named(2, 64);" => "if (round > 0) mk::arrive_named(2, 64);"],
            "race", ["mk::load_shared(shared_start()", "mk::store_shared(buffer"];
        "no thread arrives": ["mk::arrive_named(1, 64);" => ""],
            "deadlock", ["64 threads", "mk::sync_named(2, 64)"];
        "an arrival before the store": [
            "mk::arrive_named(1, 64);" => "",
            "mk::store_shared(buffer" => "mk::arrive_named(1, 64);\n      mk::store_shared(buffer"
        ],
            "race", ["mk::load_shared(shared_start()", "mk::store_shared(buffer"];
        "different numbers of threads": ["mk::arrive_named(1, 64);" => "mk::arrive_named(1, 96);"],
            "named barrier", ["mk::arrive_named(1, 96)", "mk::sync_named(1, 64)"];
    }
    "copies of a thread": "copies", Shape { threads: 64, bytes: 8192, ..SHAPE }, [] {
        "not waited for": ["mk::copy_wait<1>();" => ""],
            "race", ["shared memory", "mk::copy_async(smem", "mk::load_shared_vec16(from)"];
        "one too few waited for": ["mk::copy_wait<1>();" => "mk::copy_wait<2>();"],
            "race", ["shared memory", "mk::copy_async(smem"];
        "into memory that is still read": ["WAIT(free + state.stage * 8, state.phase ^ 1);" => ""],
            "race", ["mk::copy_async(smem", "mk::load_shared_vec16(from)"];
    }
    "regions": "regions", Shape { threads: 64, bytes: 8192, ..SHAPE }, [] {
        "an index that reaches another row": [
            "mk::store(Rows::at(threadIdx.x, col)" => "mk::store(Rows::at(0, threadIdx.x * 32 + col)"
        ],
            "index", ["of a dimension of 32 elements", "mk::store(Rows::at(0"];
    }
    "quads": "quads", SHAPE, [] {
        "lanes at another instruction": ["const float sum =" => "if (lane < 4) return;\n  const float sum ="],
            "deadlock", ["in quad_sum"];
    }
    "a barrier without a warp that has ended": "named", Shape { threads: 96, bytes: 256, ..SHAPE }, [
        "mk::sync_named(1, 64)" => "__syncthreads()",
        "mk::sync_named(2, 32)" => "return"
    ] {}
    "barriers in shared memory": "barriers", Shape { threads: 64, bytes: 512, ..SHAPE }, [] {
        "too many arrive": ["if (lane == 0) mk::barrier_arrive(full" => "mk::barrier_arrive(full"],
            "deadlock", ["phase 32", "WAIT(full"];
        "too few arrive": ["mk::barrier_init(full + i * 8, 1)" => "mk::barrier_init(full + i * 8, 2)"],
            "deadlock", ["lacks 1 of 2 arrivals", "WAIT(full"];
        "the wrong phase": ["WAIT(full + state.stage * 8, state.phase)" => "WAIT(full + state.stage * 8, state.phase ^ 1)"],
            "uninitialised read", ["mk::load_shared(buffer)"];
        "a buffer that is not free": ["WAIT(free + state.stage * 8, state.phase ^ 1)" => ""],
            "race", ["mk::store_shared(buffer", "mk::load_shared(buffer)"];
        "no synchronisation after the initialisation": ["__syncthreads();" => ""],
            "barrier", ["no barrier was initialised"];
        "an arrival before the stores": [
            "__syncwarp();\n      if (lane == 0) mk::barrier_arrive(full"
                => "if (lane == 0) mk::barrier_arrive(full"
        ],
            "race", ["mk::store_shared(buffer"];
        "out of bounds": ["smem + state.stage * 128" => "smem + 20480 + state.stage * 128"],
            "failure", ["out of bounds: shared memory has 20480 bytes"];
    }
    "matrices": "matrices", Shape { bytes: 512, ..SHAPE }, [] {
        "loaded before all stored": [
            "__syncwarp();\n  mk::load_matrix_x4(neighbour, a, b, c, d);"
                => "mk::load_matrix_x4(neighbour, a, b, c, d);"
        ],
            "race", ["mk::load_matrix_x4(neighbour, a, b, c, d)", "mk::store_matrix_x4(row, mk::load(from)"];
        "rows that are not aligned": ["+ lane * 16, neigh" => "+ lane * 16 + 8, neigh"],
            "alignment", ["not a multiple of 16", "mk::store_matrix_x4"];
        "lanes at another instruction": [
            "__syncwarp();\n  mk::load_matrix_x4(neigh"
                => "if (lane < 7) __syncwarp();\n  mk::load_matrix_x4(neigh"
        ],
            "warp diverged", ["Sync", "mk::load_matrix_x4"];
    }
    "floats": "floats", Shape { bytes: 1152, ..SHAPE }, [] {
        "loaded before all stored": ["  __syncwarp();\n  mk::store_vec16" => "  mk::store_vec16"],
            "race", ["mk::load_shared_vec16(smem", "mk::store_shared_float2(smem"];
        "an address that is not aligned": ["mk::store_shared_float2(smem + lane * 16, v.x" => "mk::store_shared_float2(smem + lane * 16 + 4, v.x"],
            "failure", ["store of 8 bytes", "not a multiple of its size"];
    }
    "leaders": "leaders", Shape { threads: 64, ..SHAPE }, [] {
        "lane 0 is not the leader": ["if (leads) mk::barrier_arrive(full)" => "if (lane == 0) mk::barrier_arrive(full)"],
            "race", ["mk::load_shared(smem + lane * 4)", "mk::store_shared(smem + i * 4"];
        "a shuffle of some lanes": [
            "const u32 of_lane = mk::broadcast(own, i);"
                => "if (lane < 4) continue;\n      const u32 of_lane = mk::broadcast(own, i);"
        ],
            "deadlock", ["mk::broadcast(own, i)"];
    }
}
