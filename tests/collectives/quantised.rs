//! An all-reduce with a norm whose result is e4m3: a chain with the GEMM that reads this result, and numbers that are not finite.

use mkernel::cudarc::driver::CudaSlice;
use mkernel::float8::F8E4M3;
use mkernel::half::bf16;
use mkernel::{Communicator, fused_kernel};
use mkernel_testing::jobs::{Backend, Machine};
use mkernel_testing::lab::Failure;

const ROWS: usize = 5;
const COLS: usize = 272;
const OUT: usize = 144;

#[fused_kernel(op = all_reduce, m = 5, n = 272, residual = true, norm = rms, result_scales = block)]
struct Blocks;

#[fused_kernel(op = gemm, m = 5, n = 144, k = 272, b_layout = nk, dtype = e4m3, scales = block)]
struct OfBlocks;

#[fused_kernel(op = all_reduce, m = 5, n = 272, residual = true, norm = rms, result_scales = row)]
struct Rows;

#[fused_kernel(op = gemm, m = 5, n = 144, k = 272, b_layout = nk, dtype = e4m3, scales = row)]
struct OfRows;

/// The operands of both operators on a rank, and the rows and the columns of B that share a scale. A scale of A is for one row and as
/// many columns.
struct Chain {
    x: CudaSlice<bf16>,
    residual: CudaSlice<bf16>,
    weight: CudaSlice<bf16>,
    b: CudaSlice<F8E4M3>,
    b_scales: CudaSlice<f32>,
    y: CudaSlice<F8E4M3>,
    y_scales: CudaSlice<f32>,
    c: CudaSlice<bf16>,
    share: (usize, usize),
}

fn element(index: usize) -> f32 {
    (index * 37 % 101) as f32 / 50.0 - 1.0
}

impl Chain {
    fn new(ranks: &Communicator, share: (usize, usize)) -> Result<Self, Failure> {
        let stream = ranks.default_stream();
        let bf16s = |count: usize, from: usize| -> Vec<bf16> {
            (from..from + count)
                .map(|i| bf16::from_f32(element(i)))
                .collect()
        };
        let b: Vec<_> = (0..OUT * COLS)
            .map(|i| F8E4M3::from_f32(element(i + 5)))
            .collect();
        let scales_of_b = OUT.div_ceil(share.0) * COLS.div_ceil(share.1);
        let b_scales: Vec<_> = (0..scales_of_b).map(|i| 1.0 + i as f32 / 8.0).collect();
        Ok(Self {
            x: stream.clone_htod(&bf16s(ROWS * COLS, 1 + ranks.rank() as usize))?,
            residual: stream.clone_htod(&bf16s(ROWS * COLS, 11))?,
            weight: stream.clone_htod(&bf16s(COLS, 3))?,
            b: stream.clone_htod(&b)?,
            b_scales: stream.clone_htod(&b_scales)?,
            y: stream.alloc_zeros(ROWS * COLS)?,
            y_scales: stream.alloc_zeros(ROWS * COLS.div_ceil(share.1))?,
            c: stream.alloc_zeros(ROWS * OUT)?,
            share,
        })
    }

    /// Compares C with the product of what the GEMM has read, and this with the norm in fp64.
    fn check(&self, ranks: &Communicator, residual_out: &CudaSlice<bf16>) -> Result<(), Failure> {
        let stream = ranks.default_stream();
        ranks.synchronize(&stream)?;
        let floats = |all: Vec<bf16>| all.into_iter().map(bf16::to_f64).collect::<Vec<_>>();
        let narrow = |all: Vec<F8E4M3>| all.iter().map(F8E4M3::to_f64).collect::<Vec<_>>();
        let (y, b) = (
            narrow(stream.clone_dtoh(&self.y)?),
            narrow(stream.clone_dtoh(&self.b)?),
        );
        let (of_y, of_b) = (
            stream.clone_dtoh(&self.y_scales)?,
            stream.clone_dtoh(&self.b_scales)?,
        );
        let (z, c) = (
            floats(stream.clone_dtoh(residual_out)?),
            floats(stream.clone_dtoh(&self.c)?),
        );
        let weight = floats(stream.clone_dtoh(&self.weight)?);
        let (rows, cols) = self.share;
        let blocks = COLS.div_ceil(cols);
        for row in 0..ROWS {
            let a = |k: usize| y[row * COLS + k] * f64::from(of_y[row * blocks + k / cols]);
            let z = &z[row * COLS..(row + 1) * COLS];
            let mean = z.iter().map(|z| z * z).sum::<f64>() / COLS as f64 + 1e-6;
            for k in 0..COLS {
                let norm = z[k] / mean.sqrt() * weight[k];
                let step = norm.abs() / 14.0 + f64::from(of_y[row * blocks + k / cols]) / 512.0;
                assert!(
                    (a(k) - norm).abs() <= step,
                    "{row}, {k}: {} is not {norm}",
                    a(k)
                );
            }
            for col in 0..OUT {
                let scale = |k: usize| f64::from(of_b[col / rows * blocks + k / cols]);
                let terms = (0..COLS).map(|k| a(k) * b[col * COLS + k] * scale(k));
                let (sum, size) =
                    terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
                let found = c[row * OUT + col];
                assert!(
                    (found - sum).abs() <= sum.abs() / 250.0 + size / 4096.0,
                    "{row}, {col}: {found} is not {sum}"
                );
            }
        }
        Ok(())
    }
}

