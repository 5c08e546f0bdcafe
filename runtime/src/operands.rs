//! What a caller passes, and all that may be wrong with it.

use crate::error::Error;
use mkernel_spec::Dtype;
use mkernel_spec::abi::{Operand, OperandSpec};

/// Tensor maps have byte strides below this.
const MAX_STRIDE_BYTES: u64 = 1 << 40;

/// A matrix in device memory, row-major, of the elements that [`OperandSpec`] says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawOperand {
    /// Address of the first element, a multiple of 16.
    pub ptr: u64,
    /// Elements from one row to the next: at least the columns, a multiple of 8.
    pub row_stride_elems: u64,
}

/// Why an operand cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperandFault {
    /// No memory.
    #[error("the pointer is null; pass device memory")]
    Null,
    /// An address that TMA does not take.
    #[error(
        "address {address:#x} is not a multiple of 16 bytes (TMA); start views at a multiple of 8 elements"
    )]
    Misaligned {
        /// The address.
        address: u64,
    },
    /// Rows would overlap.
    #[error("row stride {row_stride_elems} is less than the {cols} columns")]
    StrideShort {
        /// The stride.
        row_stride_elems: u64,
        /// The columns.
        cols: u64,
    },
    /// A stride that TMA does not take.
    #[error(
        "row stride {row_stride_elems} is not a multiple of 8 elements of less than 2^40 bytes (TMA); pad the rows"
    )]
    StrideStep {
        /// The stride.
        row_stride_elems: u64,
    },
    /// An operand of the kernel's that was not passed.
    #[error("it was not passed; use `launch_with`, or declare the kernel without it")]
    Missing,
    /// An operand that the kernel does not have.
    #[error("the kernel has none; declare it with `{operand} = true`")]
    Unexpected {
        /// Which.
        operand: &'static str,
    },
    /// Elements of another type.
    #[error(
        "its elements are {given}, the kernel's are {expected}; pass those, or declare `output = {given}`"
    )]
    Dtype {
        /// Of the slice.
        given: Dtype,
        /// Of the kernel's operand.
        expected: Dtype,
    },
    /// A slice of another size.
    #[error("the slice has {elems} elements, {rows} rows of {cols} columns are {}; pass a view of that size", .rows * .cols)]
    Length {
        /// Elements of the slice.
        elems: u64,
        /// Rows on this rank.
        rows: u64,
        /// Columns.
        cols: u64,
    },
}

/// Checks operands: all mistakes at once. An operand without rows on this rank is not looked at.
pub(crate) fn check(
    specs: &[OperandSpec],
    operands: &[RawOperand],
    rank: u32,
) -> Result<(), Error> {
    if operands.len() != specs.len() {
        let names = specs.iter().map(|spec| spec.operand.name()).collect();
        return Err(Error::OperandCount {
            given: operands.len(),
            expected: specs.len(),
            names,
        });
    }
    let mut faults = Vec::new();
    for (spec, operand) in specs
        .iter()
        .zip(operands)
        .filter(|(spec, _)| spec.rows.on(rank) > 0)
    {
        let RawOperand {
            ptr: address,
            row_stride_elems,
        } = *operand;
        let mut require = |ok: bool, fault| {
            if !ok {
                faults.push((spec.operand, fault));
            }
        };
        require(address != 0, OperandFault::Null);
        require(
            address.is_multiple_of(16),
            OperandFault::Misaligned { address },
        );
        require(
            row_stride_elems >= spec.cols,
            OperandFault::StrideShort {
                row_stride_elems,
                cols: spec.cols,
            },
        );
        let takes = row_stride_elems.is_multiple_of(8)
            && row_stride_elems < MAX_STRIDE_BYTES / spec.dtype.bytes();
        require(takes, OperandFault::StrideStep { row_stride_elems });
    }
    if faults.is_empty() {
        Ok(())
    } else {
        Err(Error::Operands(faults))
    }
}

/// What a caller passed for an operand: how many elements of which type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passed {
    pub operand: Operand,
    pub elems: usize,
    pub dtype: Dtype,
}

impl Passed {
    pub fn new(operand: Operand, elems: usize, dtype: Dtype) -> Self {
        Self {
            operand,
            elems,
            dtype,
        }
    }
}

/// Checks that what was passed, as dense slices, is what the kernel has on `rank`: all mistakes at once.
pub(crate) fn check_passed(
    specs: &[OperandSpec],
    passed: &[Passed],
    rank: u32,
) -> Result<(), Error> {
    let has = |operand| specs.iter().any(|spec| spec.operand == operand);
    let unexpected = passed.iter().filter(|passed| !has(passed.operand));
    let mut faults: Vec<_> = unexpected
        .map(|passed| {
            let operand = passed.operand.name();
            (passed.operand, OperandFault::Unexpected { operand })
        })
        .collect();
    for spec in specs {
        let Some(passed) = passed.iter().find(|p| p.operand == spec.operand) else {
            faults.push((spec.operand, OperandFault::Missing));
            continue;
        };
        if passed.dtype != spec.dtype {
            let (given, expected) = (passed.dtype, spec.dtype);
            faults.push((spec.operand, OperandFault::Dtype { given, expected }));
        }
        faults.extend(check_length(spec, passed.elems, rank));
    }
    if faults.is_empty() {
        Ok(())
    } else {
        Err(Error::Operands(faults))
    }
}

