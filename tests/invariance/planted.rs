//! Planted dependences on the batch. Generated mutants change the order of threads, so they do not show whether the comparison
//! of batches finds sums that are added in another order or rounded at another place.

use super::{collectives, jobs, layers};
use mkernel_testing::jobs::attention::compared::sequences;
use mkernel_testing::jobs::{SimulatedJob, all_fail, named, share};

/// A mistake: its name, a part of the name of the job that shows it, a text of the kernel, and its replacement.
type Mistake = (&'static str, &'static str, &'static str, &'static str);

#[rustfmt::skip]
const OF_GEMMS: &[Mistake] = &[
    ("an owner that does not round its own sum", "gemm_rs of four ranks", "rounded[col / Fragment::kBlockCols][half] = Partial::pack(x, y);", "rounded[col / Fragment::kBlockCols][half] = 0; return;"),
    ("sums added in an order that depends on the owner", "gemm_rs of four ranks", "if constexpr (BatchInvariant<Config>) return i <= own ? i - 1 : i;", "if constexpr (true) return (own + Ranks::kLocalWorld - i) % Ranks::kLocalWorld;"),
    ("an owner that adds its own sum first", "gemm_rs of four ranks", "if (source != own) {", "if (source != 0) {"),
    ("CTAs that add slices one after the other", "gemm,", "* kWarpgroup);\n          v.x += w.x, v.y += w.y, v.z += w.z, v.w += w.w;", "* kWarpgroup); sum.add(j, w);\n"),
    ("a cluster that adds slices one after the other", "gemm,", "(own ^ 3)));\n        v.x += w.x, v.y += w.y, v.z += w.z, v.w += w.w;", "(own ^ 3))); sum.add(block, w);\n"),
    ("a CTA that adds granules one after the other", "gemm,", "if (granule % 2 == 1 && granule != count) continue;", ""),
    ("granules of a whole tile that end elsewhere", "gemm,", "const u32 end = (first + granule) * Config::kKSteps / kAll;", "const u32 end = granule == count ? work.k_end : begin + (work.k_end - begin) / 2;"),
];

#[rustfmt::skip]
const OF_COLLECTIVES: &[Mistake] = &[
    ("a node that does not round its own sum", "all_reduce across nodes", "total.add(sum.result());", "for (u32 i = 0; i < Sum::kElements; ++i) total.values[i] += sum.values[i];"),
    ("squares of a row that lanes add up, each its own", "norm of two ranks", "if (block % kWarp == lane_index()) sum += squares;", "sum += squares / kWarp;"),
];

#[rustfmt::skip]
const OF_EXPERTS: &[Mistake] = &[
    ("a rank that does not round the sum of its own rows", "experts of two ranks", "of_node.add(of_rank.result());", "for (u32 i = 0; i < Sum::kElements; ++i) of_node.values[i] += of_rank.values[i];"),
    ("a node that does not round its own sum", "experts across nodes", "all.add(of_node.result());", "for (u32 i = 0; i < Sum::kElements; ++i) all.values[i] += of_node.values[i];"),
];

/// The keys of other ranks, taken in the opposite order if a condition holds.
const TURNS: &str = "const u32 turn = span / Sequence::kKeyChunks;";

#[rustfmt::skip]
const OF_ATTENTION: &[Mistake] = &[
    ("an order of keys that depends on the place of the sequence", "attention on four ranks", TURNS, "u32 turn = span / Sequence::kKeyChunks; if (turn != 0 && tile.sequence.first_row != 0) turn = Ranks::kWorld - turn;"),
    ("an order of keys that depends on the most rows", "attention across nodes", TURNS, "u32 turn = span / Sequence::kKeyChunks; if (turn != 0 && Config::kSequence > 200) turn = Ranks::kWorld - turn;"),
];

fn all_are_found<J: SimulatedJob + Sync>(mistakes: &[Mistake], jobs: fn() -> Vec<(String, J)>) {
    let planted = |(name, of_job, from, to): &Mistake| {
        let mut job = named(jobs(), of_job);
        job.edit(vec![((*from).to_owned(), (*to).to_owned())]);
        (*name, job)
    };
    let some = share(mistakes.to_vec(), "", (0, 2));
    all_fail(&some.iter().map(planted).collect::<Vec<_>>(), 1);
}

#[test]
fn dependences_of_gemms_are_found() {
    all_are_found(OF_GEMMS, jobs);
}

#[test]
fn dependences_of_collectives_are_found() {
    all_are_found(OF_COLLECTIVES, collectives);
}

#[test]
fn dependences_of_experts_are_found() {
    all_are_found(OF_EXPERTS, layers);
}

#[test]
fn dependences_of_attention_are_found() {
    all_are_found(OF_ATTENTION, sequences);
}
