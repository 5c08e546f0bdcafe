//! NVIDIA H200 on an NVLink host: its figures, its rates, and its cost table.
//!
//! The table also serves other Hopper GPUs, whose rates follow from the rates of the H200 and the figures of their driver.
//! Comments name the measurements on H100 behind a value. `benches/measured.toml` has measured candidates that a test compares
//! with the model.

use crate::arch::{Arch, Backend};
use crate::cost::{
    AttentionCosts, CollectiveCosts, CostTable, DispatchCosts, GemmCosts, PushCosts,
};
use crate::device::{Device, Hardware};

impl Hardware {
    /// The driver's report of the GPU on which the rates of [`Device::h200`] were measured.
    pub const H200: Self = Self {
        sm_count: 132,
        sm_clock_khz: 1_980_000,
        memory_clock_khz: 3_201_000,
        memory_bus_bits: 6016,
        nvlinks: 18,
        // GPCs have 16 or 18 SMs, as on the H100.
        resident_clusters: [66, 39, 30, 22, 17, 15, 15],
    };
}

impl Device {
    /// An NVIDIA H200 on an NVLink host. The rates were measured with 8 GPUs busy at once: GEMM on random data (cuBLAS, mid
    /// sizes; the largest are power-limited to 650 to 690 TFLOP/s), 16-byte and TMA stores to 7 peers, and copy-engine pushes
    /// of 16 MiB on 3 streams. The NIC has 400 Gbit/s.
    #[must_use]
    pub fn h200() -> Self {
        Self {
            name: "NVIDIA H200".into(),
            arch: Arch::Sm90a,
            backend: Backend::Nvrtc,
            sm_count: Hardware::H200.sm_count,
            smem_bytes: Arch::Sm90a.spec().smem_bytes,
            resident_clusters: Hardware::H200.resident_clusters,
            memory_bytes: 140 << 30,
            l2_bytes: 60 << 20,
            gemm_tflops: 740.0,
            memory_gb_s: 4300.0,
            l2_gb_s: 9500.0,
            link_gb_s: 344.0,
            copy_engine_gb_s: 350.0,
            nic_gb_s: 50.0,
        }
    }

    /// The cost table of the GPU. All Hopper GPUs use the table of the H200, with rates of their own.
    pub(crate) const fn costs(&self) -> &'static CostTable {
        &COSTS
    }
}

const COSTS: CostTable = CostTable {
    launch_us: 5.0,
    flag_us: 2.5,
    comm_cta_gb_s: 36.0,
    push_share: 0.93,
    push_share_loss: 0.26,
    put_latency_us: 16.0,
    overlap_loss: 0.05,
    nic_share: 0.95,
    gemm: GEMM,
    push: PUSH,
    attention: ATTENTION,
    collective: COLLECTIVE,
    dispatch: DISPATCH,
};

