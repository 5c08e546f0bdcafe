//! Copies by TMA: correct kernels, and the mistakes that must be found.

use super::*;

cases! {
    "loads by TMA": "load", Shape { threads: 64, bytes: MATRIX_BYTES, ..SHAPE }, [] {
        "into memory that is still read": ["WAIT(free, round + 1)" => "if (round == 1) WAIT(full, 0)"],
            "race", ["is written by TMA", "mk::tma_load_2d(smem", "mk::load_shared(smem + i * 4)"];
        "every lane loads": ["if (mk::elect_one()) {" => "{"],
            "barrier over-arrived", ["arrival 2", "expects 1 in phase 0", "mk::barrier_expect(full, 8192)"];
        "the barrier is not visible to TMA": ["mk::fence_barrier_init();" => ""],
            "missing fence", ["fence_barrier_init", "mk::tma_load_2d"];
        "more bytes than announced": ["mk::barrier_expect(full, 8192)" => "mk::barrier_expect(full, 4096)"],
            "deadlock", ["got 4096 bytes more than were announced", "WAIT(full, round)"];
        "to the end of shared memory": ["mk::tma_load_2d(smem," => "mk::tma_load_2d(smem + 16384,"],
            "failure", ["tensor load of 8192 bytes", "out of bounds"];
        "no thread waits for the last load": [
            "WAIT(full, round);\n      for (u32 i = lane; i < 2048; i += mk::kWarp)"
                => "if (round == 0) WAIT(full, 0);\n      for (u32 i = lane; round == 0 && i < 2048; i += mk::kWarp)"
        ],
            "copy left behind", ["mk::tma_load_2d"];
    }
    "stores by TMA": "store", Shape { bytes: MATRIX_BYTES, ..SHAPE }, [] {
        "the words are not visible to TMA": ["mk::fence_proxy_async_shared();" => ""],
            "missing proxy fence", ["mk::tma_store_bytes", "mk::store_shared(smem + i * 4"];
        "a fence for global memory alone": ["mk::fence_proxy_async_shared();" => "mk::fence_proxy_async();"],
            "missing proxy fence", ["mk::tma_store_bytes", "mk::store_shared(smem + i * 4"];
        "words that TMA still reads": ["mk::tma_wait_read<0>();" => ""],
            "race", ["mk::store_shared(smem + i * 4", "mk::tma_store_bytes"];
        "words that were never written": ["mk::store_shared(smem + i * 4" => "mk::store_shared(smem + 4096 + i * 4"],
            "uninitialised read", ["mk::tma_store_bytes"];
        "out of bounds": ["args.output + part * 2048" => "args.output + 16 + part * 2048"],
            "failure", ["a bulk copy out of bounds"];
        "the CTA ends before they are complete": ["if (lane == 0) mk::tma_wait<0>();" => ""],
            "copy left behind", ["mk::tma_store_bytes"];
    }
    "ordinary accesses and TMA in global memory": "relay", Shape { ctas: 3, bytes: MATRIX_BYTES, ..SHAPE }, [] {
        "published before TMA has written": [
            "mk::tma_wait<0>();\n    mk::store_release_gpu" => "mk::tma_wait_read<0>();\n    mk::store_release_gpu"
        ],
            "race", ["mk::load(words(first) + i)", "mk::tma_store_bytes(first"];
        "no proxy fence after the acquire": ["mk::fence_proxy_async();" => ""],
            "missing proxy fence", ["mk::tma_load_bytes(smem, second", "mk::store(words(second) + i"];
        "a fence for shared memory alone": ["mk::fence_proxy_async();" => "mk::fence_proxy_async_shared();"],
            "missing proxy fence", ["mk::tma_load_bytes(smem, second"];
    }
}
