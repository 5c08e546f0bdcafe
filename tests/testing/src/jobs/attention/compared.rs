//! [`ComparedSequences`]: a sequence has equal bits in all calls, for all neighbours, positions and plans.

use super::AttentionJob;
use super::CallPattern::Graph;
use crate::jobs::{Backend, Results, SimulatedJob};
use mkernel::network::Faults;
use mkernel::spec::Placement::Zigzag;

/// Rows of the sequence.
const ROWS: u64 = 150;
/// Heads of Q, heads of K, and elements of a row of a head.
const HEADS: [u64; 3] = [2, 1, 64];

/// A job with a call that has the sequence.
#[derive(Clone, Debug)]
struct Call {
    name: &'static str,
    job: AttentionJob,
    call: usize,
    /// The place of the sequence among the packed sequences of the call.
    place: usize,
}

impl Call {
    /// The bits of O and of LSE of the sequence on a rank, head by head.
    fn bits(&self, results: &Results, rank: usize) -> Vec<u32> {
        let (job, found) = (&self.job, &results[rank][self.call]);
        let lengths = match job.sequences.get(self.call) {
            Some(lengths) => lengths.as_slice(),
            None => &[ROWS],
        };
        let placement = job.config.placement;
        let rows = |length: &u64| {
            let rows = placement.rows_of(job.machine.world, rank as u32, *length);
            rows.iter().map(|rows| rows.end - rows.start).sum::<u64>() as usize
        };
        let before: usize = lengths[..self.place].iter().map(rows).sum();
        let (own, all) = (rows(&ROWS), lengths.iter().map(rows).sum::<usize>());
        let [heads, _, dim] = HEADS.map(|size| size as usize);
        let (o, lse) = found.split_at(all * heads * dim);
        let of_head = |head| &lse[head * all + before..][..own];
        let of_heads = (0..heads).flat_map(of_head);
        let o = &o[before * heads * dim..][..own * heads * dim];
        o.iter().chain(of_heads).copied().collect()
    }
}

/// Calls of the sequence, whose bits must equal the bits of the first call.
#[derive(Clone, Debug)]
pub struct ComparedSequences(Vec<Call>);

impl ComparedSequences {
    /// Makes the calls on a backend.
    ///
    /// # Errors
    /// A call fails, or a bit of the sequence differs.
    pub fn run_on(&self, backend: Backend) -> Result<(), String> {
        let mut first = None;
        for call in &self.0 {
            let named = |error| format!("{}: {error}", call.name);
            let results = call.job.run_on(backend).map_err(named)?;
            let bits: Vec<_> = (0..results.len())
                .map(|rank| call.bits(&results, rank))
                .collect();
            if *first.get_or_insert_with(|| bits.clone()) != bits {
                return Err(format!("{}: the sequence differs", call.name));
            }
        }
        Ok(())
    }
}

impl SimulatedJob for ComparedSequences {
    fn run(&self, seed: u64) -> Result<Results, String> {
        self.run_on(Backend::Simulated { seed })
            .map(|()| Results::new())
    }

    fn edit(&mut self, edits: Vec<(String, String)>) {
        for call in &mut self.0 {
            call.job.edit(edits.clone());
        }
    }
}

/// The sequence in calls of all kinds on `nodes` nodes of `local` ranks. The elements of a sequence depend on its number in
/// its job, so the number is 2 in each job.
#[must_use]
pub fn compared((nodes, local): (u32, u32), is_causal: bool) -> ComparedSequences {
    let job = |batch, most, sms| {
        let [heads, kv_heads, dim] = HEADS;
        let job = AttentionJob::new(nodes * local, [batch, most, heads, kv_heads, dim], sms);
        match is_causal {
            true => job.causal(Zigzag),
            false => job,
        }
    };
    let call = |name, job, call, place| Call {
        name,
        job,
        call,
        place,
    };
    let short = [20, 40, ROWS];
    let constant = job(1, ROWS, 5);
    let at_most = job(1, 400, 3).with_rows(&short);
    if nodes > 1 {
        let calls = [constant, at_most].map(|job| job.across(nodes, Faults::default()));
        let [constant, at_most] = calls;
        return ComparedSequences(vec![
            call("a constant length", constant, 2, 0),
            call("a length of the call", at_most, 2, 0),
        ]);
    }
    let mut calls = vec![
        call("a constant length", constant.clone(), 2, 0),
        call("a length in memory", at_most.pattern(Graph), 2, 0),
        call(
            "packed alone",
            job(1, ROWS, 3).with_sequences(&[&[20], &[ROWS]]),
            1,
            0,
        ),
        call(
            "packed between others",
            job(3, 301, 2).with_sequences(&[&[21, ROWS, 130]]),
            0,
            1,
        ),
    ];
    if local > 1 {
        calls.push(call("a ring", constant.slots(1, 1), 2, 0));
    }
    ComparedSequences(calls)
}

/// The sequence on one rank, on several ranks, and across nodes.
#[must_use]
pub fn sequences() -> Vec<(String, ComparedSequences)> {
    [
        ("attention on one rank", (1, 1), true),
        ("attention on two ranks", (1, 2), false),
        ("attention on four ranks", (1, 4), true),
        ("attention across nodes", (3, 1), true),
    ]
    .map(|(name, ranks, is_causal)| (name.to_owned(), compared(ranks, is_causal)))
    .into()
}
