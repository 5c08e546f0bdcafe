//! Tests of groups of ranks that `Communicator::split` makes.

use crate::{alone, call, small, use_emulated_nics};
use mkernel::cudarc::driver::{CudaSlice, CudaStream};
use mkernel::error::ClusterError;
use mkernel::half::bf16;
use mkernel::testing::in_threads;
use mkernel::{Communicator, Error, Simulation, fused_kernel};
use std::sync::Arc;

const M: u64 = 64;
const N: u64 = 64;
const K: u64 = 64;

#[fused_kernel(op = gemm_ar, m = 64, n = 64, k = 64, b_layout = nk)]
struct Product;

#[fused_kernel(op = ag_gemm, m = 64, n = 64, k = 64, b_layout = nk)]
struct Gathered;

#[fused_kernel(op = all_reduce, m = 64, n = 64)]
struct Sum;

#[fused_kernel(op = all_gather, m = 64, n = 64)]
struct Rows;

pub fn ranks(count: u32, seed: u64) -> Vec<Communicator> {
    let simulation = Simulation {
        ranks: count,
        seed,
        sms: 4,
        ..Simulation::default()
    };
    Communicator::simulated(&simulation).expect("simulated GPUs")
}

pub fn group(ranks: &Communicator, color: u32, key: i32) -> Communicator {
    let group = ranks.split(Some(color), key).expect("all ranks split");
    group.expect("a group")
}

/// An element of A of a rank. One of eight is 1, so that sums over K are small and exact.
fn a(rank: u32, row: u64, k: u64) -> f32 {
    f32::from(u8::from((row + 3 * k + u64::from(rank)).is_multiple_of(8)))
}

/// An element of B of a rank.
fn b(rank: u32, col: u64, k: u64) -> f32 {
    ((5 * col + k + 2 * u64::from(rank)) % 5) as f32 - 2.0
}

/// An element of the product of a rank's A and B.
fn product((of_a, of_b): (u32, u32), row: u64, col: u64) -> f32 {
    (0..K).map(|k| a(of_a, row, k) * b(of_b, col, k)).sum()
}

fn upload(
    stream: &Arc<CudaStream>,
    (rows, cols): (u64, u64),
    value: impl Fn(u64, u64) -> f32,
) -> CudaSlice<bf16> {
    let elems = (0..rows * cols).map(|i| bf16::from_f32(value(i / cols, i % cols)));
    stream
        .clone_htod(&elems.collect::<Vec<_>>())
        .expect("memory")
}

fn zeros(stream: &Arc<CudaStream>) -> CudaSlice<bf16> {
    stream.alloc_zeros((M * N) as usize).expect("memory")
}

fn expect(stream: &Arc<CudaStream>, found: &CudaSlice<bf16>, value: impl Fn(u64, u64) -> f32) {
    let found = stream.clone_dtoh(found).expect("a copy");
    for (i, found) in (0..).zip(found) {
        let expected = value(i / N, i % N);
        assert_eq!(found.to_f32(), expected, "row {}, column {}", i / N, i % N);
    }
}

/// Ranks of a 2x2 grid sum products over rows of the grid, and then sum the results over its columns.
#[test]
fn tensor_parallel_groups_and_data_parallel_groups_share_tensors() {
    let _alone = alone();
    for seed in 0..4 {
        in_threads(ranks(4, seed), |ranks| {
            let own = ranks.rank();
            let (row, column) = (own / 2, own % 2);
            let across = group(&ranks, row, 0);
            let down = group(&ranks, column, 0);
            assert_eq!((across.rank(), across.world()), (column, 2));
            assert_eq!(down.job_ranks(), [column, column + 2]);
            let product_of = Product::prepare(&across).expect("prepared");
            let gathered = Gathered::prepare(&across).expect("prepared");
            let sum = Sum::prepare(&down).expect("prepared");
            let stream = ranks.default_stream();
            let (x, w) = (
                upload(&stream, (M, K), |m, k| a(own, m, k)),
                upload(&stream, (N, K), |n, k| b(own, n, k)),
            );
            let [mut y, mut z, mut g, mut h] = [(); 4].map(|()| zeros(&stream));
            for _ in 0..3 {
                let operands = ProductOperands {
                    a: &x,
                    b: &w,
                    c: &mut y,
                };
                product_of.launch(&stream, operands).expect("enqueued");
                let operands = SumOperands { x: &y, y: &mut z };
                sum.launch(&stream, operands).expect("enqueued");
                // Half of the rows of each rank.
                let operands = GatheredOperands {
                    a: &x.slice(..(M / 2 * K) as usize),
                    b: &w,
                    c: &mut g,
                };
                gathered.launch(&stream, operands).expect("enqueued");
                let operands = SumOperands { x: &g, y: &mut h };
                sum.launch(&stream, operands).expect("enqueued");
            }
            for group in [&across, &down, &ranks] {
                group
                    .synchronize(&stream)
                    .expect("all ranks make the calls");
            }
            expect(&stream, &z, |m, n| {
                (0..4).map(|rank| product((rank, rank), m, n)).sum()
            });
            expect(&stream, &h, |m, n| {
                let of_row = |row: u32| {
                    let from = 2 * row + (m / (M / 2)) as u32;
                    product((from, 2 * row + column), m % (M / 2), n)
                };
                of_row(0) + of_row(1)
            });
            assert_eq!(ranks.findings(), []);
        });
    }
}

