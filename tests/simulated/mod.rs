//! Jobs on simulated GPUs, for `simulator` and `mutations`: back-to-back calls with exact results.
#![allow(dead_code, reason = "each test file uses a part")]

use mkernel::half::bf16;
use mkernel::{BLayout, Communicator, Error, KernelConfig, Op, Operator, Shape, Simulation};
use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Consecutive calls of a job: two buffers are used by turns, so the third reuses the first.
pub const CALLS: u32 = 3;

/// What is run.
#[derive(Clone, Debug)]
pub struct Job {
    pub config: KernelConfig,
    pub shape: Shape,
    pub sms: u32,
    pub skew: u32,
    /// Replacements in the kernel's text, each of which must be found.
    pub edits: Vec<(String, String)>,
    calls: Arc<[Call]>,
}

/// Bits of the results, by rank and call.
pub type Results = Vec<Vec<Vec<u16>>>;

/// Operands of all ranks for one call, and the bits of each rank's result. Small whole numbers: every sum is exact in
/// fp32, in whichever order.
#[derive(Debug)]
struct Call {
    a: Vec<Vec<bf16>>,
    b: Vec<Vec<bf16>>,
    expected: Vec<Vec<u16>>,
}

impl Job {
    /// The kernel as it is rendered.
    pub fn new(config: KernelConfig, shape: Shape, sms: u32) -> Self {
        let calls = (0..CALLS)
            .map(|call| Call::new(&config, shape, call))
            .collect();
        Self {
            config,
            shape,
            sms,
            skew: 60,
            edits: Vec::new(),
            calls,
        }
    }

    /// Runs it with `seed`; an error, or what is wrong with the results.
    pub fn run(&self, seed: u64) -> Result<Results, String> {
        let simulation = Simulation {
            ranks: self.config.world,
            seed,
            sms: self.sms,
            skew: self.skew,
            timeline: false,
        };
        let ranks = Communicator::simulated(&simulation).map_err(|error| error.to_string())?;
        let results: Vec<Result<Vec<Vec<u16>>, String>> = std::thread::scope(|scope| {
            let threads: Vec<_> = ranks
                .into_iter()
                .map(|ranks| {
                    scope.spawn(move || self.rank(&ranks).map_err(|error| with_causes(&*error)))
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| {
                    thread
                        .join()
                        .unwrap_or_else(|_| Err("a rank panicked".into()))
                })
                .collect()
        });
        // What the simulator found says more than what came of it.
        let mut failures: Vec<String> = results
            .iter()
            .filter_map(|result| result.as_ref().err().cloned())
            .collect();
        failures.sort_by_key(|failure| !failure.contains("simulator found"));
        match failures.first() {
            None => Ok(results.into_iter().flatten().collect()),
            Some(failure) => Err(failure.clone()),
        }
    }

    fn rank(&self, ranks: &Communicator) -> Result<Vec<Vec<u16>>, Box<dyn std::error::Error>> {
        // The kernel's own deadlines pass in simulated time.
        ranks.set_timeout(std::time::Duration::from_secs(20));
        let operator = self.prepare(ranks)?;
        let stream = ranks.context().default_stream();
        let rank = ranks.rank() as usize;
        let mut buffers = Vec::new();
        for call in self.calls.iter() {
            let a = stream.clone_htod(&call.a[rank])?;
            let b = stream.clone_htod(&call.b[rank])?;
            // An allocation cannot be empty.
            let c = stream.clone_htod(&vec![bf16::NAN; call.expected[rank].len().max(1)])?;
            buffers.push((a, b, c));
        }
        stream.synchronize()?;
        for (a, b, c) in &mut buffers {
            operator.launch(&stream, a, b, c)?;
        }
        ranks.synchronize(&stream)?;
        let mut results = Vec::new();
        for (call, (_, _, c)) in self.calls.iter().zip(&buffers) {
            let got: Vec<u16> = stream
                .clone_dtoh(c)?
                .iter()
                .map(|value| value.to_bits())
                .collect();
            ranks.check()?;
            let wrong = got
                .iter()
                .zip(&call.expected[rank])
                .filter(|(got, want)| got != want)
                .count();
            if wrong > 0 {
                return Err(
                    format!("rank {rank}: {wrong} of {} elements are wrong", got.len()).into(),
                );
            }
            results.push(got);
        }
        Ok(results)
    }

    fn prepare(&self, ranks: &Communicator) -> Result<Operator, Error> {
        ranks.prepare_edited(&self.config, self.shape, |text| {
            for (from, to) in &self.edits {
                assert!(text.contains(from.as_str()), "the kernel has no\n{from}");
                *text = text.replace(from.as_str(), to);
            }
        })
    }
}

impl Call {
    fn new(config: &KernelConfig, shape: Shape, number: u32) -> Self {
        let Shape { m, n, k } = shape;
        let mut random = u64::from(number) + 1;
        let mut fill = |count: u64, largest: u64| {
            let element = |_| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                bf16::from_f32(((random >> 40) % (2 * largest + 1)) as f32 - largest as f32)
            };
            (0..count).map(element).collect::<Vec<bf16>>()
        };
        let ranks = 0..u64::from(config.world);
        let shard_rows = m.div_ceil(u64::from(config.world));
        let rows_of = |rank: u64| (rank * shard_rows).min(m)..((rank + 1) * shard_rows).min(m);
        let sizes = (n as usize, k as usize);
        if config.op == Op::AgGemm {
            let a = fill(m * k, 8);
            let b: Vec<_> = ranks.clone().map(|_| fill(n * k, 8)).collect();
            let sums = b.iter().map(|b| product(&a, b, config.b_layout, sizes));
            let expected = sums.map(|sums| bits(&sums)).collect();
            let shard = |rank| {
                let rows = rows_of(rank);
                let own = a[(rows.start * k) as usize..(rows.end * k) as usize].to_vec();
                // An allocation cannot be empty.
                if own.is_empty() { vec![bf16::NAN] } else { own }
            };
            return Self {
                a: ranks.map(shard).collect(),
                b,
                expected,
            };
        }
        // Partial sums travel in bf16, which has whole numbers up to 256.
        let a: Vec<_> = ranks.clone().map(|_| fill(m * k, 1)).collect();
        let b: Vec<_> = ranks.clone().map(|_| fill(n * k, 1)).collect();
        let mut total = vec![0.0; (m * n) as usize];
        for (a, b) in a.iter().zip(&b) {
            for (sum, part) in total.iter_mut().zip(product(a, b, config.b_layout, sizes)) {
                assert!(part.abs() <= 256.0, "a partial sum that bf16 does not have");
                *sum += part;
            }
        }
        let own = |rank| {
            let rows = if config.op == Op::GemmRs {
                rows_of(rank)
            } else {
                0..m
            };
            bits(&total[(rows.start * n) as usize..(rows.end * n) as usize])
        };
        Self {
            a,
            b,
            expected: ranks.map(own).collect(),
        }
    }
}

