//! [`Slices`]: the operands of a call that were passed as slices, and their checks.

use crate::error::{Error, OperandFault, elems_of};
use crate::launch::raw_operand::RawOperand;
use cudarc::driver::CudaEvent;
use mkernel_spec::Dtype;
use mkernel_spec::abi::{MAX_OPERANDS, Operand, OperandSpec};

/// An operand that was passed as a slice.
#[derive(Clone, Copy)]
pub(crate) struct SliceOperand<'a> {
    pub elems: usize,
    /// The distance from one row to the next, in elements; `None` if rows are contiguous.
    pub row_stride: Option<u64>,
    pub dtype: Dtype,
    /// Whether the slice was passed for writing.
    pub written: bool,
    pub address: u64,
    /// The event to record behind the kernel.
    pub used: Option<&'a CudaEvent>,
}

/// The operands that were passed so far, and the mistakes that were found so far.
pub(crate) struct Slices<'a> {
    /// The operands of the plan, in order.
    wanted: &'a [OperandSpec],
    /// The passed operands, in the order of `wanted`.
    passed: [Option<SliceOperand<'a>>; MAX_OPERANDS],
    faults: Vec<(Operand, OperandFault)>,
}

impl<'a> Slices<'a> {
    pub const fn new(wanted: &'a [OperandSpec]) -> Self {
        Self {
            wanted,
            passed: [None; MAX_OPERANDS],
            faults: Vec::new(),
        }
    }

    /// Records a mistake.
    pub fn refuse(&mut self, operand: Operand, fault: OperandFault) {
        self.faults.push((operand, fault));
    }

    /// Adds an operand. An operand that the kernel does not have, or that was passed before, is a mistake.
    pub fn pass(&mut self, operand: Operand, slice: SliceOperand<'a>) {
        let index = self.wanted.iter().position(|spec| spec.operand == operand);
        match index.and_then(|index| self.passed.get_mut(index)) {
            Some(place @ None) => *place = Some(slice),
            Some(Some(_)) => self.faults.push((operand, OperandFault::Twice)),
            None => {
                let names = self.wanted.iter().map(|spec| spec.operand.name()).collect();
                let fault = OperandFault::Unexpected { operand, names };
                self.faults.push((operand, fault));
            }
        }
    }

    /// Adds the input that a result replaces, in the memory of the result. The event of this memory is recorded once, for the result.
    pub fn pass_replaced(&mut self, result: Operand) {
        let mut passed = self.wanted.iter().zip(self.passed);
        let Some((spec, Some(slice))) = passed.find(|(spec, _)| spec.operand == result) else {
            return;
        };
        if let Some(input) = spec.in_place_of {
            let slice = SliceOperand {
                written: false,
                used: None,
                ..slice
            };
            self.pass(input, slice);
        }
    }

    /// Checks that the operands fit a call on `rank`, and returns all mistakes at once. `specs` are the operands of the plan
    /// with the rows of the call.
    pub fn check(
        &mut self,
        specs: impl Iterator<Item = OperandSpec>,
        rank: u32,
    ) -> Result<(), Error> {
        let mut faults = std::mem::take(&mut self.faults);
        let early = faults.len();
        for (spec, passed) in specs.zip(&self.passed) {
            let operand = spec.operand;
            let Some(passed) = passed else {
                if !faults[..early]
                    .iter()
                    .any(|(refused, _)| *refused == operand)
                {
                    faults.push((operand, OperandFault::Missing { operand }));
                }
                continue;
            };
            if passed.written != spec.written {
                let written = spec.written;
                faults.push((operand, OperandFault::Access { written }));
            }
            if passed.dtype != spec.dtype {
                let fault = OperandFault::Dtype {
                    operand,
                    given: passed.dtype,
                    expected: spec.dtype,
                };
                faults.push((operand, fault));
            }
            let size = (passed.elems, passed.row_stride);
            faults.extend(check_length(&spec, size, rank));
        }
        match faults.is_empty() {
            true => Ok(()),
            false => Err(Error::Operands(faults)),
        }
    }

    /// Returns the operands in the order of the plan, and their number.
    pub fn dense(&self) -> ([RawOperand; MAX_OPERANDS], usize) {
        let mut dense = [RawOperand::default(); MAX_OPERANDS];
        for (operand, (spec, passed)) in dense.iter_mut().zip(self.wanted.iter().zip(&self.passed))
        {
            *operand = RawOperand {
                ptr: passed.map_or(0, |passed| passed.address),
                row_stride_elems: passed
                    .and_then(|passed| passed.row_stride)
                    .unwrap_or(spec.cols),
            };
        }
        (dense, self.wanted.len().min(MAX_OPERANDS))
    }

    /// Returns the events to record behind the kernel.
    pub fn used(&self) -> impl Iterator<Item = &'a CudaEvent> {
        self.passed
            .iter()
            .flatten()
            .filter_map(|passed| passed.used)
    }
}

