//! Checks the operands of a call, and finds the places of the operands in symmetric memory.

use crate::error::{CallError, Error, OperandFault};
use crate::launch::overlap;
use crate::launch::raw_operand::RawOperand;
use crate::launch::rows::Rows;
use crate::tensors::{SymmetricPlace, Tensors};
use mkernel_spec::abi::{MAX_OPERANDS, OperandSpec};

/// The exclusive upper limit of the strides of tensor maps, in bytes.
const MAX_STRIDE_BYTES: u64 = 1 << 40;

/// Whether a rank passes an operand: the operand has rows there or, if it is a result in symmetric memory, on another rank. A rank
/// stores to the results of other ranks at the place of its own result.
fn is_passed(spec: &OperandSpec, rank: u32) -> bool {
    let has_rows = |rank| spec.rows.on(rank) > 0;
    has_rows(rank) || spec.symmetric && spec.written && has_rows(0)
}

/// Checks the operands of a call with the given rows and returns all mistakes at once. An operand that this rank does not pass is
/// not checked. `tensors` are the tensors in symmetric memory.
pub(crate) fn check(
    specs: &[OperandSpec],
    operands: &[RawOperand],
    rows: Rows,
    (rank, tensors): (u32, &Tensors),
) -> Result<(), Error> {
    check_count(specs, operands)?;
    let mut faults = Vec::new();
    for (spec, operand) in specs
        .iter()
        .zip(operands)
        .filter(|(spec, _)| is_passed(spec, rank))
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
        let align_bytes = spec.align_bytes;
        let fault = OperandFault::Misaligned {
            address,
            align_bytes,
        };
        require(address.is_multiple_of(align_bytes), fault);
        let fault = OperandFault::StrideShort {
            row_stride_elems,
            cols: spec.cols,
        };
        require(row_stride_elems >= spec.cols, fault);
        let is_dense = spec.cols > 1 || spec.rows.on(rank) == 1 || row_stride_elems == 1;
        require(is_dense, OperandFault::VectorStride { row_stride_elems });
        let step = spec.stride_step;
        let takes = row_stride_elems.is_multiple_of(step)
            && row_stride_elems < MAX_STRIDE_BYTES / spec.dtype.bytes();
        let fault = OperandFault::StrideStep {
            row_stride_elems,
            step,
        };
        require(takes, fault);
        if spec.symmetric {
            let (cols, bytes) = (spec.cols, bytes_on(spec, rank));
            let fault = OperandFault::SymmetricStride {
                row_stride_elems,
                cols,
            };
            require(row_stride_elems == cols, fault);
            let is_symmetric = tensors.find(address, bytes).is_some();
            require(is_symmetric, OperandFault::NotSymmetric { address, bytes });
        }
    }
    overlap::check(specs, operands, rank, rows, &mut faults);
    if faults.is_empty() {
        Ok(())
    } else {
        Err(Error::Operands(faults))
    }
}

/// Checks the number of operands.
fn check_count(specs: &[OperandSpec], operands: &[RawOperand]) -> Result<(), Error> {
    if operands.len() == specs.len() {
        return Ok(());
    }
    Err(Error::Call(CallError::OperandCount {
        given: operands.len(),
        expected: specs.len(),
        names: specs.iter().map(|spec| spec.operand.name()).collect(),
    }))
}

/// Returns the size in bytes of a dense operand on a rank.
fn bytes_on(spec: &OperandSpec, rank: u32) -> u64 {
    let elems = spec.rows.on(rank).saturating_mul(spec.cols);
    elems.saturating_mul(spec.dtype.bytes())
}

/// Returns the places of the operands in symmetric memory, which [`check`] has checked. Other operands have no place.
pub(crate) fn places(
    specs: &[OperandSpec],
    operands: &[RawOperand],
    rank: u32,
    tensors: &Tensors,
) -> [SymmetricPlace; MAX_OPERANDS] {
    let mut places = [SymmetricPlace::default(); MAX_OPERANDS];
    for (place, (spec, operand)) in places.iter_mut().zip(specs.iter().zip(operands)) {
        if spec.symmetric && is_passed(spec, rank) {
            let found = tensors.find(operand.ptr, bytes_on(spec, rank));
            *place = found.unwrap_or_default();
        }
    }
    places
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use mkernel_spec::Dtype;
    use mkernel_spec::abi::{Extent, Operand};

    const SHARD: Extent = Extent::ShardRows {
        total: 10,
        per_rank: 4,
    };
    pub(crate) const SPECS: [OperandSpec; 3] = [
        OperandSpec::new(Operand::A, SHARD, 64, Dtype::Bf16),
        OperandSpec::new(Operand::B, Extent::Fixed(64), 32, Dtype::Bf16),
        OperandSpec::new(Operand::C, Extent::Fixed(10), 32, Dtype::Fp32),
    ];

    pub(crate) fn operands() -> [RawOperand; 3] {
        [(0x1000, 72), (0x2000, 32), (0x3000, 40)].map(|(ptr, row_stride_elems)| RawOperand {
            ptr,
            row_stride_elems,
        })
    }

    fn check_on_rank_0(operands: &[RawOperand]) -> Result<(), Error> {
        check(&SPECS, operands, Rows::Most, (0, &Tensors::default()))
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
        let Err(Error::Operands(faults)) = check_on_rank_0(&operands) else {
            panic!("four faults")
        };
        let expected = [
            (
                Operand::A,
                OperandFault::Misaligned {
                    address: 0x1008,
                    align_bytes: 16,
                },
            ),
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
                    step: 8,
                },
            ),
            (Operand::B, OperandFault::Null),
            (
                Operand::C,
                OperandFault::StrideStep {
                    row_stride_elems: 1 << 40,
                    step: 8,
                },
            ),
        ];
        assert_eq!(faults, expected);
        let text = Error::Operands(faults).to_string();
        assert_eq!(text.lines().count(), 5, "{text}");
    }

    /// Kernels do not read the stride of a vector.
    #[test]
    fn elements_of_a_vector_lie_one_after_the_other() {
        let specs = [OperandSpec {
            operand: Operand::Lse,
            cols: 1,
            stride_step: 1,
            ..SPECS[2]
        }];
        let check = |rows, row_stride_elems| {
            let specs = specs.map(|spec| OperandSpec {
                rows: Extent::Fixed(rows),
                ..spec
            });
            let operand = RawOperand {
                ptr: 0x1000,
                row_stride_elems,
            };
            check(&specs, &[operand], Rows::Most, (0, &Tensors::default()))
        };
        assert!(check(10, 1).is_ok() && check(1, 8).is_ok());
        let error = check(10, 8).expect_err("a stride of 8");
        assert!(
            error
                .to_string()
                .starts_with("operand lse: the row stride is 8 elements, but ")
        );
    }

    #[test]
    fn the_number_of_operands_is_checked() {
        let error = check_on_rank_0(&operands()[..2]).expect_err("two of three");
        assert_eq!(
            error.to_string(),
            "2 operands were passed, but the kernel has 3: a, b, c"
        );
    }
}
