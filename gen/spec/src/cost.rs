//! [`CostTable`]: the measured constants of the cost model of one GPU, and the formulas that all operators share.
//!
//! Each kind of operator estimates its candidates in its own `cost.rs`. A table ranks candidates and does not promise times.
//! The values of a GPU are in its file in `devices`, with the measurements behind them.

use crate::roofline::Bound;

/// The constants of the cost model of one GPU. `_us` is microseconds, `_gb_s` is GB/s, `_share` is a part of a rate, `_loss` is
/// a part that is lost, and `_slowdown` is a factor of a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CostTable {
    /// The time from the launch of a persistent kernel until its first tile multiplies.
    pub launch_us: f64,
    /// The time from a store to a peer until the peer sees the flag.
    pub flag_us: f64,
    /// The rate at which one of a few communication CTAs pushes.
    pub comm_cta_gb_s: f64,
    /// The part of the link's rate that SMs reach when they have little to compute.
    pub push_share: f64,
    /// The part of the link's rate that is lost beside a GEMM that takes as long as the transfer.
    pub push_share_loss: f64,
    /// The time from a command to the proxy until all CTAs see that the put has arrived: half of a message there and back, and
    /// a flag.
    pub put_latency_us: f64,
    /// The part of the time of a GEMM that is added if memory or the NIC holds the plan up. Of two such plans, the plan with
    /// the faster GEMM is better, since it leaves more time for costs outside this model.
    pub overlap_loss: f64,
    /// The part of a NIC's rate that puts of 1 MiB reach.
    pub nic_share: f64,
    pub gemm: GemmCosts,
    pub push: PushCosts,
    pub attention: AttentionCosts,
    pub collective: CollectiveCosts,
    pub dispatch: DispatchCosts,
}

/// The constants of tiles, of split-K, and of reductions of partial sums.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GemmCosts {
    /// The most that a CTA draws from L2 when other SMs are idle, in fair shares of one SM.
    pub max_l2_share: f64,
    /// The time in which the consumer warpgroups convert and store a 128×256 tile. Smaller tiles take proportionally less.
    pub epilogue_us: f64,
    /// The time in which CTAs that share tiles of the last of several rounds exchange sums, if the sub-tiles of a warpgroup
    /// divide evenly among these CTAs.
    pub even_tail_us: f64,
    /// The slowdown of loads where two CTAs share each tile of the only round, if half of the SMs are idle, memory is the limit, or
    /// tiles have 256 columns.
    pub two_slices_slowdown: f64,
    /// The slowdown of other loads of this kind, if the sums are partial sums of ranks.
    pub two_slices_of_sums_slowdown: f64,
    /// The slowdown of `ag_gemm` with tiles smaller than 128×128, if C has several rows of tiles.
    pub small_tiles_slowdown: f64,
    /// The rate of L2 for tiles of 128×128, relative to [`Device::l2_gb_s`].
    pub square_tiles_l2_gain: f64,
    /// The time of these tiles, relative to what tensor cores and this rate of L2 take.
    pub square_tiles_slowdown: f64,
    /// The part of the rate of memory that is lost if no SM computes.
    pub idle_sms_loss: f64,
    /// The part of the rate of memory that tiles of 64 columns lose if all SMs compute, since fewer bytes are under way. It
    /// applies to `gemm`, and to several rounds of `ag_gemm`.
    pub narrow_tiles_loss: f64,
    /// The time from the start of a call until the first rows of another rank have arrived.
    pub first_rows_us: f64,
    /// The slowdown of plans with an uneven split of the last of several rounds, which have not been measured.
    pub unmeasured_split_slowdown: f64,
    /// The time from the last MMA of the CTAs that share a tile until a CTA that completes a part of the tile knows that all
    /// sums are in L2.
    pub split_k_sync_us: f64,
    /// The time in which a thread gets requested sums from L2.
    pub load_sums_us: f64,
    /// The rate at which a CTA stores and loads sums in L2.
    pub sums_gb_s: f64,
    /// The time in which the CTAs of a cluster exchange sums, beside the time of the bytes.
    pub cluster_sync_us: f64,
    /// The rate at which a CTA gets the sums of the other CTAs of its cluster.
    pub cluster_sums_gb_s: f64,
    /// The part of its time that a GEMM loses to stores of partial sums that take as long as the GEMM.
    pub store_loss: f64,
    /// The part of the link's rate that is lost where partial sums travel beside a GEMM that takes as long.
    pub partials_share_loss: f64,
    /// In two shots, the part of the shorter of the times of the GEMM and its transfers that is added to the longer one.
    pub two_shots_overlap_loss: f64,
    /// The time that two shots take longer with tiles of 128×256, µs.
    pub two_shots_large_tiles_us: f64,
    /// In one shot, the part of the transfer of a tile's packets that overlaps with the next tile.
    pub one_shot_overlap: f64,
    /// In one shot, the slowdown of packets if there are more than two rounds of tiles.
    pub one_shot_l2_spill_slowdown: f64,
    /// The time of packets from one rank's registers to another's.
    pub packets_us: f64,
    /// The time in which TMA stores the partial sums of a tile to their slot, and the owner loads and adds them, without flags.
    pub owner_add_us: f64,
    /// The time in which TMA stores a result to its slot, and a rank copies the result to C, without flags.
    pub result_us: f64,
    /// The time in which rows are normalised behind two shots, apart from their bytes.
    pub norm_us: f64,
    /// The rate at which rows are normalised behind two shots, TB/s of their elements.
    pub norm_tb_s: f64,
}

