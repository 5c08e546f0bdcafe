//! [`RawOperand`]: an operand as an address, and the checks of operands.

use crate::error::{CallError, Error, OperandFault};
use crate::tensors::{SymmetricPlace, Tensors};
use mkernel_spec::abi::{Operand, OperandSpec};

/// Byte strides of tensor maps are below this limit.
const MAX_STRIDE_BYTES: u64 = 1 << 40;

/// A row-major matrix in device memory. Its element type is that of the [`OperandSpec`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawOperand {
    /// The address of the first element, a multiple of 16.
    pub ptr: u64,
    /// The distance from one row to the next in elements. It is at least the number of columns and a multiple of 8.
    pub row_stride_elems: u64,
}

/// Checks operands and returns all mistakes at once. An operand without rows on this rank is not checked. `tensors` are
/// those in symmetric memory.
pub(crate) fn check(
    specs: &[OperandSpec],
    operands: &[RawOperand],
    rank: u32,
    tensors: &Tensors,
) -> Result<(), Error> {
    if operands.len() != specs.len() {
        let names = specs.iter().map(|spec| spec.operand.name()).collect();
        return Err(Error::Call(CallError::OperandCount {
            given: operands.len(),
            expected: specs.len(),
            names,
        }));
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
        let is_vector = spec.cols == 1; // Vectors are not loaded by TMA.
        let takes = (is_vector || row_stride_elems.is_multiple_of(8))
            && row_stride_elems < MAX_STRIDE_BYTES / spec.dtype.bytes();
        require(takes, OperandFault::StrideStep { row_stride_elems });
        if spec.symmetric {
            let (cols, bytes) = (spec.cols, bytes_on(spec, rank));
            let is_dense = row_stride_elems == cols;
            require(
                is_dense,
                OperandFault::SymmetricStride {
                    row_stride_elems,
                    cols,
                },
            );
            let is_symmetric = tensors.find(address, bytes).is_some();
            require(is_symmetric, OperandFault::NotSymmetric { address, bytes });
        }
    }
    check_in_place(specs, operands, rank, &mut faults);
    if faults.is_empty() {
        Ok(())
    } else {
        Err(Error::Operands(faults))
    }
}

/// Returns the bytes of a dense operand on a rank.
fn bytes_on(spec: &OperandSpec, rank: u32) -> u64 {
    let elems = spec.rows.on(rank).saturating_mul(spec.cols);
    elems.saturating_mul(spec.dtype.bytes())
}

/// Returns where the operands in symmetric memory lie, which [`check`] has checked. Others have no place.
pub(crate) fn places(
    specs: &[OperandSpec],
    operands: &[RawOperand],
    rank: u32,
    tensors: &Tensors,
) -> Vec<SymmetricPlace> {
    let place = |(spec, operand): (&OperandSpec, &RawOperand)| {
        let has_place = spec.symmetric && spec.rows.on(rank) > 0;
        let found = has_place.then(|| tensors.find(operand.ptr, bytes_on(spec, rank)));
        found.flatten().unwrap_or_default()
    };
    specs.iter().zip(operands).map(place).collect()
}

/// Operands that must not overlap, and whether they may be exactly the same memory.
///
/// Kernels read an element of the residual before they write the same element of C or of the new residual, but after other
/// elements in any order. A norm writes elements of Y, or of the C of a GEMM, while it reads others of what it normalises.
const APART: [(Operand, Operand, bool); 6] = [
    (Operand::Residual, Operand::C, true),
    (Operand::Residual, Operand::ResidualOut, true),
    (Operand::Residual, Operand::Y, false),
    (Operand::ResidualOut, Operand::C, false),
    (Operand::ResidualOut, Operand::X, false),
    (Operand::ResidualOut, Operand::Y, false),
];

