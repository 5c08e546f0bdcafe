//! The expected time of a candidate of a GEMM operator.

mod push;

pub(crate) use push::Push;

use super::config::{GemmShape, Tile};
use super::core::CoreLayout;
use super::maps::load_rows_a;
use super::op_plan::{OUT_COLS, Split, TileOrder};
use super::spec::GemmSpec;
use crate::config::{Dtype, LINE_BYTES};
use crate::cost::{FLAG_US, LAUNCH_US, PUSH_SHARE, PUT_US, UNSEEN_SHARE, put_us};
use crate::device::Device;
use crate::roofline::{Bound, Traffic};

/// The most that a CTA draws from L2 when others are idle, in shares of an SM. Measured on an H100 with 8192 columns of 2048:
/// with 64 rows, 128 CTAs with 64 columns each take 19.7 µs, and 64 CTAs with 128 columns 20.3.
const MOST_L2_SHARE: f64 = 1.5;

/// The time in which the consumer warpgroups convert and store a 128×256 tile, µs. Smaller tiles take proportionally less.
const EPILOGUE_US: f64 = 1.0;

/// The same after whole rounds, if a group's sub-tiles divide evenly among the CTAs, µs.
const TAIL_US: f64 = 4.0;

/// The factor by which loads are slower where two CTAs share each tile of the only round. Measured on an H100 with 2048
/// columns: two CTAs take as long as one to load a tile, three a third of it. The reason is not known.
const TWO_SLICES_SLOWDOWN: f64 = 1.7;

/// The factor by which small tiles of `ag_gemm` take longer if there are several rows of them. Measured on an H100 with 128 to
/// 1024 rows: tiles of 64×128 and 128×64 take 1.1 to 1.35 times as long as they should by L2; on 4×H100, up to 1.5 times. The
/// reason is not known.
const SMALL_TILES_SLOWDOWN: f64 = 1.4;

/// The part of the rate of memory that is lost where no SM computes. Measured on an H100 with 8192 columns of 2048 and 1
/// row, in a chain: 128 CTAs take 16.4 µs and 64 take 17.3.
const IDLE_SMS_LOSS: f64 = 0.14;

/// The time from the start of a call until the first rows of another rank are there, µs. With 1 to 64 rows of 2048 and 8192
/// columns, 32 plans were measured (2×H100, in a chain). The model has an error of 1.7 µs (root mean square) for 26 of them. The
/// others, in which warps push whole rows, it takes for 5 to 10 µs slower than they are. None of these is a best plan.
const FIRST_ROWS_US: f64 = 5.5;

/// The factor by which a plan must be better whose last round, after others, is split in another way: that has not been
/// measured.
const DOUBT: f64 = 1.02;

/// The time from the last product of the CTAs that share a tile until one that completes a part of it knows that all
/// sums are there, µs. Measured on an H100 with 2048 columns and 16 rows: 2 CTAs take 2.6 µs in all, 4 take 2.9, 8
/// take 4.3; with 64 rows, 3 take 3.1 and 8 take 5. Plans of `ag_gemm` for 1 to 16 rows with 8 CTAs per tile take 0.7 to 2 µs
/// more than those with 7.
pub(crate) const MEET_US: f64 = 1.8;

/// The time in which a thread gets sums that it has asked L2 for, µs.
pub(crate) const LOAD_SUMS_US: f64 = 0.9;

/// The rate at which a CTA stores and loads such sums, GB/s.
const SUMS_GB_S: f64 = 120.0;

/// The part of its time that a GEMM loses to stores of partial sums that take as long as the GEMM.
const STORE_SLOWDOWN: f64 = 0.1;

/// The part of the link's rate that is lost where partial sums travel beside a GEMM that takes as long. Measured on 2×H100: of
/// tiles of 128×128 and 128×256 for 1024 to 8192 rows of 4096 and 1024 or 8192 and 2048, the model names the faster one. With
/// the loss of pushes, it took 128×128 for faster for 8192 rows, where `gemm_ar` of 8192 and 2048 then takes 600 µs in place
/// of 537, and `gemm_rs` of 4096 and 1024 takes 156 in place of 142. On 4×H100, `gemm_rs` of 4096 rows of 4096 and 1024 takes 95
/// µs, and 124 with that loss in the model.
const SHARE_LOST: f64 = 0.05;

/// The part of the shorter of both times, that of the GEMM and that of its transfers, by which the longer one is exceeded in
/// two shots. Measured on 2×H100: with tiles of 64×128, which load more, `gemm_ar` of 4096 rows of 4096 and 1024 takes 136 µs in
/// place of 119, though the link is the bound of both.
const UNSEEN_SHARE_OF_TWO_SHOTS: f64 = 0.15;

