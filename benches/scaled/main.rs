//! Benchmark of `gemm` with operands of e4m3 and scales on one GPU, beside cuBLASLt. Needs a GPU and cuBLASLt.
//!
//! `cargo bench --bench scaled -- --help` lists the options, which are the fields of [`Flags`].

use clap::Parser;
use mkernel::cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use mkernel::float8::F8E4M3;
use mkernel::half::bf16;
use mkernel::operands::{RawOperand, Rows};
use mkernel::spec::{BLayout, Dim, Dtype, GemmConfig, GemmOp, GemmShape, Scales};
use mkernel::{Communicator, KernelConfig, Operand, Operator};
use mkernel_testing::blocks::{Blocks, in_turns, median};
use mkernel_testing::cublas_lt::{Pointers, ScaledProduct};
use mkernel_testing::lab::{Failure, Lab, Random, TimeLimit, seed_from_clock};
use mkernel_testing::options::{Tune, parse_shape};
use mkernel_testing::ranks::{exit_code, on_gpus};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Times products of e4m3 with scales of rows and of blocks, and checks results in fp64.
///
/// cuBLASLt has scales of rows, with and without fast accumulation. With fast accumulation, tensor cores add over all of K and
/// lose bits. The blocks of all candidates take turns. Operands are random, with too many copies for L2 to hold.
#[derive(Clone, Debug, Parser)]
struct Flags {
    /// Sizes; may be repeated
    #[arg(long = "shape", value_name = "MxNxK", value_parser = parse_shape)]
    shapes: Vec<GemmShape>,
    /// Plan to measure, such as `split_k=4` or `auto`; may be repeated [default: auto]
    #[arg(long = "tune", value_name = "KEY=VALUE,...")]
    tunings: Vec<Tune>,
    /// Number of blocks of each candidate
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Folder of libcublasLt.so [default: searched]
    #[arg(long, value_name = "DIR")]
    cublas_dir: Option<PathBuf>,
    /// Seconds after which the process ends, even if it hangs
    #[arg(long, default_value_t = 300)]
    limit_s: u64,
    /// Ignored. Cargo passes this option.
    #[arg(long, hide = true)]
    bench: bool,
}

/// The sizes of the benchmark if none are given.
const SHAPES: [(u64, u64, u64); 8] = [
    (4096, 4096, 7168),
    (8192, 8192, 8192),
    (4096, 7168, 2048),
    (4096, 24576, 1536),
    (64, 2112, 7168),
    (16, 8192, 8192),
    (128, 7168, 2048),
    (64, 24576, 1536),
];
/// The size of a block of scales.
const BLOCK: u64 = 128;
/// Bytes of operands that exceed L2.
const UNCACHED_BYTES: u64 = 256 << 20;
/// Bytes of the workspace of cuBLASLt.
const WORKSPACE_BYTES: usize = 32 << 20;
/// Checked rows of C, and checked elements of each row.
const CHECKED: (u64, u64) = (8, 16);

fn main() -> ExitCode {
    exit_code(run(&Flags::parse()))
}

fn run(flags: &Flags) -> Result<(), Failure> {
    let _limit = TimeLimit::start("the benchmark", Duration::from_secs(flags.limit_s));
    let seed = seed_from_clock();
    println!("seed {seed}");
    on_gpus(1, |ranks| one_rank(flags, ranks, seed))?;
    Ok(())
}

fn one_rank(flags: &Flags, ranks: &Communicator, seed: u64) -> Result<(), Failure> {
    let lab = Lab::new(&ranks.default_stream())?;
    let blocks = Blocks::new(ranks, &lab.stream)?;
    let default = SHAPES.map(|(m, n, k)| GemmShape { m, n, k });
    let shapes = match flags.shapes.as_slice() {
        [] => &default[..],
        given => given,
    };
    println!("      M      N      K  candidate                 µs    TFLOP/s  of fast  error");
    for shape in shapes {
        Bench::new(flags, (ranks, &lab.stream), *shape, seed)?.measure(&blocks)?;
    }
    Ok(())
}

/// Returns random numbers of e4m3 whose magnitudes are distributed like quantised activations.
fn random_elements(random: &mut Random, count: u64) -> Vec<F8E4M3> {
    let table: Vec<_> = (0..4096u32)
        .map(|_| {
            let terms = (0..8).map(|_| (random.draw() >> 40) as i64 - (1 << 23));
            F8E4M3::from_f32(terms.sum::<i64>() as f32 / (1 << 17) as f32)
        })
        .collect();
    let mut elements = Vec::with_capacity(count as usize);
    while elements.len() < count as usize {
        let bits = random.draw();
        elements.extend((0..5).map(|i| table[(bits >> (12 * i)) as usize % 4096]));
    }
    elements.truncate(count as usize);
    elements
}

