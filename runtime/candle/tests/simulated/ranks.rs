//! Ranks as threads, random tensors, and the comparison of tensors.

use candle_core::{DType, Device, Result, Tensor};
use mkernel::{Communicator, Simulation};
use mkernel_candle::Ranks;

/// Runs `job` on each of `world` ranks, and returns the results by rank.
pub fn on_ranks<T: Send>(world: u32, job: impl Fn(&Ranks) -> Result<T> + Sync) -> Vec<T> {
    let simulation = Simulation {
        ranks: world,
        ..Simulation::default()
    };
    let communicators = Communicator::simulated(&simulation).expect("simulated GPUs");
    std::thread::scope(|scope| {
        let start = |communicator| {
            let job = &job;
            scope.spawn(move || {
                let ranks = Ranks::new(communicator, &Device::Cpu)?;
                let result = job(&ranks)?;
                ranks.synchronize()?;
                Ok(result)
            })
        };
        let threads: Vec<_> = communicators.into_iter().map(start).collect();
        let results = threads
            .into_iter()
            .map(|thread| thread.join().expect("a rank"));
        let results: Result<Vec<T>> = results.collect();
        results.unwrap_or_else(|error| panic!("{error}"))
    })
}

/// Returns bf16 numbers between -1 and 1 which depend on `seed` only, by splitmix64.
pub fn random(seed: u64, shape: &[usize]) -> Result<Tensor> {
    let elems: usize = shape.iter().product();
    let number = |index: u64| {
        let mut x = (seed << 32 | index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let numbers: Vec<f32> = (0..elems as u64).map(number).collect();
    Tensor::from_vec(numbers, shape, &Device::Cpu)?.to_dtype(DType::BF16)
}

/// Fails if an element of `found` differs from the element of `expected` by more than one part in 100, or 0.01 of the largest
/// element. Partial sums are rounded to bf16, which has 8 bits.
pub fn expect_near(found: &Tensor, expected: &Tensor, what: &str) -> Result<()> {
    assert_eq!(found.dims(), expected.dims(), "{what}");
    let numbers = |tensor: &Tensor| {
        let flat = tensor.to_dtype(DType::F32)?.flatten_all()?;
        flat.to_vec1::<f32>()
    };
    let (found, expected) = (numbers(found)?, numbers(expected)?);
    let largest = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    assert!(largest > 0.0, "{what}: nothing is expected");
    for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let limit = 0.01 * expected.abs().max(largest);
        assert!(
            (found - expected).abs() <= limit,
            "{what}: element {index} is {found}, but expected {expected}"
        );
    }
    Ok(())
}

/// Fails unless both tensors have equal bits.
pub fn expect_equal(found: &Tensor, expected: &Tensor, what: &str) -> Result<()> {
    assert_eq!(found.dims(), expected.dims(), "{what}");
    let bits = |tensor: &Tensor| tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
    assert_eq!(bits(found)?, bits(expected)?, "{what}");
    Ok(())
}

/// Returns `x · wᵀ` in f32, where both are bf16.
pub fn product(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    x.to_dtype(DType::F32)?
        .matmul(&w.to_dtype(DType::F32)?.t()?)
}