/// The constants of moving a shard of A to the peers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PushCosts {
    /// The time from the request of a copy over the host thread to its first byte.
    pub copy_request_us: f64,
    /// The time of a copy that does not depend on its size.
    pub copy_us: f64,
    /// The time in which a warp that pushes through registers loads and stores its data in flight.
    pub round_us: f64,
    /// The part of the link's rate that a pushing warp in every CTA gains over a few communication CTAs.
    pub shared_gain: f64,
    /// The slowdown of the loads of a CTA in which a warp pushes.
    pub shared_slowdown: f64,
    /// The slowdown of CTAs that compute beside communication CTAs.
    pub comm_cta_slowdown: f64,
    /// The most communication CTAs that do not slow down each other.
    pub contention_free_ctas: u32,
    /// The part of the rate that each communication CTA beyond `contention_free_ctas` costs.
    pub contention_loss: f64,
}

/// The constants of attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AttentionCosts {
    /// The rate at which a communication CTA pushes K and V, 16 KiB at a time.
    pub kv_cta_gb_s: f64,
    /// The part of a GEMM's rate that attention reaches beside exponentials and masks.
    pub mma_share: f64,
    /// Across nodes, the time in which a warp loads a part of K or V and raises its flags.
    pub part_us: f64,
    /// Across nodes, the time in which a warp stores a part of K or V to one rank.
    pub receiver_us: f64,
    /// Across nodes, the factor by which pushing warps outnumber the warps that would just suffice.
    pub spare_warps: f64,
}

/// The constants of collectives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CollectiveCosts {
    /// The time from the launch of a kernel without shared memory until its first load.
    pub start_us: f64,
    /// The time of a packet from one rank's registers to another's.
    pub packet_us: f64,
    /// The time of a pass over chunks in this GPU's memory that adds them up.
    pub reduce_us: f64,
    /// The time of a pass over chunks in this GPU's memory that copies them.
    pub copy_us: f64,
    /// The part of the link's rate that packets and chunks reach.
    pub link_share: f64,
    /// The part of the link's rate that packets with sums reach. These packets follow when all parts have been added
    /// up.
    pub sums_link_share: f64,
    /// The time in which the warps of a row exchange sums of squares through L2.
    pub squares_us: f64,
}

/// The constants of `dispatch_gemm`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DispatchCosts {
    /// The time of counts, their exchange and the lists of tokens before the first tile multiplies.
    pub routing_us: f64,
    /// The part of the shorter of the times of MMAs and memory that is added to the longer one.
    pub overlap_loss: f64,
    /// The slowdown of tiles of 64×256, unless elements have one byte and CTAs have several tiles.
    pub low_and_wide_slowdown: f64,
    /// The slowdown of memory by tiles of 128 columns, if CTAs have several tiles.
    pub narrow_slowdown: f64,
    /// The further slowdown of tiles of 128 columns if elements have one byte and CTAs have several tiles.
    pub narrow_bytes_slowdown: f64,
    /// The slowdown of tiles in which one of two warpgroups has no rows.
    pub half_empty_slowdown: f64,
}

impl CostTable {
    /// The part of the link's rate that stores by SMs reach beside a GEMM. Incoming bytes and the GEMM's loads compete for
    /// L2.
    pub fn store_share(&self, compute_us: f64, link_us: f64) -> f64 {
        self.push_share - self.push_share_loss * (compute_us / link_us).min(1.0)
    }

    /// The time from the start until the last put has come and was forwarded, µs.
    pub fn put_us(&self, bound: &Bound) -> f64 {
        match bound.nic_us {
            0.0 => 0.0,
            nic_us => self.put_latency_us + nic_us / self.nic_share + self.flag_us,
        }
    }
}