/// Checks operands that overlap. If they may be the same memory, each element must be at the address of the same element.
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
    let place = |(spec, operand): (&OperandSpec, &RawOperand)| {
        let row_bytes = operand.row_stride_elems.saturating_mul(spec.dtype.bytes());
        let rows = (spec.rows.on(rank) - 1).saturating_mul(row_bytes);
        let last_row = spec.cols.saturating_mul(spec.dtype.bytes());
        let end = operand.ptr.saturating_add(rows).saturating_add(last_row);
        (operand.ptr, end, row_bytes, spec.dtype)
    };
    for (operand, other, may_coincide) in APART {
        let (Some(one), Some(two)) = (find(operand), find(other)) else {
            continue;
        };
        let (one, two) = (place(one), place(two));
        let overlap = one.0 < two.1 && two.0 < one.1;
        if overlap && !(may_coincide && one == two) {
            let fault = OperandFault::Overlaps {
                other,
                may_coincide,
            };
            faults.push((operand, fault));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use mkernel_spec::Dtype;
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
            symmetric: false,
        },
        OperandSpec {
            operand: Operand::B,
            rows: Extent::Fixed(64),
            cols: 32,
            dtype: Dtype::Bf16,
            written: false,
            symmetric: false,
        },
        OperandSpec {
            operand: Operand::C,
            rows: Extent::Fixed(10),
            cols: 32,
            dtype: Dtype::Fp32,
            written: true,
            symmetric: false,
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
        let Err(Error::Operands(faults)) = check(&SPECS, &operands, 0, &Tensors::default()) else {
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
            symmetric: false,
        };
        let at = |ptr, row_stride_elems| RawOperand {
            ptr,
            row_stride_elems,
        };
        let checked = |dtype, residual| {
            let specs = [of(Operand::C, Dtype::Bf16), of(Operand::Residual, dtype)];
            check(&specs, &[at(0x1000, 40), residual], 0, &Tensors::default())
        };
        // There are ten rows, and the last one ends at 0x1000 + 9 * 80 + 64.
        for residual in [at(0x1000, 40), at(0x1310, 40), at(0x1000 - 0x310, 40)] {
            assert!(checked(Dtype::Bf16, residual).is_ok(), "{residual:?}");
        }
        // A stride that no address space has is an error like any other.
        for residual in [
            at(0x1000, 48),
            at(0x1010, 40),
            at(0x1300, 40),
            at(0x1010, u64::MAX),
        ] {
            let error = checked(Dtype::Bf16, residual).expect_err("it overlaps");
            assert!(error.to_string().contains("overlaps c"), "{error}");
        }
        assert!(checked(Dtype::Fp32, at(0x1000, 40)).is_err());
    }

    #[test]
    fn a_new_residual_is_apart_from_all_but_the_residual() {
        let of = |operand| OperandSpec {
            operand,
            rows: Extent::Fixed(10),
            cols: 32,
            dtype: Dtype::Bf16,
            written: false,
            symmetric: false,
        };
        let named = [
            Operand::X,
            Operand::Y,
            Operand::Residual,
            Operand::ResidualOut,
        ];
        let checked = |places: [u64; 4]| {
            let at = |ptr| RawOperand {
                ptr,
                row_stride_elems: 32,
            };
            check(&named.map(of), &places.map(at), 0, &Tensors::default())
        };
        assert!(
            checked([0x1000, 0x2000, 0x3000, 0x3000]).is_ok(),
            "in place"
        );
        for places in [
            [0x1000, 0x2000, 0x3000, 0x1000],
            [0x1000, 0x2000, 0x3000, 0x2000],
            [0x1000, 0x2000, 0x2000, 0x4000],
            [0x1000, 0x2000, 0x3000, 0x3010],
        ] {
            let error = checked(places).expect_err("they overlap");
            assert!(error.to_string().contains("overlaps"), "{error}");
        }
        let Err(Error::Operands(faults)) = checked([0x1000, 0x1010, 0x1020, 0x1030]) else {
            panic!("four overlaps")
        };
        assert_eq!(faults.len(), 4, "{faults:?}");
    }

    /// The result of a GEMM with a norm is C.
    #[test]
    fn a_new_residual_is_apart_from_c() {
        let of = |operand| OperandSpec {
            operand,
            rows: Extent::Fixed(10),
            cols: 32,
            dtype: Dtype::Bf16,
            written: true,
            symmetric: false,
        };
        let specs = [of(Operand::C), of(Operand::ResidualOut)];
        let at = |ptr| RawOperand {
            ptr,
            row_stride_elems: 32,
        };
        let checked = |places: [u64; 2]| check(&specs, &places.map(at), 0, &Tensors::default());
        assert!(checked([0x1000, 0x1000 + 10 * 64]).is_ok());
        for residual_out in [0x1000, 0x1010, 0x1000 + 9 * 64] {
            let error = checked([0x1000, residual_out]).expect_err("they overlap");
            assert!(error.to_string().contains("overlaps c"), "{error}");
        }
    }

    #[test]
    fn the_number_of_operands_is_checked() {
        let error =
            check(&SPECS, &operands()[..2], 0, &Tensors::default()).expect_err("two of three");
        assert_eq!(
            error.to_string(),
            "2 operands were passed, but the kernel has 3: a, b, c"
        );
    }
}
