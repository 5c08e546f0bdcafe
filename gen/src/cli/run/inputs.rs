//! Random operands of all ranks.
//!
//! The GPU tests fill operands with kernels of their own, because they need to be fast at sizes that no CPU can check.
//! The functions here must not depend on a GPU. So the two share no code.

use crate::cli::parallel::elements;
use mkernel::Operand;
use mkernel::float8::F8E4M3;
use mkernel::half::{bf16, f16};
use mkernel::spec::abi::OperandSpec;
use mkernel::{KernelPlan, spec::Dtype};

/// An operand and its elements on each rank.
type Elements<T> = (Operand, Vec<Vec<T>>);

/// A call: its operands, and the elements of those that it reads, on all ranks.
#[derive(Clone, Default, PartialEq)]
pub struct Inputs {
    /// The rows of the call over all ranks, if each call gives them.
    pub rows: Option<u64>,
    /// The operands with the rows that they have in this call.
    pub operands: Vec<OperandSpec>,
    /// Operands of floating-point numbers, which their types can hold.
    pub floats: Vec<Elements<f32>>,
    pub numbers: Vec<Elements<i32>>,
}

fn find<T>(all: &[Elements<T>], wanted: Operand) -> &[Vec<T>] {
    let found = all.iter().find(|(operand, _)| *operand == wanted);
    found.map_or(&[], |(_, ranks)| ranks)
}

impl Inputs {
    /// Random elements of all operands of floating-point numbers that the kernel reads. They depend on nothing but the plan, the seed and
    /// the call. All ranks have the same elements of an operand for which `is_common` is true. If each call gives the
    /// rows, the first call has the most rows, and every other call a random number of them.
    pub fn random(
        plan: &KernelPlan,
        seed: u64,
        call: u32,
        is_common: impl Fn(Operand) -> bool,
    ) -> Self {
        let rows = plan.max_rows().map(|most| match call {
            0 => most,
            _ => Random(seed ^ Random(call.into()).next()).next() % (most + 1),
        });
        let shapes = Self {
            rows,
            operands: plan.operands_in_call(rows.unwrap_or(0)),
            ..Self::default()
        };
        let fill = |spec: &OperandSpec, stream: u64| {
            let of_rank = |rank| if is_common(spec.operand) { 0 } else { rank };
            (0..plan.spec.world())
                .map(|rank| {
                    let stream = stream << 48 | u64::from(call) << 8 | u64::from(of_rank(rank));
                    let random = Random(seed ^ Random(stream).next());
                    let elems = shapes.elems(spec.operand, rank);
                    elements(elems, |index| {
                        rounded(random.after(index).fraction(), spec.dtype)
                    })
                })
                .collect()
        };
        let specs = (1..).zip(plan.operands());
        let specs = specs.filter(|(_, spec)| !spec.written && Dtype::FLOATS.contains(&spec.dtype));
        let floats = specs
            .map(|(stream, spec)| (spec.operand, fill(spec, stream)))
            .collect();
        Self { floats, ..shapes }
    }

    /// The number of elements of an operand on `rank`.
    pub fn elems(&self, operand: Operand, rank: u32) -> usize {
        let mut specs = self.operands.iter();
        let spec = specs.find(|spec| spec.operand == operand);
        spec.map_or(0, |spec| spec.rows.on(rank) * spec.cols) as usize
    }

    /// The elements of an operand of floating-point numbers on each rank, or nothing if the kernel does not read it.
    pub fn of(&self, wanted: Operand) -> &[Vec<f32>] {
        find(&self.floats, wanted)
    }

    /// The elements of an int32 operand on each rank.
    pub fn numbers(&self, wanted: Operand) -> &[Vec<i32>] {
        find(&self.numbers, wanted)
    }
}

/// The nearest number that the type can hold.
pub fn rounded(value: f32, dtype: Dtype) -> f32 {
    match dtype {
        Dtype::Bf16 => bf16::from_f32(value).to_f32(),
        Dtype::Fp16 => f16::from_f32(value).to_f32(),
        Dtype::E4m3 => F8E4M3::from_f32(value).to_f32(),
        Dtype::Fp32 => value,
        Dtype::Int32 => value.round(),
    }
}

/// The generator splitmix64, which gives unrelated numbers for similar seeds.
pub struct Random(pub u64);

impl Random {
    /// The amount by which the state grows with each number.
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

    /// The generator after `count` numbers.
    pub const fn after(&self, count: usize) -> Self {
        Self(self.0.wrapping_add(Self::STEP.wrapping_mul(count as u64)))
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(Self::STEP);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// A number from -1 to 1 with a random mantissa in fp32.
    pub fn fraction(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}
