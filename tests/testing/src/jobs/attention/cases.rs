//! Jobs that are small enough for a CPU.

use super::{AttentionJob, CallPattern, InputKind};
use crate::lab::Random;
use mkernel::network::Faults;
use mkernel::spec::{Dtype, Placement};

/// Returns jobs of one length each: odd lengths, masks, both placements and layouts, heads that share K
/// and V, ranks without rows, and few slots.
pub fn small(world: u32) -> Vec<(String, AttentionJob)> {
    use Placement::{Contiguous, Zigzag};
    let job = |sizes, sms| AttentionJob::new(world, sizes, sms);
    let mut jobs = vec![
        ("all keys", job([1, 260, 2, 2, 64], 3)),
        ("wide heads", job([1, 257, 2, 1, 128], 2).bhsd()),
        ("a mask", job([1, 301, 2, 1, 64], 3).causal(Contiguous)),
        ("zigzag", job([2, 150, 2, 1, 64], 3).causal(Zigzag).bhsd()),
        (
            "zigzag, all keys",
            job([1, 299, 2, 2, 64], 3).zigzag().scale(0.3),
        ),
        (
            "a graph",
            job([1, 140, 2, 2, 64], 2).pattern(CallPattern::Graph),
        ),
        ("a row", job([2, 1, 3, 3, 64], 2)),
        (
            "scores of all sizes",
            job([1, 200, 2, 1, 64], 2).inputs(InputKind::Extreme),
        ),
        (
            "not finite",
            job([1, 200, 4, 2, 64], 2).inputs(InputKind::NotFinite),
        ),
        (
            "not finite, a mask",
            job([1, 200, 2, 2, 64], 2)
                .causal(Zigzag)
                .inputs(InputKind::NotFinite),
        ),
    ];
    jobs.extend(of_fp16(world));
    if world > 1 {
        jobs.extend([
            ("one slot", job([2, 150, 2, 2, 64], 3).slots(1, 1)),
            (
                "one slot, a graph",
                job([2, 100, 2, 1, 64], 2)
                    .slots(1, 1)
                    .pattern(CallPattern::Graph),
            ),
            ("two slots", job([3, 260, 2, 1, 64], 4).slots(2, 2).bhsd()),
            (
                "one slot, a mask",
                job([1, 300, 4, 2, 64], 3).slots(1, 1).causal(Zigzag),
            ),
            (
                "two slots, a mask",
                job([1, 150, 6, 3, 64], 2).slots(2, 1).causal(Contiguous),
            ),
        ]);
    }
    let name = |(name, job)| (format!("attention, {name}, on {world} ranks"), job);
    jobs.into_iter().map(name).collect()
}

/// Sets elements of fp16 in place of bf16.
fn fp16(mut job: AttentionJob) -> AttentionJob {
    job.config.dtype = Dtype::Fp16;
    job
}