/// Dense operands at these addresses, in the order of `specs`.
pub(crate) fn dense(specs: &[OperandSpec], addresses: &[(Operand, u64)]) -> Vec<RawOperand> {
    let address_of = |wanted| addresses.iter().find(|(operand, _)| *operand == wanted);
    let dense = |spec: &OperandSpec| RawOperand {
        ptr: address_of(spec.operand).map_or(0, |(_, address)| *address),
        row_stride_elems: spec.cols,
    };
    specs.iter().map(dense).collect()
}

fn check_length(spec: &OperandSpec, elems: usize, rank: u32) -> Option<(Operand, OperandFault)> {
    let (rows, elems) = (spec.rows.on(rank), elems as u64);
    // An allocation cannot be empty, so any slice stands for no rows.
    let fits = rows == 0 || elems == rows * spec.cols;
    (!fits).then_some((
        spec.operand,
        OperandFault::Length {
            elems,
            rows,
            cols: spec.cols,
        },
    ))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use mkernel_spec::abi::Extent;

    pub(crate) const SPECS: [OperandSpec; 3] = [
        OperandSpec {
            operand: Operand::A,
            rows: Extent::ShardRows {
                total: 10,
                per_rank: 4,
            },
            cols: 64,
            dtype: Dtype::Bf16,
            written: false,
        },
        OperandSpec {
            operand: Operand::B,
            rows: Extent::Fixed(64),
            cols: 32,
            dtype: Dtype::Bf16,
            written: false,
        },
        OperandSpec {
            operand: Operand::C,
            rows: Extent::Fixed(10),
            cols: 32,
            dtype: Dtype::Fp32,
            written: true,
        },
    ];

    pub(crate) fn operands() -> [RawOperand; 3] {
        [
            RawOperand {
                ptr: 0x1000,
                row_stride_elems: 72,
            },
            RawOperand {
                ptr: 0x2000,
                row_stride_elems: 32,
            },
            RawOperand {
                ptr: 0x3000,
                row_stride_elems: 40,
            },
        ]
    }

    #[test]
    fn all_faults_of_all_operands_come_at_once() {
        let operands = [
            RawOperand {
                ptr: 0x1008,
                row_stride_elems: 60,
            },
            RawOperand {
                ptr: 0,
                row_stride_elems: 32,
            },
            RawOperand {
                ptr: 0x3000,
                row_stride_elems: 1 << 40,
            },
        ];
        let Err(Error::Operands(faults)) = check(&SPECS, &operands, 0) else {
            panic!("four faults")
        };
        let expected = [
            (Operand::A, OperandFault::Misaligned { address: 0x1008 }),
            (
                Operand::A,
                OperandFault::StrideShort {
                    row_stride_elems: 60,
                    cols: 64,
                },
            ),
            (
                Operand::A,
                OperandFault::StrideStep {
                    row_stride_elems: 60,
                },
            ),
            (Operand::B, OperandFault::Null),
            (
                Operand::C,
                OperandFault::StrideStep {
                    row_stride_elems: 1 << 40,
                },
            ),
        ];
        assert_eq!(faults, expected);
        let text = Error::Operands(faults).to_string();
        assert_eq!(text.lines().count(), 5, "{text}");
    }

    #[test]
    fn the_number_of_operands_is_checked() {
        let error = check(&SPECS, &operands()[..2], 0).expect_err("two of three");
        assert_eq!(
            error.to_string(),
            "2 operands were given, the kernel has 3: a, b, c"
        );
    }

    #[test]
    fn slices_have_exactly_the_operands_size() {
        assert_eq!(check_length(&SPECS[0], 256, 0), None);
        assert_eq!(
            check_length(&SPECS[0], 128, 2),
            None,
            "the last shard is shorter"
        );
        assert_eq!(check_length(&SPECS[0], 5, 3), None, "no rows: any slice");
        let fault = check_length(&SPECS[0], 255, 0).expect("too short");
        assert_eq!(
            fault,
            (
                Operand::A,
                OperandFault::Length {
                    elems: 255,
                    rows: 4,
                    cols: 64
                }
            )
        );
    }

    #[test]
    fn what_is_missing_or_too_much_or_of_another_type_comes_at_once() {
        let passed = [
            (Operand::A, 256, Dtype::Bf16),
            (Operand::C, 320, Dtype::Bf16),
            (Operand::Bias, 32, Dtype::Bf16),
        ];
        let passed = passed.map(|(operand, elems, dtype)| Passed::new(operand, elems, dtype));
        let Err(Error::Operands(faults)) = check_passed(&SPECS, &passed, 0) else {
            panic!("three faults")
        };
        let text = Error::Operands(faults.clone()).to_string();
        let operands: Vec<_> = faults.iter().map(|(operand, _)| *operand).collect();
        assert_eq!(operands, [Operand::Bias, Operand::B, Operand::C], "{text}");
        for part in ["bias = true", "launch_with", "bf16", "fp32"] {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
    }
}