fn bits(sums: &[f32]) -> Vec<u16> {
    sums.iter()
        .map(|sum| bf16::from_f32(*sum).to_bits())
        .collect()
}

/// A · B, A with rows of `k`, B as `layout` says.
fn product(a: &[bf16], b: &[bf16], layout: BLayout, (n, k): (usize, usize)) -> Vec<f32> {
    let at = |depth: usize, column: usize| match layout {
        BLayout::Kn => depth * n + column,
        BLayout::Nk => column * k + depth,
    };
    let b: Vec<f32> = (0..n * k)
        .map(|index| b[at(index / n, index % n)].to_f32())
        .collect();
    let mut result = vec![0.0f32; a.len() / k * n];
    for (row, sums) in a.chunks_exact(k).zip(result.chunks_exact_mut(n)) {
        for (factor, b) in row.iter().zip(b.chunks_exact(n)) {
            let factor = factor.to_f32();
            sums.iter_mut()
                .zip(b)
                .for_each(|(sum, value)| *sum += factor * value);
        }
    }
    result
}

fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// Runs `body` for each of `items`, over all cores.
pub fn in_parallel<T: Sync>(items: &[T], body: impl Fn(&T) + Sync) {
    let next = AtomicU64::new(0);
    let cores = std::thread::available_parallelism()
        .map_or(1, NonZero::get)
        .min(8);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    body(item);
                }
            });
        }
    });
}

/// Runs `job` with all `seeds`: right every time, and the same bits. Failures are told with their seeds.
pub fn always_right(name: &str, job: &Job, seeds: Range<u64>) -> Result<(), String> {
    let first: Mutex<Option<Results>> = Mutex::default();
    for seed in seeds {
        let results = job
            .run(seed)
            .map_err(|failure| format!("{name}, seed {seed}: {failure}"))?;
        let mut first = first.lock().map_err(|_| "a run panicked")?;
        if first.get_or_insert_with(|| results.clone()) != &results {
            return Err(format!("{name}, seed {seed}: other bits than before"));
        }
    }
    Ok(())
}
