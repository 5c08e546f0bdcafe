//! Tests of rows of e4m3 and their scales, which `all_gather`, `broadcast` and `all_to_all` move on simulated GPUs.

use crate::quantised::on_two_ranks;
use mkernel::cudarc::driver::CudaSlice;
use mkernel::float8::F8E4M3;
use mkernel::half::bf16;
use mkernel::spec::{CollectiveConfig, CollectiveOp, CollectiveShape, Dtype, Scales};
use mkernel::{Communicator, KernelConfig, Operand, fused_kernel};
use mkernel_testing::jobs::collective::scaled::cases::{scaled, scaled_across};
use mkernel_testing::jobs::prepared::{all_succeed, expect_refused};
use mkernel_testing::jobs::{all_are_right_now_or_after_many_calls, bad_network, each_in_one};
use mkernel_testing::lab::Failure;

#[test]
fn rows_with_scales_are_right() {
    let one_node = [scaled(1), each_in_one(&[2, 4], scaled)].concat();
    let across = each_in_one(&[(2, 1), (2, 2)], |(nodes, local)| {
        scaled_across(nodes, local, &bad_network())
    });
    all_are_right_now_or_after_many_calls(&[one_node, across].concat());
}

const ROWS: usize = 5;
const COLS: usize = 272;
const OUT: usize = 144;

#[fused_kernel(op = all_gather, m = 5, n = 272, dtype = e4m3, scales = block)]
struct Blocks;

#[fused_kernel(op = gemm, m = 5, n = 144, k = 272, b_layout = nk, dtype = e4m3, scales = block)]
struct OfBlocks;

#[fused_kernel(op = all_gather, m = 5, n = 272, dtype = e4m3, scales = row)]
struct Rows;

#[fused_kernel(op = gemm, m = 5, n = 144, k = 272, b_layout = nk, dtype = e4m3, scales = row)]
struct OfRows;

/// The rows and scales of all ranks, and B with its scales.
struct Factors {
    a: Vec<F8E4M3>,
    a_scales: Vec<f32>,
    b: CudaSlice<F8E4M3>,
    b_scales: CudaSlice<f32>,
}

impl Factors {
    /// Factors whose scales of a row of A are `of_a`, and whose scales of B are `of_b`.
    fn new(ranks: &Communicator, (of_a, of_b): (usize, usize)) -> Result<Self, Failure> {
        let stream = ranks.default_stream();
        let element = |i: usize| F8E4M3::from_f32((i * 37 % 101) as f32 / 50.0 - 1.0);
        let scale = |i: usize| 0.5 + i as f32 / 8.0;
        let b: Vec<_> = (5..OUT * COLS + 5).map(element).collect();
        Ok(Self {
            a: (0..ROWS * COLS).map(element).collect(),
            a_scales: (0..ROWS * of_a).map(scale).collect(),
            b: stream.clone_htod(&b)?,
            b_scales: stream.clone_htod(&(0..of_b).map(scale).collect::<Vec<_>>())?,
        })
    }
}

/// Multiplies gathered rows, and the same rows that no rank has sent, and compares the products.
macro_rules! chain {
    ($ranks:ident, $Gather:ident, $Gemm:ident, $GatherOperands:ident, $GemmOperands:ident, $scales:expr) => {{
        let (gather, gemm) = ($Gather::prepare($ranks)?, $Gemm::prepare($ranks)?);
        let of = Factors::new($ranks, $scales)?;
        let stream = $ranks.default_stream();
        let own = $ranks.rank() as usize * ROWS.div_ceil(2);
        let own = own..ROWS.min(own + ROWS.div_ceil(2));
        let (x, x_scales) = (
            stream.clone_htod(&of.a[own.start * COLS..own.end * COLS])?,
            stream.clone_htod(&of.a_scales[own.start * $scales.0..own.end * $scales.0])?,
        );
        let mut y = stream.alloc_zeros::<F8E4M3>(ROWS * COLS)?;
        let mut y_scales = stream.alloc_zeros::<f32>(ROWS * $scales.0)?;
        let operands = $GatherOperands {
            x: &x,
            y: &mut y,
            x_scales: &x_scales,
            y_scales: &mut y_scales,
        };
        gather.launch(&stream, operands)?;
        let all = (stream.clone_htod(&of.a)?, stream.clone_htod(&of.a_scales)?);
        let mut products = Vec::new();
        for (a, a_scales) in [(&y, &y_scales), (&all.0, &all.1)] {
            let mut c = stream.alloc_zeros::<bf16>(ROWS * OUT)?;
            let operands = $GemmOperands {
                a,
                b: &of.b,
                a_scales,
                b_scales: &of.b_scales,
                c: &mut c,
            };
            gemm.launch(&stream, operands)?;
            $ranks.synchronize(&stream)?;
            products.push(stream.clone_dtoh(&c)?);
        }
        assert!(products[0].iter().any(|c| c.to_f32() != 0.0));
        assert_eq!(products[0], products[1]);
    }};
}

/// A GEMM of e4m3 reads rows and scales where an all-gather has written these.
#[test]
fn a_gemm_reads_gathered_rows_of_e4m3() {
    let body = |ranks: &Communicator| -> Result<(), Failure> {
        chain!(
            ranks,
            Blocks,
            OfBlocks,
            BlocksOperands,
            OfBlocksOperands,
            (3, 6)
        );
        chain!(ranks, Rows, OfRows, RowsOperands, OfRowsOperands, (1, OUT));
        Ok(())
    };
    on_two_ranks(body);
}

/// Each fault names the option that would make the call right.
#[test]
fn missing_and_unasked_scales_are_refused() {
    let shape = CollectiveShape { m: 4, n: 16 };
    for scales in [Scales::None, Scales::Row] {
        let config = CollectiveConfig {
            dtype: Dtype::E4m3,
            scales,
            ..CollectiveConfig::new(CollectiveOp::AllGather)
        };
        let config = KernelConfig::new(2, config);
        all_succeed(&config, shape, (2, 0), |rank| {
            let x = rank.stream.alloc_zeros::<F8E4M3>(32).expect("memory");
            let mut y = rank.stream.alloc_zeros::<F8E4M3>(64).expect("memory");
            let x_scales = rank.stream.alloc_zeros::<f32>(2).expect("memory");
            let call = rank.operator.call(&rank.stream);
            let call = call.read(Operand::X, &x).write(Operand::Y, &mut y);
            match scales {
                Scales::None => expect_refused(
                    call.read(Operand::XScales, &x_scales).launch(),
                    "the kernel has only x, y. Leave it out, or declare the kernel with `scales`",
                ),
                _ => expect_refused(
                    call.read(Operand::XScales, &x_scales).launch(),
                    "or declare the kernel without `scales` and `result_scales`",
                ),
            }
            Ok(())
        });
    }
}
