//! Tests of `all_reduce` with a norm on simulated GPUs.

use mkernel::spec::Protocol;
use mkernel_testing::jobs::collective::CollectiveJob;
use mkernel_testing::jobs::collective::norm::NormJob;
use mkernel_testing::jobs::collective::norm::cases::{normalised, normalised_across};
use mkernel_testing::jobs::{
    Mutation, all_are_right, all_are_right_now_or_after_many_calls, all_mutations_are_found,
    bad_network,
};

/// The number of seeds with which a mutation must be found.
const MUTATION_SEEDS: u64 = 40;

#[test]
fn norms_are_right_on_one_node() {
    let worlds = [1, 2, 4].into_iter();
    all_are_right_now_or_after_many_calls(&worlds.flat_map(normalised).collect::<Vec<_>>());
}

/// Calls of none to the most rows, with every protocol. Four ranks show what other jobs differ in.
#[test]
fn norms_are_right_on_eight_ranks() {
    let mut jobs = normalised(8);
    jobs.retain(|(name, _)| name.contains("rows at run time"));
    all_are_right(&jobs, 1);
}

#[test]
fn norms_are_right_on_several_nodes() {
    let nodes = [(2, 1), (2, 2), (3, 1)].into_iter();
    let jobs = nodes.flat_map(|(nodes, local)| normalised_across(nodes, local, &bad_network()));
    all_are_right_now_or_after_many_calls(&jobs.collect::<Vec<_>>());
}

fn packets(world: u32, shots: u32) -> NormJob {
    let job = NormJob::new(world, (7, 1032), 2).biased();
    job.with(|job| job.protocol(Protocol::Ll).shots(shots))
}

fn one_shot() -> NormJob {
    packets(2, 1)
}

fn two_shots() -> NormJob {
    packets(4, 2)
}

/// Calls with fewer rows after calls with more.
fn rows() -> NormJob {
    one_shot().with(|job| job.with_rows(&[7, 2, 7, 1, 7]))
}

/// In fp32, where another order of additions has other bits.
fn numbers() -> NormJob {
    one_shot().with(CollectiveJob::fp32)
}

fn chunks() -> NormJob {
    let job = NormJob::new(4, (30, 1032), 2).biased();
    job.with(|job| job.protocol(Protocol::Simple))
}

fn one_rank() -> NormJob {
    NormJob::new(1, (30, 1032), 2)
}

#[rustfmt::skip]
const MUTATIONS: &[Mutation<NormJob>] = &[
    ("sums of squares not awaited", one_shot, &[("@norm.arrived", "packet.has_arrived(ctx.mark()) => true")]),
    ("sums of squares of another call", rows, &[("@norm.arrived", "packet.has_arrived(ctx.mark()) => packet.words.y != 0")]),
    ("sums of squares of another row", one_shot, &[("@norm.slot", "row => row ^ 1")]),
    ("a warp that does not send its squares", one_shot, &[("@norm.send", "")]),
    ("squares added in another order on each rank", numbers, &[("@norm.order", "wait_squares(ctx, row, part) => wait_squares(ctx, row, (part + ctx.rank) % kParts)")]),
    ("squares of one lane alone", one_shot, &[("@norm.warp-sum", "")]),
    ("no eps", one_shot, &[("@norm.eps", " + Config::kEps => ")]),
    ("the bias of other columns", one_shot, &[("@norm.bias", "vec % Config::kRowVecs => 0")]),
    ("no residual", two_shots, &[("@norm.residual", "")]),
    ("a sum sent to the other ranks alone", two_shots, &[("@norm.to-all", "kNormalises ? 0 : 1 => 1")]),
    ("an own chunk without a flag", chunks, &[("@norm.own-chunk", " || NormalisesRows<Config> => ")]),
    ("a chunk of a row not awaited", chunks, &[("@norm.wait-chunk", "")]),
    ("only the first chunk of a row awaited", chunks, &[("@norm.next-chunk", "place.owner != owner || place.chunk != chunk => owner == Ranks::kWorld")]),
    ("a row normalised before it is added up", one_rank, &[("@norm.wait-chunk", "")]),
];

#[test]
fn every_mutation_of_norms_is_found() {
    all_mutations_are_found(MUTATIONS, MUTATION_SEEDS);
}
