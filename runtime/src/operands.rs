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
    #[error("it was not passed; use `call` or `launch_with`, or declare the kernel without it")]
    Missing,
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

/// How a kernel gets an operand that only some have.
fn declare_it(operand: Operand) -> String {
    match operand {
        Operand::Bias | Operand::Residual => {
            format!(", or declare the kernel with `{} = true`", operand.name())
        }
        _ => String::new(),
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
    if faults.is_empty() {
        Ok(())
    } else {
        Err(Error::Operands(faults))
    }
}

/// What a caller passed for an operand: a dense slice of so many elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passed {
    pub operand: Operand,
    pub elems: usize,
    pub dtype: Dtype,
    /// Whether it may be written.
    pub written: bool,
    pub address: u64,
}

/// Checks that what was passed is what the kernel has on `rank`: all mistakes at once, beside `faults` of operands that
/// are not among them.
pub(crate) fn check_passed(
    specs: &[OperandSpec],
    passed: &[Passed],
    mut faults: Vec<(Operand, OperandFault)>,
    rank: u32,
) -> Result<(), Error> {
    let absent: Vec<_> = faults.iter().map(|(operand, _)| *operand).collect();
    for (i, Passed { operand, .. }) in passed.iter().enumerate() {
        if !specs.iter().any(|spec| spec.operand == *operand) {
            let names = specs.iter().map(|spec| spec.operand.name()).collect();
            let operand = *operand;
            faults.push((operand, OperandFault::Unexpected { operand, names }));
        } else if passed[..i].iter().any(|p| p.operand == *operand) {
            faults.push((*operand, OperandFault::Twice));
        }
    }
    for spec in specs {
        let Some(passed) = passed.iter().find(|p| p.operand == spec.operand) else {
            if !absent.contains(&spec.operand) {
                faults.push((spec.operand, OperandFault::Missing));
            }
            continue;
        };
        if passed.written != spec.written {
            let written = spec.written;
            faults.push((spec.operand, OperandFault::Access { written }));
        }
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

/// What was passed, in the order of `specs`.
pub(crate) fn dense(specs: &[OperandSpec], passed: &[Passed]) -> Vec<RawOperand> {
    let passed_as = |wanted| passed.iter().find(|passed| passed.operand == wanted);
    let dense = |spec: &OperandSpec| RawOperand {
        ptr: passed_as(spec.operand).map_or(0, |passed| passed.address),
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
            passed(Operand::A, 256, false),
            passed(Operand::C, 320, true),
            passed(Operand::Bias, 32, false),
        ];
        let (operands, text) = faults(&passed, Vec::new());
        assert_eq!(operands, [Operand::Bias, Operand::B, Operand::C], "{text}");
        for part in ["only a, b, c", "bias = true", "launch_with", "bf16", "fp32"] {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
    }

    #[test]
    fn each_operand_is_passed_once_and_for_what_the_kernel_does() {
        let mut all = vec![
            passed(Operand::A, 256, true),
            passed(Operand::B, 2048, false),
            passed(Operand::C, 320, false),
            passed(Operand::B, 2048, false),
        ];
        all[2].dtype = Dtype::Fp32;
        let (operands, text) = faults(&all, Vec::new());
        assert_eq!(operands, [Operand::B, Operand::A, Operand::C], "{text}");
        for part in [
            "twice",
            "only reads it; pass it with `read`",
            "writes it; pass it with `write`",
        ] {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
    }

    #[test]
    fn an_operand_of_another_gpu_is_not_missing_too() {
        let wrong = OperandFault::WrongDevice {
            given: 1,
            expected: 0,
        };
        let mut c = passed(Operand::C, 320, true);
        c.dtype = Dtype::Fp32;
        let all = [passed(Operand::A, 256, false), c];
        let (operands, text) = faults(&all, vec![(Operand::B, wrong)]);
        assert_eq!(operands, [Operand::B], "{text}");
        assert!(text.contains("operand b: it belongs to GPU 1"), "{text}");
    }

    fn passed(operand: Operand, elems: usize, written: bool) -> Passed {
        Passed {
            operand,
            elems,
            dtype: Dtype::Bf16,
            written,
            address: 0x1000,
        }
    }

    /// What is wrong on rank 0: of which operands, and in words.
    fn faults(passed: &[Passed], known: Vec<(Operand, OperandFault)>) -> (Vec<Operand>, String) {
        match check_passed(&SPECS, passed, known, 0) {
            Err(Error::Operands(faults)) => {
                let operands = faults.iter().map(|(operand, _)| *operand).collect();
                (operands, Error::Operands(faults).to_string())
            }
            other => panic!("{other:?}"),
        }
    }
}
