//! The common parts of all jobs: the GPUs on which jobs run, the number of calls, and the results.

use mkernel::cudarc::driver::DeviceRepr;
use mkernel::float8::F8E4M3;
use mkernel::half::{bf16, f16};
use mkernel::spec::Dtype;
use mkernel::testing::pretend_calls;
use mkernel::{Communicator, Error, Operator, operands::Element};

/// The number of consecutive calls of a job. Calls alternate between two buffers, so the third call uses the buffer of
/// the first call again.
pub const CALLS: u32 = 3;

/// Numbers of calls just before the epoch passes 2^31 and 2^32. The epoch of the second call after that has its highest
/// bit set for the first time, or is 0.
pub const WRAPPING_CALL_COUNTS: [u32; 2] = [(1 << 31) - 2, u32::MAX - 1];

/// The number of calls of a job before its call count is changed. With two calls, both buffers have been used.
pub const CALLS_BEFORE: u32 = 2;
/// The number of calls of a job after its call count was changed.
pub const CALLS_AFTER: u32 = 4;

/// The GPUs on which a job runs.
#[derive(Clone, Copy, Debug)]
pub enum Backend {
    /// Simulated GPUs.
    Simulated {
        /// The seed of the schedule and of the faults of the network.
        seed: u64,
    },
    /// The GPUs of this host.
    Gpus,
}

impl Backend {
    /// Returns whether calls may start while the preceding call on the stream still runs.
    pub(super) fn overlaps(self) -> bool {
        match self {
            Self::Simulated { seed } => seed % 2 == 1,
            Self::Gpus => true,
        }
    }
}

/// The bits of the results as fp32, by rank and call.
pub type Results = Vec<Vec<Vec<u32>>>;

/// A job that runs on simulated GPUs.
pub trait SimulatedJob {
    /// Runs the job with this seed and returns its results.
    ///
    /// # Errors
    /// A call fails, the simulator finds a defect, or a result is wrong.
    fn run(&self, seed: u64) -> Result<Results, String>;

    /// Sets the edits of the kernel's text, as [`apply_edits`](super::apply_edits) takes them.
    fn edit(&mut self, edits: Vec<(String, String)>);
}

/// A type of the elements of a result.
pub(super) trait ResultElement: Element + DeviceRepr + Copy + Into<f32> {
    /// A value that no kernel computes.
    const POISON: Self;

    /// The type of results of products of such elements.
    type OfResults: ResultElement;

    /// The nearest element.
    fn of(value: f32) -> Self;
}

impl ResultElement for bf16 {
    const POISON: Self = Self::NAN;
    type OfResults = Self;

    fn of(value: f32) -> Self {
        Self::from_f32(value)
    }
}

impl ResultElement for f16 {
    const POISON: Self = Self::NAN;
    type OfResults = Self;

    fn of(value: f32) -> Self {
        Self::from_f32(value)
    }
}

impl ResultElement for F8E4M3 {
    const POISON: Self = Self::NAN;
    type OfResults = bf16;

    fn of(value: f32) -> Self {
        Self::from_f32(value)
    }
}

impl ResultElement for f32 {
    const POISON: Self = Self::NAN;
    type OfResults = Self;

    fn of(value: f32) -> Self {
        value
    }
}

/// Evaluates an expression with `$Element` as the type of elements that are floating-point numbers.
macro_rules! by_element {
    ($dtype:expr, $Element:ident => $then:expr) => {
        match $dtype {
            mkernel::spec::Dtype::Bf16 => {
                type $Element = mkernel::half::bf16;
                $then
            }
            mkernel::spec::Dtype::Fp16 => {
                type $Element = mkernel::half::f16;
                $then
            }
            mkernel::spec::Dtype::E4m3 => {
                type $Element = mkernel::float8::F8E4M3;
                $then
            }
            mkernel::spec::Dtype::Fp32 => {
                type $Element = f32;
                $then
            }
            mkernel::spec::Dtype::Int32 => unreachable!("no floating-point numbers"),
        }
    };
}
pub(super) use by_element;

/// Returns the nearest element of a type, as fp32. `half` rounds fp64 without the last 32 bits, so numbers just above the
/// middle of two elements would count as the middle.
pub(super) fn rounded(value: f64, dtype: Dtype) -> f32 {
    match dtype {
        Dtype::Bf16 => bf16::from_f32(rounded_to_odd(value)).to_f32(),
        Dtype::Fp16 => f16::from_f32(rounded_to_odd(value)).to_f32(),
        Dtype::E4m3 => F8E4M3::from_f32(rounded_to_odd(value)).to_f32(),
        _ => value as f32,
    }
}

/// Returns `value` if it is an fp32, and otherwise the neighbour of `value` in fp32 whose last bit is 1. In a shorter type,
/// the nearest element of the result is the nearest element of `value`.
fn rounded_to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let bits = nearest.to_bits();
    let is_beyond = f64::from(nearest).abs() > value.abs();
    match value.is_nan() || f64::from(nearest) == value || bits % 2 == 1 {
        true => nearest,
        false if is_beyond => f32::from_bits(bits - 1),
        false => f32::from_bits(bits + 1),
    }
}

/// Returns the deadline of a kernel, in simulated time. A mutated kernel has a short deadline, since it may end in a
/// trap only after eight deadlines.
pub fn deadline(is_right: bool) -> std::time::Duration {
    std::time::Duration::from_secs(if is_right { 20 } else { 5 })
}

/// Sets the call count of operators that have made [`CALLS_BEFORE`] calls. All ranks must call this together.
///
/// # Errors
/// A call has failed, or a rank does not take part.
pub fn set_call_count(
    ranks: &Communicator,
    operators: &[&Operator],
    calls: u32,
) -> Result<(), Error> {
    ranks.synchronize(&ranks.default_stream())?;
    ranks.barrier()?;
    for operator in operators {
        // SAFETY: all ranks have waited for their calls, and they make none before the barrier below.
        unsafe { pretend_calls(operator, CALLS_BEFORE, calls)? };
    }
    ranks.barrier()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sum of bf16 that lies just above the middle of two bf16, as the first three values do, is rounded up by GPUs.
    #[test]
    fn numbers_beside_the_middle_of_two_elements_are_rounded_to_the_nearest() {
        for (value, bf) in [
            (1.378_906_5, 1.382_812_5),
            (1.457_032_1, 1.460_937_5),
            (-1.441_407_1, -1.445_312_5),
            (1.0 + 2f64.powi(-8), 1.0),
            (1.0 + 2f64.powi(-8) + 2f64.powi(-50), 1.007_812_5),
            (1.0 + 2f64.powi(-8) - 2f64.powi(-50), 1.0),
            (1.007_812_5 + 2f64.powi(-8), 1.015_625),
            (-0.0, -0.0),
            (f64::MAX, f64::INFINITY),
        ] {
            let got = rounded(value, Dtype::Bf16);
            assert_eq!(got.to_bits(), (bf as f32).to_bits(), "{value}: {got}");
        }
        let above = 1.0 + 2f64.powi(-11) + 2f64.powi(-50);
        assert_eq!(f64::from(rounded(above, Dtype::Fp16)), 1.0 + 2f64.powi(-10));
        assert!(rounded(f64::NAN, Dtype::Fp16).is_nan());
    }
}
