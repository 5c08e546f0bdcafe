//! What a kernel is given, and all that may be wrong with it.

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
    #[error("it was not passed; pass it with `call` or `launch_with`{}", declare_without(*.operand))]
    Missing {
        /// Which.
        operand: Operand,
    },
    /// An operand that the kernel does not have.
    #[error("the kernel has none, only {}; leave it out{}", .names.join(", "), declare_it(*.operand))]
    Unexpected {
        /// Which.
        operand: Operand,
        /// The operands that the kernel has.
        names: Vec<&'static str>,
    },
    /// An operand that was passed before.
    #[error("it was passed twice; pass it once")]
    Twice,
    /// A result that was passed to be read, or an input that was passed to be written.
    #[error("the kernel {} it; pass it with `{}`", if *.written { "writes" } else { "only reads" }, if *.written { "write" } else { "read" })]
    Access {
        /// Whether the kernel writes it.
        written: bool,
    },
    /// A slice of another GPU than the communicator's.
    #[error(
        "it belongs to GPU {given}, the communicator to GPU {expected}; allocate it with Communicator::context()"
    )]
    WrongDevice {
        /// Its GPU.
        given: usize,
        /// The communicator's.
        expected: usize,
    },
    /// A residual some of whose elements are where others of C are.
    #[error(
        "it overlaps c; pass memory of its own, or exactly that of c: the same address, row stride and type of elements"
    )]
    OverlapsC,
    /// Elements of another type.
    #[error(
        "its elements are {given}, the kernel's are {expected}; pass those{}",
        declare_output(*.operand, *.given)
    )]
    Dtype {
        /// Which.
        operand: Operand,
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

/// How a kernel gets an operand that only some have.
fn declare_it(operand: Operand) -> String {
    match operand {
        Operand::Bias | Operand::Residual => {
            format!(", or declare the kernel with `{} = true`", operand.name())
        }
        _ => String::new(),
    }
}

/// How a kernel comes to need no such operand, if that is possible.
fn declare_without(operand: Operand) -> String {
    match operand {
        Operand::Bias | Operand::Residual => {
            format!(", or declare the kernel without `{}`", operand.name())
        }
        _ => String::new(),
    }
}

/// How a kernel comes to write such elements, if it can.
fn declare_output(operand: Operand, given: Dtype) -> String {
    if operand == Operand::C && Dtype::FLOATS.contains(&given) {
        format!(", or declare `output = {given}`")
    } else {
        String::new()
    }
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
        let is_vector = spec.cols == 1; // no TMA
        let takes = (is_vector || row_stride_elems.is_multiple_of(8))
            && row_stride_elems < MAX_STRIDE_BYTES / spec.dtype.bytes();
        require(takes, OperandFault::StrideStep { row_stride_elems });
    }
    check_in_place(specs, operands, rank, &mut faults);
    if faults.is_empty() {
        Ok(())
    } else {
        Err(Error::Operands(faults))
    }
}

/// Where C is written over the residual, each element must be over its own: kernels read an element of the residual before
/// they write that of C, and others in any order.
fn check_in_place(
    specs: &[OperandSpec],
    operands: &[RawOperand],
    rank: u32,
    faults: &mut Vec<(Operand, OperandFault)>,
) {
    let find = |wanted: Operand| {
        let found = specs.iter().zip(operands);
        let mut found = found.filter(|(spec, _)| spec.operand == wanted && spec.rows.on(rank) > 0);
        found.next()
    };
    let (Some(residual), Some(c)) = (find(Operand::Residual), find(Operand::C)) else {
        return;
    };
    let place = |(spec, operand): (&OperandSpec, &RawOperand)| {
        let row_bytes = operand.row_stride_elems.saturating_mul(spec.dtype.bytes());
        let rows = (spec.rows.on(rank) - 1).saturating_mul(row_bytes);
        let end = operand
            .ptr
            .saturating_add(rows + spec.cols * spec.dtype.bytes());
        (operand.ptr, end, row_bytes)
    };
    let (one, other) = (place(residual), place(c));
    let overlap = one.0 < other.1 && other.0 < one.1;
    if overlap && (one != other || residual.0.dtype != c.0.dtype) {
        faults.push((Operand::Residual, OperandFault::OverlapsC));
    }
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
    fn a_residual_is_apart_from_c_or_the_same() {
        let of = |operand, dtype| OperandSpec {
            operand,
            rows: Extent::Fixed(10),
            cols: 32,
            dtype,
            written: operand == Operand::C,
        };
        let at = |ptr, row_stride_elems| RawOperand {
            ptr,
            row_stride_elems,
        };
        let checked = |dtype, residual| {
            let specs = [of(Operand::C, Dtype::Bf16), of(Operand::Residual, dtype)];
            check(&specs, &[at(0x1000, 40), residual], 0)
        };
        // Ten rows, of which the last ends at 0x1000 + 9 * 80 + 64.
        for residual in [at(0x1000, 40), at(0x1310, 40), at(0x1000 - 0x310, 40)] {
            assert!(checked(Dtype::Bf16, residual).is_ok(), "{residual:?}");
        }
        for residual in [at(0x1000, 48), at(0x1010, 40), at(0x1300, 40)] {
            let error = checked(Dtype::Bf16, residual).expect_err("it overlaps");
            assert!(error.to_string().contains("overlaps c"), "{error}");
        }
        assert!(checked(Dtype::Fp32, at(0x1000, 40)).is_err());
    }

    #[test]
    fn the_number_of_operands_is_checked() {
        let error = check(&SPECS, &operands()[..2], 0).expect_err("two of three");
        assert_eq!(
            error.to_string(),
            "2 operands were given, the kernel has 3: a, b, c"
        );
    }
}