/// In one shot, the part of the transfer of a tile's packets that goes on while the next tile is computed. Measured on 2 and
/// 4×H100 with 256, 512 and 1024 rows of 8192 and 2048: of 8 times, in chains, the model exceeds each by 2 to 4 µs, which is what
/// launches in a chain save.
const SENT_BESIDE_NEXT: f64 = 0.5;

/// In one shot, the factor by which packets take longer if there are more than two rounds of tiles. Measured on 4×H100:
/// `gemm_rs` of 2048 and 4096 rows of 4096 and 1024 takes 76 and 215 µs, and 54 and 93 in two shots; `gemm_ar` takes 127 and
/// 270, and 97 and 173. On 2×H100, `gemm_rs` of 2048 rows takes 62 µs, and 50 in two shots. Perhaps the packets of a call no
/// longer stay in L2 until they are read.
const CROWDED: f64 = 1.5;

/// The time of packets from one rank's registers to another's, µs.
const PACKETS_US: f64 = 2.5;

/// The time in which TMA stores the partial sums of a tile to their slot, and the owner loads and adds them, without
/// flags, µs.
const ADD_US: f64 = 5.5;

/// The time in which TMA stores a result to its slot, and a rank copies it to C, without flags, µs. Measured on 2×H100: `gemm_ar`
/// of 2048 to 8192 rows of 4096 and 1024 takes 18 to 22 µs more than the link for its bytes.
const RESULT_US: f64 = 8.0;

/// Time of one tile's main loop, µs: tensor cores or L2, whichever is slower, with `active` CTAs at work. Of A, whose
/// elements are `a`, at most `rows` are loaded.
pub(crate) fn tile_us(
    tile: Tile,
    a: Dtype,
    rows: u64,
    k: u64,
    active: u32,
    device: &Device,
) -> f64 {
    let steps = k.div_ceil(a.per_line().into()) as f64;
    let flops = 2.0 * f64::from(tile.m * tile.n * a.per_line());
    let bytes = f64::from((load_rows_a(tile, rows) + tile.n) * LINE_BYTES);
    let sms = f64::from(device.sm_count);
    let math = flops / (device.gemm_tflops * 1e6 / sms);
    // A lone CTA cannot draw much more than its fair share of L2.
    let share = (sms / f64::from(active.max(1))).min(MOST_L2_SHARE);
    let load = bytes / (device.l2_gb_s * 1e3 / sms * share);
    let epilogue = EPILOGUE_US * f64::from(tile.m * tile.n) / 32768.0;
    steps * math.max(load) + epilogue
}

/// Sub-tiles of a group.
pub(crate) const fn group_subs(tile: Tile) -> u32 {
    match Split::of(tile) {
        Split::Rows => tile.n / OUT_COLS,
        Split::Cols => tile.n / OUT_COLS / 2,
    }
}

/// Whether CTAs that share a tile complete as many of its sub-tiles each.
const fn is_even(tile: Tile, order: &TileOrder) -> bool {
    group_subs(tile).is_multiple_of(order.tail_splits)
}

/// The time in which the CTAs that share a tile exchange their sums of the rows that C has, µs.
fn exchange_us(tile: Tile, order: &TileOrder, shape: GemmShape) -> f64 {
    let splits = order.tail_splits;
    if splits == 1 || order.tail_tiles() == 0 {
        return 0.0;
    }
    if order.whole_tiles > 0 && is_even(tile, order) {
        return TAIL_US;
    }
    let subs = group_subs(tile);
    let completed = order.completed_subs(subs);
    let rows = shape.m.next_multiple_of(16).min(u64::from(tile.m)) as u32;
    let sum_bytes = f64::from(rows * tile.n * 4);
    let stored = if splits > subs / completed {
        sum_bytes
    } else {
        sum_bytes * f64::from(subs - completed) / f64::from(subs)
    };
    let loaded = sum_bytes * f64::from(completed * (splits - 1)) / f64::from(subs);
    // As `kInFlight` in mk/gemm/split_k.cuh.
    let in_flight = match subs {
        1 => 3,
        2 => 2,
        _ => 1,
    };
    let turns = completed * (splits - 1).div_ceil(in_flight);
    MEET_US + f64::from(turns) * LOAD_SUMS_US + (stored + loaded) / SUMS_GB_S / 1e3
}