/// Checks that the elements and the row stride of a slice have room for an operand.
fn check_length(
    spec: &OperandSpec,
    (elems, row_stride): (usize, Option<u64>),
    rank: u32,
) -> Option<(Operand, OperandFault)> {
    let (rows, elems) = (spec.rows.on(rank), elems as u64);
    let row_stride_elems = row_stride.unwrap_or(spec.cols);
    // An allocation cannot be empty, so any slice is accepted for an operand without rows.
    let fits = rows == 0 || elems >= elems_of(rows, spec.cols, row_stride_elems);
    (!fits).then_some((
        spec.operand,
        OperandFault::Length {
            operand: spec.operand,
            elems,
            rows,
            cols: spec.cols,
            row_stride_elems,
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::operands::tests::SPECS;

    #[test]
    fn slices_have_at_least_the_operands_size() {
        assert_eq!(check_length(&SPECS[0], (256, None), 0), None);
        assert_eq!(
            check_length(&SPECS[0], (128, None), 2),
            None,
            "the last shard is shorter"
        );
        let empty = check_length(&SPECS[0], (5, None), 3);
        assert_eq!(empty, None, "no rows: any slice");
        let fault = check_length(&SPECS[0], (255, None), 0).expect("too short");
        assert_eq!(
            fault,
            (
                Operand::A,
                OperandFault::Length {
                    operand: Operand::A,
                    elems: 255,
                    rows: 4,
                    cols: 64,
                    row_stride_elems: 64,
                }
            )
        );
    }

    /// The last row has no elements behind it.
    #[test]
    fn rows_that_lie_apart_end_with_the_last_one() {
        let stride = Some(96);
        let needed = 3 * 96 + 64;
        assert_eq!(check_length(&SPECS[0], (needed, stride), 0), None);
        let (_, fault) = check_length(&SPECS[0], (needed - 1, stride), 0).expect("too short");
        let text = fault.to_string();
        let parts = "351 elements, but 4 rows of 64 columns that begin 96 elements apart are 352";
        assert!(text.contains(parts), "{text}");
        let stride = Some(u64::MAX);
        assert!(check_length(&SPECS[0], (usize::MAX - 1, stride), 0).is_some());
    }

    #[test]
    fn the_error_for_queries_and_keys_of_different_rows_names_both() {
        let spec = OperandSpec {
            operand: Operand::K,
            ..SPECS[0]
        };
        let (operand, fault) = check_length(&spec, (64, None), 0).expect("too short");
        assert_eq!(operand, Operand::K);
        let text = fault.to_string();
        for part in [
            "64 elements, but 4 rows of 64 columns are 256",
            "q, k and v have the same rows: 1 of one and 4 of another are not supported",
            "\"New rows over cached rows\"",
        ] {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
        let (_, fault) = check_length(&SPECS[0], (64, None), 0).expect("too short");
        assert!(!fault.to_string().contains("keys"), "{fault}");
    }

    #[test]
    fn missing_superfluous_and_mistyped_operands_are_reported_at_once() {
        let mut slices = Slices::new(&SPECS);
        pass(&mut slices, Operand::A, 256, false);
        pass(&mut slices, Operand::C, 320, true);
        pass(&mut slices, Operand::Bias, 32, false);
        let (operands, text) = faults(slices);
        assert_eq!(operands, [Operand::Bias, Operand::B, Operand::C], "{text}");
        for part in ["only a, b, c", "bias = true", "launch_with", "bf16", "fp32"] {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
    }

    #[test]
    fn each_operand_is_passed_once_and_with_the_right_access() {
        let mut slices = Slices::new(&SPECS);
        pass(&mut slices, Operand::A, 256, true);
        pass(&mut slices, Operand::B, 2048, false);
        slices.passed[2] = Some(slice(320, Dtype::Fp32, false));
        pass(&mut slices, Operand::B, 2048, false);
        let (operands, text) = faults(slices);
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
        let mut slices = Slices::new(&SPECS);
        pass(&mut slices, Operand::A, 256, false);
        slices.refuse(Operand::B, wrong);
        slices.passed[2] = Some(slice(320, Dtype::Fp32, true));
        let (operands, text) = faults(slices);
        assert_eq!(operands, [Operand::B], "{text}");
        assert!(text.contains("operand b: it belongs to GPU 1"), "{text}");
    }

    #[test]
    fn operands_are_in_the_order_of_the_plan() {
        let mut slices = Slices::new(&SPECS);
        pass(&mut slices, Operand::C, 320, false);
        let of_a = SliceOperand {
            row_stride: Some(96),
            ..slice(352, Dtype::Bf16, false)
        };
        slices.pass(Operand::A, of_a);
        let (dense, count) = slices.dense();
        let strides = dense[..count]
            .iter()
            .map(|of| (of.ptr, of.row_stride_elems));
        assert!(
            strides.eq([(0x1000, 96), (0, 32), (0x1000, 32)]),
            "{dense:?}"
        );
    }

    fn slice(elems: usize, dtype: Dtype, written: bool) -> SliceOperand<'static> {
        SliceOperand {
            elems,
            row_stride: None,
            dtype,
            written,
            address: 0x1000,
            used: None,
        }
    }

    fn pass(slices: &mut Slices, operand: Operand, elems: usize, written: bool) {
        slices.pass(operand, slice(elems, Dtype::Bf16, written));
    }

    /// Returns the mistakes on rank 0: their operands, and the text of the error.
    fn faults(mut slices: Slices) -> (Vec<Operand>, String) {
        match slices.check(SPECS.into_iter(), 0) {
            Err(Error::Operands(faults)) => {
                let operands = faults.iter().map(|(operand, _)| *operand).collect();
                (operands, Error::Operands(faults).to_string())
            }
            other => panic!("{other:?}"),
        }
    }
}