/// Makes both calls, without a copy between these.
macro_rules! chain {
    ($ranks:ident, $Norm:ident, $Gemm:ident, $NormOperands:ident, $GemmOperands:ident, $share:expr) => {{
        let (norm, gemm) = ($Norm::prepare($ranks)?, $Gemm::prepare($ranks)?);
        let mut of = Chain::new($ranks, $share)?;
        let stream = $ranks.default_stream();
        let mut residual_out = stream.alloc_zeros::<bf16>(ROWS * COLS)?;
        let operands = $NormOperands {
            x: &of.x,
            y: &mut of.y,
            residual: &of.residual,
            weight: &of.weight,
            residual_out: &mut residual_out,
            y_scales: &mut of.y_scales,
        };
        norm.launch(&stream, operands)?;
        let operands = $GemmOperands {
            a: &of.y,
            b: &of.b,
            a_scales: &of.y_scales,
            b_scales: &of.b_scales,
            c: &mut of.c,
        };
        gemm.launch(&stream, operands)?;
        of.check($ranks, &residual_out)
    }};
}

/// Runs `body` on two ranks, which must both succeed.
pub fn on_two_ranks(body: impl Fn(&Communicator) -> Result<(), Failure> + Sync) {
    let machine = Machine {
        world: 2,
        sms: 2,
        skew: 20,
    };
    machine
        .run(Backend::Simulated { seed: 3 }, body)
        .expect("right");
}

/// A GEMM of e4m3 reads the result and its scales where the all-reduce has written these.
#[test]
fn a_gemm_reads_normalised_rows_of_e4m3() {
    let body = |ranks: &Communicator| -> Result<(), Failure> {
        chain!(
            ranks,
            Blocks,
            OfBlocks,
            BlocksOperands,
            OfBlocksOperands,
            (128, 128)
        )?;
        chain!(ranks, Rows, OfRows, RowsOperands, OfRowsOperands, (1, COLS))
    };
    on_two_ranks(body);
}

/// Elements and scales of one call, all of whose elements of X are one.
macro_rules! quantised {
    ($ranks:ident, $Norm:ident, $NormOperands:ident, $weight:expr, $scales:expr) => {{
        let norm = $Norm::prepare($ranks)?;
        let stream = $ranks.default_stream();
        let ones = vec![bf16::ONE; ROWS * COLS];
        let (x, residual) = (stream.clone_htod(&ones)?, stream.clone_htod(&ones)?);
        let mut residual_out = stream.alloc_zeros::<bf16>(ROWS * COLS)?;
        let mut y = stream.alloc_zeros::<F8E4M3>(ROWS * COLS)?;
        let mut y_scales = stream.alloc_zeros::<f32>(ROWS * $scales)?;
        let operands = $NormOperands {
            x: &x,
            y: &mut y,
            residual: &residual,
            weight: &stream.clone_htod(&$weight)?,
            residual_out: &mut residual_out,
            y_scales: &mut y_scales,
        };
        norm.launch(&stream, operands)?;
        $ranks.synchronize(&stream)?;
        (stream.clone_dtoh(&y)?, stream.clone_dtoh(&y_scales)?)
    }};
}

/// The norm is 1 but for weights: a NaN stays alone, an infinity makes NaN of all that shares its scale, and zeros stay zeros.
fn check_not_finite(ranks: &Communicator) -> Result<(), Failure> {
    let mut weight = vec![bf16::ONE; COLS];
    weight[3] = bf16::NAN;
    let (y, scales) = quantised!(ranks, Rows, RowsOperands, weight, 1);
    for (index, y) in y.iter().enumerate() {
        assert!(y.is_nan() == (index % COLS == 3) && (y.is_nan() || y.to_f32() == 448.0));
    }
    assert_eq!(scales, [1.0 / 448.0; ROWS]);
    weight[130] = bf16::NEG_INFINITY;
    weight[256..].fill(bf16::ZERO);
    let (y, scales) = quantised!(ranks, Rows, RowsOperands, weight, 1);
    assert!(y.iter().all(|y| y.is_nan()) && scales == [f32::INFINITY; ROWS]);
    let (y, scales) = quantised!(ranks, Blocks, BlocksOperands, weight, 3);
    for (index, y) in y.iter().enumerate() {
        match index % COLS {
            3 | 128..256 => assert!(y.is_nan(), "{index}: {y}"),
            256.. => assert_eq!(y.to_bits(), 0, "{index}: {y}"),
            _ => assert_eq!(y.to_f32(), 448.0, "{index}"),
        }
    }
    let of_zeros = 2f32.powi(-64) * (1.0 / 448.0);
    assert_eq!(scales, [1.0 / 448.0, f32::INFINITY, of_zeros].repeat(ROWS));
    Ok(())
}

#[test]
fn numbers_that_are_not_finite_become_nans_of_e4m3() {
    on_two_ranks(check_not_finite);
}