const GEMM: GemmCosts = GemmCosts {
    // H100, 64 rows of 8192 columns of 2048: 128 CTAs of 64 columns take 19.7 µs, and 64 CTAs of 128 columns 20.3.
    max_l2_share: 1.5,
    epilogue_us: 1.0,
    even_tail_us: 4.0,
    // H100, 2048 columns: two CTAs take as long as one CTA to load a tile, three CTAs a third of this time. The reason
    // is not known.
    two_slices_slowdown: 1.7,
    two_slices_of_sums_slowdown: 1.1,
    // H100, 128 to 1024 rows: tiles of 64×128 and 128×64 take 1.1 to 1.35 times as long as the rate of L2 predicts; on 4×H100
    // up to 1.5 times as long. The reason is not known.
    small_tiles_slowdown: 1.4,
    // H200, 256 to 8192 rows, 28 products: `docs/performance.md#square-tiles`.
    square_tiles_l2_gain: 1.42,
    square_tiles_slowdown: 1.04,
    // H100, 1 row of 8192 columns of 2048, in a chain: 128 CTAs take 16.4 µs, and 64 CTAs 17.3.
    idle_sms_loss: 0.14,
    // H200, 16 rows of K 8192: tiles of 64 columns take 1.17 times as long as tiles of 128 columns, with 14336 and 28672 columns.
    narrow_tiles_loss: 0.16,
    // 2×H100, 1 to 64 rows of 2048 columns of 8192, in a chain, 32 plans: the model has an error of 1.7 µs (root mean square)
    // for 26 plans. In the other six plans, warps push whole rows, and the estimate is 5 to 10 µs too long. No plan of the six is
    // the fastest plan of its size.
    first_rows_us: 5.5,
    unmeasured_split_slowdown: 1.02,
    // H100, 2048 columns: with 16 rows, the exchange between 2, 4 and 8 CTAs takes 2.6, 2.9 and 4.3 µs; with 64 rows, between 3
    // and 8 CTAs, 3.1 and 5. Plans of `ag_gemm` for 1 to 16 rows with 8 CTAs per tile take 0.7 to 2 µs more than those with 7.
    split_k_sync_us: 1.8,
    load_sums_us: 0.9,
    sums_gb_s: 120.0,
    // H200, 16 to 128 rows of 512 to 4096 columns, K 4096 and 8192, in a chain, 109 plans: `docs/performance.md`.
    cluster_sync_us: 1.8,
    cluster_sums_gb_s: 40.0,
    store_loss: 0.1,
    // 2×H100, 1024 to 8192 rows of 4096 columns of 1024, and of 8192 of 2048: of tiles of 128×128 and 128×256, the model then
    // names the faster one. With `push_share_loss` in its place, it would choose 128×128 for 8192 rows, where `gemm_ar` of 8192
    // and 2048 takes 600 µs (537 with 128×256), and `gemm_rs` of 4096 and 1024 takes 156 (142). 4×H100, `gemm_rs` of 4096 rows
    // of 4096 and 1024: 95 µs, and 124 with the plan that `push_share_loss` would choose.
    partials_share_loss: 0.05,
    // 2×H100, `gemm_ar` of 4096 rows of 4096 and 1024: tiles of 64×128, which load more, take 136 µs, and 128×256 take 119,
    // though the link bounds both.
    two_shots_overlap_loss: 0.15,
    // 2×H200, 15 products of 1024 and 4096 rows: `docs/performance.md#square-tiles`.
    two_shots_large_tiles_us: 20.0,
    // 2 and 4×H100, 256, 512 and 1024 rows of 8192 and 2048, in chains: the model exceeds each of 8 times by 2 to 4 µs, which
    // is what launches in a chain save.
    one_shot_overlap: 0.5,
    // 4×H100, 2048 and 4096 rows of 4096 and 1024: `gemm_rs` takes 76 and 215 µs in one shot, and 54 and 93 in two; `gemm_ar`
    // 127 and 270, and 97 and 173. 2×H100, 2048 rows: `gemm_rs` takes 62 µs, and 50 in two shots. Perhaps the packets of a call
    // no longer stay in L2 until they are read.
    one_shot_l2_spill_slowdown: 1.5,
    packets_us: 2.5,
    owner_add_us: 5.5,
    // 2×H100, `gemm_ar` of 2048 to 8192 rows of 4096 and 1024: 18 to 22 µs more than the link takes for the bytes.
    result_us: 8.0,
    // 2×H200, residual and RMSNorm behind two shots: `gemm_ar` of 1024, 2048 and 4096 rows of 8192 takes 45, 70 and 101 µs more
    // than without, and of 8192 rows of 7168 155 µs.
    norm_us: 25.0,
    norm_tb_s: 1.0,
};

const PUSH: PushCosts = PushCosts {
    copy_request_us: 12.0,
    // Three concurrent copies of 2, 4 and 16 MiB reach 174, 216 and 348 GB/s together.
    copy_us: 6.5,
    // 2×H100: 0.4 to 0.6 µs with 64 columns of B in a stage, and up to 1.2 with 128, whose loads come before the loads
    // of the warp.
    round_us: 1.3,
    shared_gain: 0.06,
    shared_slowdown: 1.12,
    // Copies by copy engines do not measurably slow down the GEMM.
    comm_cta_slowdown: 1.02,
    contention_free_ctas: 8,
    contention_loss: 0.012,
};

const ATTENTION: AttentionCosts = AttentionCosts {
    // 2 GPUs, 4 to 16 CTAs.
    kv_cta_gb_s: 21.0,
    mma_share: 0.85,
    part_us: 6.1,
    // An SM stores about 50 GB/s.
    receiver_us: 0.35,
    spare_warps: 1.5,
};

const COLLECTIVE: CollectiveCosts = CollectiveCosts {
    start_us: 3.0,
    // 2×H100: an `all_reduce` of 1 to 16 KiB takes 3.9 µs in one shot, and 4.7 in two.
    packet_us: 0.9,
    // 2×H100, in a graph: chunks of 512 KiB take 12.0 µs for an `all_reduce`, 7.1 for a `reduce_scatter`, and 5.6 for an
    // `all_gather`.
    reduce_us: 4.5,
    copy_us: 1.0,
    // 2×H100: from 8 to 16 MiB, an `all_reduce` of packets takes 25.1 µs more in one shot, and 29.1 in two.
    link_share: 0.97,
    sums_link_share: 0.74,
    // An estimate.
    squares_us: 1.0,
};

const DISPATCH: DispatchCosts = DispatchCosts {
    routing_us: 12.0,
    // H100, 8 experts of 7168 and 2048 columns: 16 tokens take 90 µs with tiles of 128×128 and 102 with 128×256, and 256 tokens
    // 96 and 112, though memory bounds all four.
    overlap_loss: 0.2,
    // H100, 1 to 32 experts, 16 to 1024 tokens, 24 cases: 64×256 was never the fastest of the four tiles, and took up to 35 %
    // more than the fastest.
    low_and_wide_slowdown: 1.05,
    // `docs/performance.md#tiles-of-experts`
    narrow_slowdown: 1.06,
    narrow_bytes_slowdown: 1.07,
    half_empty_slowdown: 1.02,
};
