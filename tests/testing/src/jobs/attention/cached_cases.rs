//! Jobs with cached rows of K and V that are small enough for a CPU.

use super::{AttentionJob, CallPattern};
use mkernel::network::Faults;
use mkernel::spec::{Dtype, Placement};

/// Returns jobs whose calls have cached rows and new rows, by one operator each: one row, many rows and no row of both
/// kinds. All layouts, placements and masks, heads that share K and V, and slots for some of the heads.
pub fn with_cached_rows(world: u32) -> Vec<(String, AttentionJob)> {
    use Placement::{Contiguous, Zigzag};
    let job = |sizes, sms, most| AttentionJob::new(world, sizes, sms).cached(most);
    let lengths = [1, 150, 0, 3, 200, 129];
    let mut jobs = vec![
        (
            "all keys",
            job([1, 200, 2, 2, 64], 3, 300).with_rows(&lengths),
        ),
        ("batches of fp16", {
            let mut job = job([2, 200, 2, 1, 64], 3, 129).with_rows(&lengths);
            job.config.dtype = Dtype::Fp16;
            job
        }),
        (
            "a mask",
            job([3, 200, 2, 1, 64], 3, 140)
                .causal(Contiguous)
                .bhsd()
                .with_rows(&lengths),
        ),
        (
            "zigzag in a graph",
            job([2, 200, 4, 2, 64], 2, 200)
                .causal(Zigzag)
                .bhsd()
                .with_rows(&lengths)
                .pattern(CallPattern::Graph),
        ),
        (
            "wide heads in a graph",
            job([1, 140, 2, 1, 128], 2, 257)
                .zigzag()
                .with_rows(&[140, 1, 0, 129])
                .pattern(CallPattern::Graph),
        ),
        (
            "one row over few keys",
            job([2, 1, 2, 2, 64], 2, 1)
                .causal(Contiguous)
                .with_rows(&[1, 0, 1, 1]),
        ),
    ];
    if world > 1 {
        jobs.extend(in_one_slot(world));
    }
    let name = |(name, job)| {
        let name = format!("attention, {name}, on {world} ranks, cached rows");
        (name, job)
    };
    jobs.into_iter().map(name).collect()
}

/// Returns jobs in which heads of K and V take turns in one slot.
fn in_one_slot(world: u32) -> [(&'static str, AttentionJob); 2] {
    let job = |sizes, most| {
        let job = AttentionJob::new(world, sizes, 3).cached(most);
        job.slots(1, 1).with_rows(&[1, 150, 0, 3, 200, 129])
    };
    [
        ("one slot", job([2, 200, 2, 2, 64], 200)),
        (
            "one slot, a mask, a graph",
            job([1, 200, 4, 2, 64], 150)
                .causal(Placement::Zigzag)
                .pattern(CallPattern::Graph),
        ),
    ]
}

/// Returns jobs on several nodes whose calls have cached rows.
pub fn with_cached_rows_across(
    nodes: u32,
    local_world: u32,
    faults: &Faults,
) -> Vec<(String, AttentionJob)> {
    use Placement::{Contiguous, Zigzag};
    let job = |sizes, most| {
        let job = AttentionJob::new(nodes * local_world, sizes, 3).cached(most);
        let job = job.across(nodes, faults.clone()).pushed_by(2);
        job.with_rows(&[199, 0, 1, 200, 5])
    };
    let jobs = [
        ("all keys", job([1, 200, 4, 4, 64], 300)),
        ("a mask", job([2, 200, 2, 1, 64], 129).causal(Contiguous)),
        (
            "zigzag in a graph",
            job([2, 200, 2, 2, 64], 200)
                .causal(Zigzag)
                .bhsd()
                .pattern(CallPattern::Graph),
        ),
    ];
    let name = |(name, job)| {
        let name = format!("attention, {name}, on {nodes}x{local_world}, cached rows");
        (name, job)
    };
    jobs.into_iter().map(name).collect()
}
