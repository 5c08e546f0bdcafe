//! The number of slots for heads of K and V.

use super::op_plan::{AttentionPlan, TILE_ROWS};
use crate::config::Field;
use crate::device::Device;
use crate::diagnostic::Diagnostics;
use crate::topology::Topology;

/// The divisor of a GPU's memory that gives the bytes an operator may use to keep all heads of K and V.
const MEMORY_SHARE: u64 = 16;

/// The divisor where heads cannot share slots: across nodes, and with packed sequences.
const MEMORY_SHARE_ACROSS: u64 = 4;

/// Chooses `kv_slots`. There is a slot for every head if memory allows. Otherwise the heads that are computed at the
/// same time must fit.
pub(super) fn choose(
    op_plan: &mut AttentionPlan,
    topology: Topology,
    device: &Device,
    found: &mut Diagnostics,
) {
    let (all, world) = (op_plan.kv_heads() as u32, topology.world());
    if topology.nodes > 1 {
        op_plan.kv_slots = all;
        let help =
            "split the batch or the heads, or use one node, where heads take turns in few slots";
        return check_all_heads((op_plan, world, device), "of two calls", help, found);
    }
    if op_plan.config.packed {
        op_plan.kv_slots = all;
        let what = format!("in tiles of {TILE_ROWS} rows of one sequence");
        let help = "prepare for fewer rows, for fewer sequences, or for fewer heads at a time";
        return check_all_heads((op_plan, world, device), &what, help, found);
    }
    let bytes_per_slot = {
        op_plan.kv_slots = 1;
        op_plan.slot_bytes(world)
    };
    let at_work = at_work(op_plan, device);
    op_plan.kv_slots = match op_plan.config.tuning.kv_slots {
        Some(slots) => slots.min(all),
        None if u64::from(all) * bytes_per_slot <= device.memory_bytes / MEMORY_SHARE => all,
        // An equal number of heads is on the way.
        None => (2 * at_work).min(all),
    };
    if !op_plan.is_ring() {
        return;
    }
    found.require(
        device.sm_count > 1,
        Field::KV_SLOTS,
        || {
            format!(
                "{} of {all} heads at a time need an SM that sends while others compute ({})",
                op_plan.kv_slots, device.name
            )
        },
        format!("use {all}"),
    );
    // The heads of a group take turns, so the first head is not done before the last head has arrived.
    let per_kv = (op_plan.shape.heads / op_plan.shape.kv_heads) as u32;
    let most = op_plan.kv_slots * per_kv;
    op_plan.group_heads = match op_plan.group_heads {
        1 => 1,
        heads => heads.next_multiple_of(per_kv).min(most),
    };
}

/// Checks that K and V of all heads fit into memory. `what` describes K and V, and `help` says how to need less memory.
fn check_all_heads(
    (op_plan, world, device): (&AttentionPlan, u32, &Device),
    what: &str,
    help: &str,
    found: &mut Diagnostics,
) {
    let (bytes, most) = (
        op_plan.slot_bytes(world),
        device.memory_bytes / MEMORY_SHARE_ACROSS,
    );
    found.require(
        bytes <= most,
        Field::SEQ,
        || {
            format!(
                "K and V of all ranks, {what}, take {bytes} bytes on each, more than {most}: a quarter of its memory ({})",
                device.name
            )
        },
        help,
    );
}

/// Heads of K and V whose tiles are computed at the same time.
fn at_work(op_plan: &AttentionPlan, device: &Device) -> u32 {
    let per_kv = (op_plan.shape.heads / op_plan.shape.kv_heads) as u32;
    match op_plan.group_heads {
        1 => device.sm_count.div_ceil(op_plan.row_tiles * per_kv) + 1,
        heads => 2 * heads.div_ceil(per_kv),
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{AttentionConfig, AttentionOp, Dim};
    use crate::device::Device;
    use crate::diagnostic::Diagnostics;
    use crate::ops::attention::{AttentionPlan, plan};
    use crate::topology::Topology;

    fn config(heads: u64, kv_heads: u64, causal: bool) -> AttentionConfig {
        AttentionConfig {
            batch: Dim::Static(2),
            seq: Dim::Static(4096),
            heads: Dim::Static(heads),
            kv_heads: Dim::Static(kv_heads),
            head_dim: Dim::Static(128),
            causal,
            ..AttentionConfig::new(AttentionOp::RingAttention)
        }
    }

    fn plan(config: AttentionConfig, device: &Device) -> Result<AttentionPlan, Diagnostics> {
        let topology = Topology {
            nodes: 1,
            local_world: 4,
        };
        let shape = config.shape().expect("sizes");
        plan::plan(&config, shape, topology, device).map(|plan| plan.op_plan)
    }

    #[test]
    fn all_heads_are_kept_where_memory_allows() {
        let device = Device::h200();
        let op_plan = plan(config(64, 64, false), &device).expect("a plan");
        assert_eq!((op_plan.kv_slots, op_plan.is_ring()), (128, false));
        let small = Device {
            memory_bytes: 16 * (op_plan.slot_bytes(4) - 1),
            ..device
        };
        let ring = plan(config(64, 64, false), &small).expect("a plan");
        assert!(ring.is_ring() && ring.slot_bytes(4) < op_plan.slot_bytes(4));
    }

    /// All heads of a group fit into the slots, whatever the user fixes.
    #[test]
    fn groups_fit_into_the_slots() {
        for (heads, kv_heads) in [(16, 16), (16, 4), (16, 1), (12, 3)] {
            for causal in [false, true] {
                for slots in 1..=8 {
                    let mut config = config(heads, kv_heads, causal);
                    config.tuning.kv_slots = Some(slots);
                    let op_plan = plan(config, &Device::h200()).expect("a plan");
                    let per_kv = (heads / kv_heads) as u32;
                    if op_plan.is_ring() && op_plan.group_heads > 1 {
                        assert!(op_plan.group_heads.is_multiple_of(per_kv), "{op_plan:?}");
                        assert!(
                            op_plan.group_heads / per_kv <= op_plan.kv_slots,
                            "{op_plan:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn packed_sequences_keep_all_heads_or_are_refused() {
        let packed = AttentionConfig {
            packed: true,
            ..config(64, 64, true)
        };
        let device = Device::h200();
        let op_plan = plan(packed, &device).expect("a plan");
        assert_eq!((op_plan.kv_slots, op_plan.is_ring()), (64, false));
        let small = Device {
            memory_bytes: 4 * (op_plan.slot_bytes(4) - 1),
            ..device
        };
        let found = plan(packed, &small).expect_err("too large");
        let fields: Vec<_> = found.iter().map(|v| v.field.name()).collect();
        assert_eq!(fields, ["seq"], "{found}");
    }

    #[test]
    fn a_lone_sm_cannot_wait_for_itself() {
        let mut config = config(4, 4, false);
        config.tuning.kv_slots = Some(1);
        let found = plan(config, &Device::simulated(1)).expect_err("a deadlock");
        let fields: Vec<_> = found.iter().map(|v| v.field.name()).collect();
        assert_eq!(fields, ["kv_slots"], "{found}");
    }
}