/// The time of a GEMM alone.
struct GemmTime {
    /// All of it, µs.
    us: f64,
    /// Its last round, µs.
    last_us: f64,
    /// What follows when all of A and B has been loaded, µs.
    unfed_us: f64,
    /// The part of the SMs that compute, if there is one round; else 1.
    busy_share: f64,
    /// The part of the shorter of both times, computing and memory, by which the longer one is exceeded.
    unseen_share: f64,
    /// `DOUBT`, or 1.
    doubt: f64,
}

impl GemmTime {
    fn new(
        spec: GemmSpec<'_>,
        tile: Tile,
        order: &TileOrder,
        compute_ctas: u32,
        traffic: &Traffic,
        device: &Device,
    ) -> Self {
        // If each call gives the rows, there may be too many tiles in the last round of the most rows to share them.
        let order = &match order.tail_tiles() * order.tail_splits > compute_ctas {
            true => TileOrder {
                tail_splits: 1,
                ..order.clone()
            },
            false => order.clone(),
        };
        let one = tile_us(
            tile,
            spec.types().a,
            spec.shape.m,
            spec.shape.k,
            order.work_tiles().min(compute_ctas),
            device,
        );
        let rounds = f64::from(order.whole_tiles / compute_ctas);
        let unfed_us = exchange_us(tile, order, spec.shape);
        let slowdown = match order.tail_splits {
            2 if rounds == 0.0 => TWO_SLICES_SLOWDOWN,
            _ => 1.0,
        };
        let part_us = one / f64::from(order.tail_splits) * slowdown;
        let tail_us = match order.tail_tiles() {
            0 => 0.0,
            _ => part_us + unfed_us,
        };
        // A long GEMM is limited by power, and power by the SMs at work, whatever the rounds.
        let even = traffic.flops as f64 / device.gemm_tflops / 1e6 * f64::from(device.sm_count)
            / f64::from(compute_ctas);
        Self {
            us: (rounds * one + tail_us).max(even),
            last_us: tail_us.max(part_us),
            unfed_us,
            busy_share: match order.work_tiles() < compute_ctas {
                true => f64::from(order.work_tiles()) / f64::from(device.sm_count),
                false => 1.0,
            },
            unseen_share: if rounds == 0.0 { UNSEEN_SHARE } else { 0.0 },
            doubt: if rounds > 0.0 && !is_even(tile, order) {
                DOUBT
            } else {
                1.0
            },
        }
    }

    /// The time of the GEMM if it computes for so long: this or that of memory. What the CTAs that share a tile exchange,
    /// they exchange when they have loaded all. Of two plans that memory holds up as long, the one that computes faster
    /// is better: memory is not at its full rate before all SMs have loads under way.
    fn beside_memory_us(&self, compute_us: f64, traffic: &Traffic, device: &Device) -> f64 {
        let rate = device.memory_gb_s * (1.0 - IDLE_SMS_LOSS * (1.0 - self.busy_share));
        let memory_us = traffic.memory_bytes as f64 / rate / 1e3 + self.unfed_us;
        compute_us.max(memory_us) + self.unseen_share * compute_us.min(memory_us)
    }
}

/// Expected time of a candidate of `ag_gemm`, µs.
pub(super) fn estimate_us(
    spec: GemmSpec<'_>,
    core: &CoreLayout,
    order: &TileOrder,
    push: Push,
    traffic: &Traffic,
    device: &Device,
) -> f64 {
    let compute_ctas = device.sm_count - push.comm_ctas();
    let gemm = GemmTime::new(spec, core.tile, order, compute_ctas, traffic, device);
    let compute = match core.tile.m * core.tile.n < 128 * 128 && order.row_tiles > 1 {
        true => gemm.us * SMALL_TILES_SLOWDOWN,
        false => gemm.us,
    };
    let computed = gemm.beside_memory_us(compute * push.slowdown(), traffic, device);
    let (slices, splits) = (push.slices(), order.tail_splits);
    let bound = Bound::new(traffic, device);
    let us = if push == Push::None {
        computed
    } else if order.whole_tiles == 0 {
        // Each CTA waits for its rows, and has by then loaded as much of B as its stages hold. If it waits for several
        // slices, it goes on while they are sent.
        let sent_us = push.sent_us(&bound, traffic.link_bytes as f64, device);
        let steps = spec
            .shape
            .k
            .div_ceil((spec.types().tile_k() * splits).into()) as f64;
        let left = 1.0 - (f64::from(core.stages) / steps).min(1.0);
        let loaded_us = computed - gemm.unfed_us;
        let last_share = 1.0 / f64::from(slices.div_ceil(splits));
        let rest_us = loaded_us * left;
        let rest_us = (rest_us - sent_us * (1.0 - last_share)).max(rest_us * last_share);
        // CTAs with own rows, if there are some, have gone before and leave their share to the others.
        let share = match order.shard_row_tiles {
            Some(own) if splits == 1 => {
                f64::from(order.row_tiles) / f64::from((order.row_tiles - own).max(1))
            }
            _ => 1.0,
        };
        let rest_us = rest_us / share.min(MOST_L2_SHARE);
        let rows_us = (FIRST_ROWS_US + sent_us).max(put_us(&bound)) + rest_us;
        rows_us.max(loaded_us - FLAG_US) + gemm.unfed_us
    } else {
        let near = FLAG_US + push.sent_us(&bound, traffic.link_bytes as f64, device);
        computed.max(near.max(put_us(&bound)) + gemm.last_us / f64::from(slices))
    };
    let unseen = if traffic.nic_bytes > 0 {
        UNSEEN_SHARE * compute
    } else {
        0.0
    };
    (LAUNCH_US + us + unseen) * gemm.doubt
}