fn of_fp16(world: u32) -> [(&'static str, AttentionJob); 2] {
    let job = |sizes| fp16(AttentionJob::new(world, sizes, 2));
    [
        (
            "scores of all sizes of fp16",
            job([1, 200, 2, 1, 128]).inputs(InputKind::Extreme),
        ),
        (
            "not finite, a mask, fp16",
            job([1, 200, 2, 2, 64])
                .causal(Placement::Zigzag)
                .inputs(InputKind::NotFinite),
        ),
    ]
}

/// Returns jobs whose calls have different lengths, by one operator each: all layouts, placements and masks, heads that
/// share K and V, and slots for some of the heads.
pub fn with_rows(world: u32) -> Vec<(String, AttentionJob)> {
    use Placement::{Contiguous, Zigzag};
    let job = |sizes, sms| AttentionJob::new(world, sizes, sms);
    let lengths = [150, 0, 3, 300, 1, 257, 2];
    let mut jobs = vec![
        ("all keys", job([1, 300, 2, 2, 64], 3).with_rows(&lengths)),
        (
            "batches",
            job([2, 300, 2, 1, 64], 3).zigzag().with_rows(&lengths),
        ),
        (
            "batches of fp16",
            fp16(job([2, 300, 2, 1, 64], 3).with_rows(&lengths)),
        ),
        (
            "a mask",
            job([2, 300, 2, 1, 64], 3)
                .causal(Contiguous)
                .bhsd()
                .with_rows(&lengths),
        ),
        (
            "zigzag in a graph",
            job([2, 300, 2, 2, 64], 2)
                .causal(Zigzag)
                .bhsd()
                .with_rows(&lengths)
                .pattern(CallPattern::Graph),
        ),
        (
            "wide heads in a graph",
            job([1, 140, 2, 1, 128], 2)
                .with_rows(&[140, 1, 0, 129, 140])
                .pattern(CallPattern::Graph),
        ),
        (
            "not finite",
            job([1, 200, 2, 2, 64], 2)
                .causal(Zigzag)
                .inputs(InputKind::NotFinite)
                .with_rows(&[200, 13, 199, 200]),
        ),
    ];
    if world > 1 {
        jobs.extend(with_rows_and_turns(world));
    }
    let name = |(name, job)| {
        let name = format!("attention, {name}, on {world} ranks, any rows");
        (name, job)
    };
    jobs.into_iter().map(name).collect()
}

/// Returns jobs whose calls give the rows, in which heads of K and V take turns in slots.
fn with_rows_and_turns(world: u32) -> [(&'static str, AttentionJob); 3] {
    use Placement::{Contiguous, Zigzag};
    let job = |sizes, sms| AttentionJob::new(world, sizes, sms);
    let lengths = [257, 0, 3, 300];
    [
        (
            "one slot",
            job([2, 300, 2, 2, 64], 3).slots(1, 1).with_rows(&lengths),
        ),
        (
            "one slot, a mask, a graph",
            job([1, 300, 4, 2, 64], 3)
                .slots(1, 1)
                .causal(Zigzag)
                .with_rows(&lengths)
                .pattern(CallPattern::Graph),
        ),
        (
            "two slots",
            job([3, 260, 2, 1, 64], 4)
                .slots(2, 2)
                .causal(Contiguous)
                .with_rows(&[131, 0, 260, 1]),
        ),
    ]
}

/// Returns jobs on several nodes whose calls give the rows.
pub fn with_rows_across(
    nodes: u32,
    local_world: u32,
    faults: &Faults,
) -> Vec<(String, AttentionJob)> {
    use Placement::{Contiguous, Zigzag};
    let job = |sizes| {
        let job = AttentionJob::new(nodes * local_world, sizes, 3);
        let job = job.across(nodes, faults.clone()).pushed_by(2);
        job.with_rows(&[299, 0, 1, 300, 5])
    };
    let jobs = [
        ("all keys", job([1, 300, 4, 4, 64])),
        ("a mask", job([1, 300, 2, 1, 64]).causal(Contiguous)),
        ("zigzag", job([2, 300, 2, 2, 64]).causal(Zigzag).bhsd()),
        (
            "a graph",
            job([2, 300, 2, 1, 64]).zigzag().pattern(CallPattern::Graph),
        ),
    ];
    let name = |(name, job)| {
        let name = format!("attention, {name}, on {nodes}x{local_world}, any rows");
        (name, job)
    };
    jobs.into_iter().map(name).collect()
}

/// Returns jobs whose calls have packed sequences of different lengths, by one operator each: no sequence, one sequence,
/// the most sequences, and the most rows in one or in many sequences. All layouts, placements and masks, and heads that
/// share K and V.
pub fn with_sequences(world: u32) -> Vec<(String, AttentionJob)> {
    use Placement::{Contiguous, Zigzag};
    let job = |sizes, sms| AttentionJob::new(world, sizes, sms);
    let lengths: &[&[u64]] = &[
        &[100, 0, 3, 150],
        &[],
        &[0, 300],
        &[1, 1, 1, 1, 1],
        &[60, 60, 60, 60, 60],
        &[0, 0, 7],
        &[299, 1],
        &[2, 131, 0, 129, 38],
    ];
    let jobs = [
        (
            "all keys",
            job([5, 300, 2, 2, 64], 3).with_sequences(lengths),
        ),
        (
            "a mask",
            job([5, 300, 2, 1, 64], 3)
                .causal(Contiguous)
                .bhsd()
                .with_sequences(lengths),
        ),
        (
            "zigzag in a graph",
            job([5, 300, 4, 2, 64], 3)
                .causal(Zigzag)
                .with_sequences(lengths)
                .pattern(CallPattern::Graph),
        ),
        (
            "wide heads in a graph",
            job([3, 140, 2, 1, 128], 2)
                .zigzag()
                .with_sequences(&[&[100, 40], &[0, 1], &[], &[5, 130, 5], &[140]])
                .pattern(CallPattern::Graph),
        ),
        (
            "not finite",
            job([6, 400, 2, 2, 64], 2)
                .causal(Zigzag)
                .inputs(InputKind::NotFinite)
                .with_sequences(&[&[100, 13, 170, 9, 100, 8], &[1, 1, 1, 1, 1, 1], &[390, 10]]),
        ),
        ("one sequence", {
            let job = job([1, 200, 2, 2, 64], 2).causal(Zigzag);
            job.with_sequences(&[&[200], &[3], &[0], &[130], &[200]])
        }),
        ("many sequences", {
            let short: Vec<u64> = (0..70).map(|i| i % 4).collect();
            let job = job([70, 140, 1, 1, 64], 2).causal(Zigzag);
            job.with_sequences(&[&short, &[1; 70], &[0; 70], &short])
        }),
    ];
    let name = |(name, job)| {
        let name = format!("attention, {name}, on {world} ranks, packed");
        (name, job)
    };
    jobs.into_iter().map(name).collect()
}

/// Returns the first row of the last of `chunks` chunks of a sequence.
pub fn first_of_last_chunk(rows: u64, chunks: u32) -> u64 {
    let chunks = u64::from(chunks);
    (chunks - 1) * rows.div_ceil(chunks)
}

/// Returns jobs in which a row of K and V is not finite. The row is the first row of a tile, so that with a mask no query
/// of an earlier tile or chunk meets the row, although the row may lie behind the end of another chunk in memory.
pub fn not_finite_rows(world: u32) -> Vec<(String, AttentionJob)> {
    use Placement::{Contiguous, Zigzag};
    let job = |sizes, row| AttentionJob::new(world, sizes, 3).inputs(InputKind::NotFiniteRow(row));
    // A single rank has one chunk, of several tiles.
    let contiguous = |rows| match world {
        1 => 128,
        _ => first_of_last_chunk(rows, world),
    };
    // On the first rank, the last chunk lies behind the end of the first chunk.
    let mirrored = |rows| first_of_last_chunk(rows, 2 * world);
    let mut jobs = vec![
        (
            "contiguous",
            job([1, 300, 3, 3, 64], contiguous(300)).causal(Contiguous),
        ),
        (
            "two batches",
            job([2, 290, 2, 1, 64], contiguous(290))
                .causal(Contiguous)
                .bhsd(),
        ),
        (
            "mirrored",
            job([1, 380, 3, 3, 64], mirrored(380)).causal(Zigzag),
        ),
        (
            "mirrored, all keys",
            job([1, 380, 1, 1, 128], mirrored(380)).zigzag(),
        ),
    ];
    if world > 1 {
        let few_slots = job([1, 300, 3, 3, 64], mirrored(300));
        jobs.push(("few slots", few_slots.slots(1, 1).causal(Zigzag)));
    }
    if world == 2 {
        let long = job([1, 768, 1, 1, 64], 576).causal(Zigzag);
        jobs.push(("192 rows per chunk", long));
    }
    let name = |(name, job)| {
        (
            format!("attention, a row not finite, {name}, on {world} ranks"),
            job,
        )
    };
    jobs.into_iter().map(name).collect()
}

/// Returns lengths of up to `sequences` packed sequences of up to `most` rows together: some sequences without rows,
/// some of one row, and often `most` rows in total.
pub fn random_sequences(random: &mut Random, sequences: u64, most: u64) -> Vec<u64> {
    let mut left = most;
    let mut lengths: Vec<u64> = (0..random.below(sequences + 1))
        .map(|_| {
            let rows = match random.below(5) {
                0 => 0,
                1 => left.min(1),
                _ => random.below(left.min(2 * most / sequences + 1) + 1),
            };
            left -= rows;
            rows
        })
        .collect();
    if random.below(2) == 0 && !lengths.is_empty() {
        let index = random.below(lengths.len() as u64) as usize;
        lengths[index] += left;
    }
    lengths
}