/// Returns random scales between 1/2 and 1.
fn random_scales(random: &mut Random, count: u64) -> Vec<f32> {
    let scale = |bits: u64| 0.5 + (bits >> 41) as f32 / (1 << 24) as f32;
    (0..count).map(|_| scale(random.draw())).collect()
}

/// A matrix or scales on the host and on the GPU.
struct Pair<T> {
    host: Vec<T>,
    device: CudaSlice<T>,
}

impl<T: mkernel::cudarc::driver::DeviceRepr> Pair<T> {
    fn new(stream: &Arc<CudaStream>, host: Vec<T>) -> Result<Self, Failure> {
        let device = stream.clone_htod(&host)?;
        Ok(Self { host, device })
    }
}

/// A kernel of this project, or a product of cuBLASLt for each copy of the operands.
enum Candidate {
    Ours(Scales, Operator),
    Theirs(Vec<ScaledProduct>),
}

/// The operands and candidates of a size.
struct Bench<'a> {
    flags: &'a Flags,
    stream: &'a Arc<CudaStream>,
    shape: GemmShape,
    a: Vec<Pair<F8E4M3>>,
    b: Vec<Pair<F8E4M3>>,
    /// The scales of A and B: of rows and columns, and of blocks.
    of_rows: [Pair<f32>; 2],
    of_blocks: [Pair<f32>; 2],
    c: CudaSlice<bf16>,
    candidates: Vec<(String, Candidate)>,
    _workspace: CudaSlice<u8>,
}