/// All ranks sum up over each axis of 2x2x2 ranks in turn, and over all ranks on another stream.
#[test]
fn eight_ranks_have_groups_in_three_dimensions() {
    let _alone = alone();
    in_threads(ranks(8, 3), |ranks| {
        let own = ranks.rank();
        let axes = [0, 1, 2].map(|axis| group(&ranks, own & !(1 << axis), 0));
        let sums = axes
            .each_ref()
            .map(|axis| Sum::prepare(axis).expect("prepared"));
        let of_all = Sum::prepare(&ranks).expect("prepared");
        let stream = ranks.default_stream();
        let other = ranks.context().new_stream().expect("a stream");
        let x = upload(&stream, (M, N), |m, n| {
            ((m + n + u64::from(own)) % 4) as f32
        });
        let [mut y, mut z] = [(); 2].map(|()| zeros(&stream));
        let mut all = zeros(&other);
        ranks.synchronize(&stream).expect("uploaded");
        for _ in 0..2 {
            let operands = SumOperands { x: &x, y: &mut all };
            of_all.launch(&other, operands).expect("enqueued");
            sums[0]
                .launch(&stream, SumOperands { x: &x, y: &mut y })
                .expect("enqueued");
            sums[1]
                .launch(&stream, SumOperands { x: &y, y: &mut z })
                .expect("enqueued");
            sums[2]
                .launch(&stream, SumOperands { x: &z, y: &mut y })
                .expect("enqueued");
        }
        for axis in &axes {
            axis.synchronize(&stream).expect("all ranks make the calls");
        }
        ranks.synchronize(&other).expect("all ranks make the calls");
        for sum in [&y, &all] {
            // Two of the eight ranks have each of the four values.
            expect(&stream, sum, |_, _| 2.0 * (0.0 + 1.0 + 2.0 + 3.0));
        }
        assert_eq!(ranks.findings(), []);
    });
}

/// Rank 2 is in no group, rank 0 alone in one, and ranks 3 and 1 are in reverse order. The group of a group is used after both
/// of its parent communicators were dropped.
#[test]
fn keys_order_ranks_and_groups_are_split_again() {
    let _alone = alone();
    let shown = in_threads(ranks(4, 4), |ranks| {
        let own = ranks.rank();
        let color = [Some(7), Some(2), None, Some(2)][own as usize];
        let first = ranks.split(color, -(own as i32)).expect("all ranks split");
        assert_eq!(first.is_none(), own == 2);
        let reversed = group(&ranks, 0, -(own as i32));
        assert_eq!(reversed.job_ranks(), [3, 2, 1, 0]);
        let halves = group(&reversed, reversed.rank() / 2, 0);
        drop((ranks, reversed));
        let stream = halves.default_stream();
        for group in first.iter().chain([&halves]) {
            let rows = Rows::prepare(group).expect("prepared");
            let shard = M / u64::from(group.world());
            let x = upload(&stream, (shard, N), |m, n| {
                f32::from(own as u8) + (m + n) as f32
            });
            let mut y = zeros(&stream);
            let operands = RowsOperands { x: &x, y: &mut y };
            rows.launch(&stream, operands).expect("enqueued");
            group.synchronize(&stream).expect("all ranks make the call");
            let of_rows = |m: u64| group.job_ranks()[(m / shard) as usize];
            expect(&stream, &y, |m, n| {
                of_rows(m) as f32 + (m % shard + n) as f32
            });
            group.barrier().expect("all ranks of the group");
        }
        assert_eq!(halves.findings(), []);
        format!("{first:?} {halves:?}")
    });
    let expected = [
        "Some(Communicator(rank 0 of 1, group [0])) Communicator(rank 1 of 2, group [1, 0])",
        "Some(Communicator(rank 1 of 2, group [3, 1])) Communicator(rank 0 of 2, group [1, 0])",
        "None Communicator(rank 1 of 2, group [3, 2])",
        "Some(Communicator(rank 0 of 2, group [3, 1])) Communicator(rank 0 of 2, group [3, 2])",
    ];
    assert_eq!(shown, expected);
}

/// All ranks get the error, also the ranks of a valid group. The next split works.
#[test]
fn a_group_that_kernels_do_not_support_is_an_error_on_all_ranks() {
    let _alone = alone();
    in_threads(ranks(4, 5), |ranks| {
        let own = ranks.rank();
        let error = ranks.split(Some(u32::from(own == 1)), 0);
        let error = error.expect_err("three ranks");
        let Error::Cluster(ClusterError::GroupSize {
            color: 0,
            ranks: members,
        }) = &error
        else {
            panic!("{error}");
        };
        assert_eq!(members, &[0, 2, 3]);
        let pair = group(&ranks, own % 2, 0);
        pair.barrier().expect("both ranks");
    });
}

/// Two groups of two nodes each, with emulated NICs between the nodes, and all ranks in two nodes.
#[test]
fn groups_have_nodes_of_their_own() {
    let _alone = alone();
    in_threads(ranks(8, 6), |ranks| {
        use_emulated_nics(&ranks);
        let half = group(&ranks, ranks.rank() % 2, 0);
        let groups = [half, ranks];
        let operators = groups.each_ref().map(|group| {
            let (config, shape) = small(group);
            (group.prepare(&config, shape).expect("prepared"), shape)
        });
        for _ in 0..3 {
            for (group, (operator, shape)) in groups.iter().zip(&operators) {
                call(group, operator, *shape).expect("all take part");
            }
        }
        let puts = groups
            .each_ref()
            .map(|group| group.stats().fabrics[0].endpoint.puts);
        assert!(puts.iter().all(|puts| *puts >= 3), "{puts:?}");
        assert_eq!(groups[0].findings(), []);
        groups[1].barrier().expect("all ranks");
    });
}
