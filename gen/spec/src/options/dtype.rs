//! [`Dtype`]: types of elements.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The size of a line of the 128-byte swizzle, in which tiles lie in shared memory. A line is a row of a stage, whatever the type
/// of elements.
pub const LINE_BYTES: u32 = 128;

/// The bytes after which the 128-byte swizzle repeats. Dynamic shared memory may start at any offset below this number.
pub(crate) const SMEM_ALIGN: u32 = 8 * LINE_BYTES;

/// The type of the elements of a matrix. A new type is a variant and its [`DtypeInfo`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    /// 2 bytes, 8 bits of mantissa.
    #[default]
    Bf16,
    /// 2 bytes, 11 bits of mantissa, numbers up to 65504.
    Fp16,
    /// 1 byte, 4 bits of mantissa, numbers up to 448: E4M3 of OCP's "8-bit Floating Point Specification".
    E4m3,
    /// 4 bytes.
    Fp32,
    /// 4 bytes: numbers of experts and rows.
    Int32,
}

/// The facts of a type of elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DtypeInfo {
    /// The name in options, messages and identifiers.
    pub name: &'static str,
    /// Bytes of an element.
    pub bytes: u64,
    /// The type in tensor maps.
    pub tma: TmaType,
    /// The type in kernels.
    pub cxx: &'static str,
    /// The largest relative error of a number that is rounded to the nearest element.
    pub roundoff: f64,
    /// The least element above 0, which is also the distance between neighbouring elements near 0.
    pub least: f64,
}

/// A type of elements in a tensor map: a value of CUDA's `CUtensorMapDataType` that elements here can have. TMA moves elements of
/// types that it does not know as integers of equal size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TmaType {
    /// `CU_TENSOR_MAP_DATA_TYPE_UINT8`
    Uint8,
    /// `CU_TENSOR_MAP_DATA_TYPE_INT32`
    Int32,
    /// `CU_TENSOR_MAP_DATA_TYPE_FLOAT16`
    Float16,
    /// `CU_TENSOR_MAP_DATA_TYPE_FLOAT32`
    Float32,
    /// `CU_TENSOR_MAP_DATA_TYPE_BFLOAT16`
    Bfloat16,
}

impl Dtype {
    /// Every type.
    pub const ALL: [Self; 5] = [Self::Bf16, Self::Fp16, Self::E4m3, Self::Fp32, Self::Int32];

    /// Floating-point types.
    pub const FLOATS: [Self; 4] = [Self::Bf16, Self::Fp16, Self::E4m3, Self::Fp32];

    /// Types of results.
    pub const RESULTS: [Self; 3] = [Self::Bf16, Self::Fp16, Self::Fp32];

    /// Types of the operands of MMAs that are also types of results.
    pub const FACTORS: [Self; 2] = [Self::Bf16, Self::Fp16];

    /// Types of A and B of GEMM operators.
    pub const GEMM_FACTORS: [Self; 3] = [Self::Bf16, Self::Fp16, Self::E4m3];

    /// The facts of this type, from which all methods derive.
    #[must_use]
    pub const fn info(self) -> DtypeInfo {
        match self {
            Self::Bf16 => DtypeInfo {
                name: "bf16",
                bytes: 2,
                tma: TmaType::Bfloat16,
                cxx: "mk::Bf16",
                roundoff: power_of_2(-8),
                least: power_of_2(-133),
            },
            Self::Fp16 => DtypeInfo {
                name: "fp16",
                bytes: 2,
                tma: TmaType::Float16,
                cxx: "mk::Fp16",
                roundoff: power_of_2(-11),
                least: power_of_2(-24),
            },
            Self::E4m3 => DtypeInfo {
                name: "e4m3",
                bytes: 1,
                tma: TmaType::Uint8,
                cxx: "mk::E4m3",
                roundoff: power_of_2(-4),
                least: power_of_2(-9),
            },
            Self::Fp32 => DtypeInfo {
                name: "fp32",
                bytes: 4,
                tma: TmaType::Float32,
                cxx: "mk::Fp32",
                roundoff: power_of_2(-24),
                least: power_of_2(-149),
            },
            Self::Int32 => DtypeInfo {
                name: "int32",
                bytes: 4,
                tma: TmaType::Int32,
                cxx: "mk::u32",
                roundoff: 0.0,
                least: 1.0,
            },
        }
    }

    /// The name, such as `bf16`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.info().name
    }

    /// Bytes of an element.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.info().bytes
    }

    /// The type of results of products of such elements, unless the caller asks for another type.
    #[must_use]
    pub const fn of_results(self) -> Self {
        match self {
            Self::E4m3 => Self::Bf16,
            other => other,
        }
    }

    /// The largest error of `value` when it is rounded to the nearest element, if it does not overflow.
    #[must_use]
    pub const fn rounding_error(self, value: f64) -> f64 {
        let info = self.info();
        (value.abs() * info.roundoff).max(info.least / 2.0)
    }

    /// The part of a kernel's name for the type of its operands, such as `_fp16`. Empty for the default type.
    #[must_use]
    pub fn suffix(self) -> String {
        match self == Self::default() {
            true => String::new(),
            false => format!("_{self}"),
        }
    }

    /// The number of elements in 16 bytes. Row strides are multiples of this number, as TMA requires.
    #[must_use]
    pub const fn stride_step(self) -> u64 {
        16 / self.bytes()
    }

    /// The number of elements in a line of the 128-byte swizzle.
    #[must_use]
    pub const fn per_line(self) -> u32 {
        LINE_BYTES / self.bytes() as u32
    }
}

const fn power_of_2(exponent: i64) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_128_bytes() {
        for dtype in Dtype::ALL {
            assert_eq!(u64::from(dtype.per_line()) * dtype.bytes(), 128, "{dtype}");
        }
    }

    #[test]
    fn errors_of_rounding() {
        // Half of the distance from 1 to the next element, and half of the distance from 0 to the least element above 0.
        assert_eq!(
            Dtype::Fp32.rounding_error(1.0),
            f64::from(f32::EPSILON) / 2.0
        );
        assert_eq!(Dtype::Fp16.rounding_error(-4.0), 4.0 / 2048.0);
        assert_eq!(Dtype::Fp16.rounding_error(1e-5), 2f64.powi(-25));
        assert_eq!(Dtype::Bf16.info().least, 2f64.powi(-133));
    }
}