/// How partial sums are exchanged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Meeting {
    /// 1 or 2.
    pub shots: u32,
    /// Ranks that add up tiles.
    pub owners: u32,
    /// Whether own tiles come after all others.
    pub own_last: bool,
    /// Whether owners send results to all.
    pub results: bool,
}

impl Meeting {
    /// The part of the shorter time of GEMM and transfers by which the longer one is exceeded.
    fn unseen_share(self) -> f64 {
        match self.shots {
            2 => UNSEEN_SHARE_OF_TWO_SHOTS,
            _ => 0.0,
        }
    }
}

/// Expected time of a candidate of an operator that reduces, µs; `order` has each tile once.
pub(super) fn reduce_us(
    spec: GemmSpec<'_>,
    tile: Tile,
    order: &TileOrder,
    meeting: Option<Meeting>,
    traffic: &Traffic,
    device: &Device,
) -> f64 {
    let gemm = GemmTime::new(spec, tile, order, device.sm_count, traffic, device);
    let (compute, last_us) = (gemm.us, gemm.last_us);
    let Some(meeting) = meeting else {
        let computed = gemm.beside_memory_us(compute, traffic, device);
        return (LAUNCH_US + computed) * gemm.doubt;
    };
    let least_us = traffic.link_bytes as f64 / device.link_gb_s / 1e3;
    let link = least_us / (PUSH_SHARE - SHARE_LOST * (compute / least_us).min(1.0));
    // Remote stores and the GEMM's loads meet in L2 and at the SMs' ports.
    let slowdown = 1.0 + STORE_SLOWDOWN * (link / compute).min(1.0);
    let computed = gemm.beside_memory_us(compute * slowdown, traffic, device);
    let first_us = last_us.min(compute);
    let sent = match meeting {
        Meeting {
            shots: 1, results, ..
        } => {
            // The warps that multiply also send. What a tile has left on the link partly overlaps with the next one.
            let is_crowded = order.tiles() > 2 * device.sm_count;
            let sent_us = least_us / PUSH_SHARE * if is_crowded { CROWDED } else { 1.0 };
            let hidden_us = SENT_BESIDE_NEXT * sent_us.min(compute - first_us);
            compute + sent_us - hidden_us + PACKETS_US * if results { 2.0 } else { 1.0 }
        }
        // The link idles while own tiles are computed.
        Meeting {
            own_last: true,
            owners,
            results: false,
            ..
        } => {
            let own_us = compute / f64::from(owners);
            (first_us + link).max(compute - own_us) + own_us + ADD_US
        }
        Meeting { results, .. } => {
            let results_us = if results { FLAG_US + RESULT_US } else { 0.0 };
            first_us + link + FLAG_US + ADD_US + results_us
        }
    };
    // Sums for other nodes are put as the first tiles end; results follow as the sums of other nodes come.
    let bound = Bound::new(traffic, device);
    let results_us = if meeting.results {
        PUT_US + RESULT_US
    } else {
        0.0
    };
    let put = first_us + put_us(&bound) + ADD_US + results_us;
    if bound.nic_us == 0.0 {
        let unseen = meeting.unseen_share() * computed.min(sent);
        return (LAUNCH_US + computed.max(sent) + unseen) * gemm.doubt;
    }
    (LAUNCH_US + computed.max(sent).max(put) + UNSEEN_SHARE * computed) * gemm.doubt
}