impl<'a> Bench<'a> {
    fn new(
        flags: &'a Flags,
        (ranks, stream): (&Communicator, &'a Arc<CudaStream>),
        shape: GemmShape,
        seed: u64,
    ) -> Result<Self, Failure> {
        let GemmShape { m, n, k } = shape;
        let mut random = Random(seed);
        let copies = UNCACHED_BYTES.div_ceil(k * (m + n)).clamp(1, 8);
        let mut matrices = |rows: u64| -> Result<Vec<_>, Failure> {
            let one = |_| Pair::new(stream, random_elements(&mut random, rows * k));
            (0..copies).map(one).collect()
        };
        let (a, b) = (matrices(m)?, matrices(n)?);
        let mut scales = |count| Pair::new(stream, random_scales(&mut random, count));
        let (blocks_n, blocks_k) = (n.div_ceil(BLOCK), k.div_ceil(BLOCK));
        let mut bench = Self {
            flags,
            stream,
            shape,
            a,
            b,
            of_rows: [scales(m)?, scales(n)?],
            of_blocks: [scales(m * blocks_k)?, scales(blocks_n * blocks_k)?],
            c: stream.alloc_zeros((m * n) as usize)?,
            candidates: Vec::new(),
            _workspace: stream.alloc_zeros(WORKSPACE_BYTES)?,
        };
        bench.candidates = bench.candidates(ranks)?;
        Ok(bench)
    }

    fn candidates(&self, ranks: &Communicator) -> Result<Vec<(String, Candidate)>, Failure> {
        let mut all = Vec::new();
        for (name, fast) in [("cuBLASLt row, fast", true), ("cuBLASLt row", false)] {
            let products = (0..self.a.len()).map(|copy| {
                let pointers = Pointers {
                    a: self.address(&self.a[copy].device),
                    b: self.address(&self.b[copy].device),
                    a_scales: self.address(&self.of_rows[0].device),
                    b_scales: self.address(&self.of_rows[1].device),
                    c: self.address(&self.c),
                    workspace: self.address(&self._workspace),
                    workspace_bytes: WORKSPACE_BYTES,
                };
                let dir = self.flags.cublas_dir.as_deref();
                ScaledProduct::new(dir, self.shape, pointers, fast)
            });
            let products = products.collect::<Result<_, _>>()?;
            all.push((name.to_owned(), Candidate::Theirs(products)));
        }
        let tunings = match self.flags.tunings.as_slice() {
            [] => vec![Tune::default()],
            given => given.to_vec(),
        };
        for scales in [Scales::Row, Scales::Block] {
            for tune in &tunings {
                let config = GemmConfig {
                    m: Dim::Static(self.shape.m),
                    dtype: Dtype::E4m3,
                    scales,
                    b_layout: BLayout::Nk,
                    tuning: tune.tuning,
                    ..GemmConfig::new(GemmOp::Gemm)
                };
                let operator = ranks.prepare(&KernelConfig::new(1, config), self.shape)?;
                let name = format!(
                    "{} {}",
                    operator.plan().id.replace("gemm_sm90a_g1_", ""),
                    tune.text
                );
                all.push((name, Candidate::Ours(scales, operator)));
            }
        }
        Ok(all)
    }

    fn address<T>(&self, slice: &CudaSlice<T>) -> u64 {
        slice.device_ptr(self.stream).0
    }

    /// Enqueues a call of a candidate on a copy of the operands.
    fn enqueue(&self, candidate: &Candidate, copy: usize) -> Result<(), Failure> {
        let stream = self.stream.cu_stream();
        match candidate {
            // SAFETY: the operands have the sizes of the shape, and outlive the calls, since `measure` waits for the calls.
            Candidate::Theirs(products) => unsafe { products[copy].enqueue(stream) },
            Candidate::Ours(scales, operator) => {
                let of = match scales {
                    Scales::Block => &self.of_blocks,
                    _ => &self.of_rows,
                };
                let specs = operator.plan().operands().iter();
                let operands: Vec<_> = specs
                    .map(|spec| RawOperand {
                        ptr: match spec.operand {
                            Operand::A => self.address(&self.a[copy].device),
                            Operand::B => self.address(&self.b[copy].device),
                            Operand::AScales => self.address(&of[0].device),
                            Operand::BScales => self.address(&of[1].device),
                            _ => self.address(&self.c),
                        },
                        row_stride_elems: spec.cols,
                    })
                    .collect();
                // SAFETY: as above.
                Ok(unsafe { operator.launch_raw_rows(stream, &operands, Rows::Most) }?)
            }
        }
    }

    /// Measures all candidates, and prints a line for each.
    fn measure(&self, blocks: &Blocks) -> Result<(), Failure> {
        let errors: Vec<_> = self
            .candidates
            .iter()
            .map(|(name, candidate)| self.error(name, candidate))
            .collect::<Result<_, _>>()?;
        let times = in_turns(self.flags.rounds, self.candidates.len(), |index| {
            let next = std::cell::Cell::new(0);
            blocks.times_of(1, &|| {
                let copy = next.replace((next.get() + 1) % self.a.len());
                self.enqueue(&self.candidates[index].1, copy)
            })
        })?;
        let GemmShape { m, n, k } = self.shape;
        let fast = median(&times[0]);
        for (((name, _), times), error) in self.candidates.iter().zip(&times).zip(errors) {
            let us = median(times);
            let tflops = 2.0 * (m * n * k) as f64 / us / 1e6;
            println!(
                "{m:>7} {n:>6} {k:>6}  {name:<50} {us:>8.1} {tflops:>8.0} {:>8.3}  {error:.2e}",
                fast / us
            );
        }
        Ok(())
    }

    /// Returns the error of sampled elements of a candidate's result relative to fp64.
    fn error(&self, name: &str, candidate: &Candidate) -> Result<f64, Failure> {
        self.enqueue(candidate, 0)?;
        let c = self.stream.clone_dtoh(&self.c)?;
        let GemmShape { m, n, k } = self.shape;
        let is_block = matches!(candidate, Candidate::Ours(Scales::Block, _));
        let blocks_k = k.div_ceil(BLOCK);
        let scale = |row: u64, col: u64, depth: u64| {
            let (of_a, of_b) = match is_block {
                true => (
                    self.of_blocks[0].host[(row * blocks_k + depth / BLOCK) as usize],
                    self.of_blocks[1].host[(col / BLOCK * blocks_k + depth / BLOCK) as usize],
                ),
                false => (
                    self.of_rows[0].host[row as usize],
                    self.of_rows[1].host[col as usize],
                ),
            };
            f64::from(of_a) * f64::from(of_b)
        };
        let (mut errors, mut squares) = (0.0, 0.0);
        let (rows, cols) = CHECKED;
        for i in 0..rows {
            for j in 0..cols {
                let (row, col) = (i * (m - 1) / (rows - 1), j * (n - 1) / (cols - 1));
                let product = |depth: u64| {
                    let a = self.a[0].host[(row * k + depth) as usize].to_f64();
                    let b = self.b[0].host[(col * k + depth) as usize].to_f64();
                    a * b * scale(row, col, depth)
                };
                let expected: f64 = (0..k).map(product).sum();
                let found = c[(row * n + col) as usize].to_f64();
                errors += (found - expected).powi(2);
                squares += expected.powi(2);
            }
        }
        let error = f64::sqrt(errors / squares);
        // Fast accumulation of cuBLASLt has an error of about 3e-3.
        match error < 0.01 {
            true => Ok(error),
            false => Err(format!("{name} of {m} x {n} x {k} is wrong: error {error:.2e}").into()),
        }
    }
}
