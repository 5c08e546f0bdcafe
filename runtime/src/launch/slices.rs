//! [`SliceOperand`]: an operand that was passed as a slice, and its checks.

use crate::error::{Error, OperandFault};
use crate::launch::raw_operand::RawOperand;
use mkernel_spec::Dtype;
use mkernel_spec::abi::{Operand, OperandSpec};

/// An operand that was passed as a contiguous slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SliceOperand {
    pub operand: Operand,
    pub elems: usize,
    pub dtype: Dtype,
    /// Whether it was passed for writing.
    pub written: bool,
    pub address: u64,
}

/// Checks that the operands are those of the kernel on `rank`, and returns all mistakes at once. `faults` are mistakes
/// of operands that are not in `passed`.
pub(crate) fn check(
    specs: &[OperandSpec],
    passed: &[SliceOperand],
    mut faults: Vec<(Operand, OperandFault)>,
    rank: u32,
) -> Result<(), Error> {
    let absent: Vec<_> = faults.iter().map(|(operand, _)| *operand).collect();
    for (i, SliceOperand { operand, .. }) in passed.iter().enumerate() {
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
                let operand = spec.operand;
                faults.push((operand, OperandFault::Missing { operand }));
            }
            continue;
        };
        if passed.written != spec.written {
            let written = spec.written;
            faults.push((spec.operand, OperandFault::Access { written }));
        }
        if passed.dtype != spec.dtype {
            let fault = OperandFault::Dtype {
                operand: spec.operand,
                given: passed.dtype,
                expected: spec.dtype,
            };
            faults.push((spec.operand, fault));
        }
        faults.extend(check_length(spec, passed.elems, rank));
    }
    if faults.is_empty() {
        Ok(())
    } else {
        Err(Error::Operands(faults))
    }
}

/// Returns the operands in the order of `specs`.
pub(crate) fn dense(specs: &[OperandSpec], passed: &[SliceOperand]) -> Vec<RawOperand> {
    let passed_as = |wanted| passed.iter().find(|passed| passed.operand == wanted);
    let dense = |spec: &OperandSpec| RawOperand {
        ptr: passed_as(spec.operand).map_or(0, |passed| passed.address),
        row_stride_elems: spec.cols,
    };
    specs.iter().map(dense).collect()
}

fn check_length(spec: &OperandSpec, elems: usize, rank: u32) -> Option<(Operand, OperandFault)> {
    let (rows, elems) = (spec.rows.on(rank), elems as u64);
    // An allocation cannot be empty, so any slice is accepted for an operand without rows.
    let fits = rows == 0 || elems >= rows * spec.cols;
    (!fits).then_some((
        spec.operand,
        OperandFault::Length {
            operand: spec.operand,
            elems,
            rows,
            cols: spec.cols,
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::operands::tests::SPECS;

    #[test]
    fn slices_have_at_least_the_operands_size() {
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
                    operand: Operand::A,
                    elems: 255,
                    rows: 4,
                    cols: 64
                }
            )
        );
    }

    #[test]
    fn queries_of_other_rows_than_keys_are_named_with_both() {
        let spec = OperandSpec {
            operand: Operand::K,
            ..SPECS[0]
        };
        let (operand, fault) = check_length(&spec, 64, 0).expect("too short");
        assert_eq!(operand, Operand::K);
        let text = fault.to_string();
        for part in [
            "64 elements, but 4 rows of 64 columns are 256",
            "q, k and v have the same rows: 1 of one and 4 of another are not supported",
            "\"New rows over earlier keys\"",
        ] {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
        let (_, fault) = check_length(&SPECS[0], 64, 0).expect("too short");
        assert!(!fault.to_string().contains("keys"), "{fault}");
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
            "only reads it. Pass it with `read`",
            "writes it. Pass it with `write`",
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

    fn passed(operand: Operand, elems: usize, written: bool) -> SliceOperand {
        SliceOperand {
            operand,
            elems,
            dtype: Dtype::Bf16,
            written,
            address: 0x1000,
        }
    }

    /// Returns the mistakes on rank 0: the operands that they belong to, and the text of the error.
    fn faults(
        passed: &[SliceOperand],
        known: Vec<(Operand, OperandFault)>,
    ) -> (Vec<Operand>, String) {
        match check(&SPECS, passed, known, 0) {
            Err(Error::Operands(faults)) => {
                let operands = faults.iter().map(|(operand, _)| *operand).collect();
                (operands, Error::Operands(faults).to_string())
            }
            other => panic!("{other:?}"),
        }
    }
}
