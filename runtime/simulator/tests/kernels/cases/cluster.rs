//! Clusters: correct kernels, and the mistakes that must be found.

use super::*;

const PAIR: Shape = Shape {
    ctas: 2,
    cluster: 2,
    ..SHAPE
};

cases! {
    "a multicast in a cluster": "multicast", Shape { threads: 64, box_rows: 32, bytes: MATRIX_BYTES, ..PAIR }, [] {
        "barriers that may not be initialised": ["mk::cluster_sync();  // barriers are there" => "__syncthreads();"],
            "barrier", ["no barrier was initialised"];
        "CTAs that end too early": ["mk::cluster_sync();  // no CTA is needed any more" => ""],
            "ended CTA", ["cluster_sync or wait", "mk::barrier_arrive_cluster"];
        "no wait for the other CTA": [
            "mk::barrier_init(free, 2)" => "mk::barrier_init(free, 1)",
            "mk::barrier_arrive_cluster(mk::cluster_address(free, other));" => ""
        ],
            "race", ["is written by TMA", "mk::tma_load_2d_multicast"];
        "a wait that does not see other CTAs": ["mk::barrier_try_wait_cluster(free" => "mk::barrier_try_wait(free"],
            "race", ["is written by TMA", "mk::tma_load_2d_multicast"];
        "an arrival that does not reach other CTAs": ["mk::barrier_arrive_cluster(" => "mk::barrier_arrive("],
            "barrier", ["of another CTA", "mk::barrier_arrive(mk::cluster_address"];
        "CTAs that do not exist": ["0b11)" => "0b111)"],
            "cluster", ["a cluster that has only 2 CTAs"];
    }
    "words in the shared memory of neighbours": "neighbours", Shape { bytes: 256, ..PAIR }, [] {
        "read before they are written": ["mk::cluster_sync();  // both have written" => ""],
            "uninitialised read", ["mk::load_shared(own)"];
        "the CTA may have ended": ["mk::cluster_sync();  // both have read" => ""],
            "ended CTA", ["mk::load_shared_cluster(there)"];
    }
}
