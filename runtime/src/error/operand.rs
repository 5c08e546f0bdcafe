//! [`OperandFault`]: the reason why an operand cannot be used.

use mkernel_spec::Dtype;
use mkernel_spec::abi::Operand;

/// The reason why an operand cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperandFault {
    /// The pointer is null.
    #[error("the pointer is null. Pass device memory")]
    Null,
    /// The kernel does not support the address.
    #[error(
        "address {address:#x} is not a multiple of {align_bytes} bytes, in which the kernel reads and writes. Start views at a \
         multiple of {align_bytes} bytes"
    )]
    Misaligned {
        /// The address.
        address: u64,
        /// The unit of the address, in bytes.
        align_bytes: u64,
    },
    /// The rows would overlap.
    #[error("the row stride is {row_stride_elems} elements, but a row has {cols} columns")]
    StrideShort {
        /// The row stride in elements.
        row_stride_elems: u64,
        /// The number of columns.
        cols: u64,
    },
    /// TMA does not support the row stride.
    #[error(
        "the row stride is {row_stride_elems} elements, but TMA requires a multiple of {step} elements below 2^40 bytes. Pad the rows"
    )]
    StrideStep {
        /// The row stride in elements.
        row_stride_elems: u64,
        /// The unit of the row stride, in elements.
        step: u64,
    },
    /// The elements of an operand with one column lie apart.
    #[error(
        "the row stride is {row_stride_elems} elements, but an operand with one column is contiguous. Pass contiguous elements"
    )]
    VectorStride {
        /// The row stride in elements.
        row_stride_elems: u64,
    },
    /// An operand of the kernel was not passed.
    #[error("it was not passed. Pass it with `call` or `launch_with`{}", declare_without(*.operand))]
    Missing {
        /// The operand.
        operand: Operand,
    },
    /// The kernel does not have this operand.
    #[error("the kernel has only {}. Leave it out{}", .names.join(", "), declare_it(*.operand))]
    Unexpected {
        /// The operand.
        operand: Operand,
        /// The names of the kernel's operands.
        names: Vec<&'static str>,
    },
    /// The operand was passed twice.
    #[error("it was passed twice. Pass it once")]
    Twice,
    /// A result was passed for reading, or an input for writing.
    #[error("the kernel {} it. Pass it with `{}`", if *.written { "writes" } else { "only reads" }, if *.written { "write" } else { "read" })]
    Access {
        /// Whether the kernel writes the operand.
        written: bool,
    },
    /// The slice does not belong to the communicator's GPU.
    #[error(
        "it belongs to GPU {given}, but the communicator uses GPU {expected}. Allocate it with Communicator::context()"
    )]
    WrongDevice {
        /// The GPU of the slice.
        given: usize,
        /// The GPU of the communicator.
        expected: usize,
    },
    /// A result overlaps another operand.
    #[error("it overlaps {}. Pass separate memory{}", .other.name(), or_in_place(*.other, .in_place.as_ref()))]
    Overlaps {
        /// The other operand.
        other: Operand,
        /// The place that lets the other operand share memory with the result, or `None` if the two may not share memory.
        in_place: Option<InPlace>,
    },
    /// A result overlaps the word of device memory with the rows of the call.
    #[error("it overlaps the word that has the rows of the call. Pass separate memory")]
    OverlapsRows,
    /// The operand is not a tensor in symmetric memory.
    #[error(
        "its {bytes} bytes at {address:#x} are not part of a tensor in the communicator's symmetric memory. Allocate it with \
         Communicator::alloc of this communicator on all ranks, or declare the kernel without `symmetric_result` or `symmetric_a`"
    )]
    NotSymmetric {
        /// The address.
        address: u64,
        /// The bytes from the first to the last element.
        bytes: u64,
    },
    /// The rows of an operand in symmetric memory lie apart.
    #[error(
        "the row stride is {row_stride_elems} elements, but rows of {cols} columns in symmetric memory are contiguous. \
         Pass contiguous rows, or declare the kernel without `symmetric_result` or `symmetric_a`"
    )]
    SymmetricStride {
        /// The row stride in elements.
        row_stride_elems: u64,
        /// The number of columns.
        cols: u64,
    },
    /// The slice has elements of another type.
    #[error(
        "its elements are {given}, but the kernel expects {expected}. Pass elements of that type{}",
        declare_type(*.operand, *.given, *.expected)
    )]
    Dtype {
        /// The operand.
        operand: Operand,
        /// The element type of the slice.
        given: Dtype,
        /// The element type of the kernel's operand.
        expected: Dtype,
    },
    /// The slice is shorter than the operand.
    #[error(
        "the slice has {elems} elements, but {rows} rows of {cols} columns{} are {}. Pass a slice with at least as many{}",
        apart(*.cols, *.row_stride_elems),
        elems_of(*.rows, *.cols, *.row_stride_elems),
        same_rows(*.operand, *.elems / (*.cols).max(1), *.rows)
    )]
    Length {
        /// The operand.
        operand: Operand,
        /// The number of elements of the slice.
        elems: u64,
        /// The number of rows on this rank.
        rows: u64,
        /// The number of columns.
        cols: u64,
        /// The row stride in elements.
        row_stride_elems: u64,
    },
}

/// The place that an operand must have so that the result of a call takes its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InPlace {
    /// The address of the operand's first element.
    pub address: u64,
    /// The row stride in elements.
    pub row_stride_elems: u64,
}

/// Describes how the result may share memory with the operand `other`. Empty if it may not.
fn or_in_place(other: Operand, in_place: Option<&InPlace>) -> String {
    let Some(InPlace {
        address,
        row_stride_elems,
    }) = in_place
    else {
        return String::new();
    };
    let name = other.name();
    format!(
        ", or {name} at {address:#x} with a row stride of {row_stride_elems} elements, so that the result takes the place of {name}"
    )
}

/// The number of elements from the first to the last element of rows that lie `row_stride_elems` apart.
pub(crate) const fn elems_of(rows: u64, cols: u64, row_stride_elems: u64) -> u64 {
    let before_last = rows.saturating_sub(1).saturating_mul(row_stride_elems);
    before_last.saturating_add(cols)
}

/// Describes rows that are not contiguous. Empty for contiguous rows.
fn apart(cols: u64, row_stride_elems: u64) -> String {
    match row_stride_elems == cols {
        true => String::new(),
        false => format!(" that begin {row_stride_elems} elements apart"),
    }
}

/// Explains why operands of attention must have equal rows, and what to do instead. Empty for other operands.
fn same_rows(operand: Operand, given: u64, rows: u64) -> String {
    match operand {
        Operand::Q | Operand::K | Operand::V => format!(
            ", since q, k and v have the same rows: {given} of one and {rows} of another are not supported. For new rows \
             over a cache of keys, see \"New rows over cached rows\" in the chapter on attention of mkernel's book"
        ),
        _ => String::new(),
    }
}

/// Describes the declaration of a kernel that has this operand. Empty if no declaration adds the operand.
fn declare_it(operand: Operand) -> String {
    match operand {
        Operand::Bias | Operand::Residual => {
            format!(", or declare the kernel with `{} = true`", operand.name())
        }
        Operand::AScales | Operand::BScales | Operand::DownScales | Operand::XScales => {
            ", or declare the kernel with `scales`".to_owned()
        }
        Operand::Weight | Operand::ResidualOut => {
            ", or declare the kernel with `norm = rms`".to_owned()
        }
        Operand::YScales => ", or declare the kernel with `scales` or `result_scales`".to_owned(),
        Operand::CScales => ", or declare the kernel with `result_scales`".to_owned(),
        Operand::Lse => ", or declare the kernel without `lse = false`".to_owned(),
        _ => String::new(),
    }
}

/// Describes the declaration of a kernel without this operand. Empty if no declaration removes the operand.
fn declare_without(operand: Operand) -> String {
    match operand {
        Operand::Bias | Operand::Residual => {
            format!(", or declare the kernel without `{}`", operand.name())
        }
        Operand::Weight | Operand::ResidualOut => {
            ", or declare the kernel without `norm`".to_owned()
        }
        Operand::AScales | Operand::BScales | Operand::DownScales | Operand::XScales => {
            ", or declare the kernel without `scales`".to_owned()
        }
        Operand::YScales => {
            ", or declare the kernel without `scales` and `result_scales`".to_owned()
        }
        Operand::CScales => ", or declare the kernel without `result_scales`".to_owned(),
        Operand::Lse => ", or declare the kernel with `lse = false`".to_owned(),
        _ => String::new(),
    }
}

/// Describes the declaration of a kernel whose operand has elements of this type. Empty if there is no such declaration.
fn declare_type(operand: Operand, given: Dtype, expected: Dtype) -> String {
    match (operand, given) {
        (Operand::Y, Dtype::E4m3) => {
            ", or declare the kernel with `dtype = e4m3` or, with a norm, `result_scales`"
                .to_owned()
        }
        (Operand::Y, _) if expected == Dtype::E4m3 => {
            ", or declare the kernel without `dtype = e4m3` or `result_scales`".to_owned()
        }
        (Operand::C, Dtype::E4m3) => ", or declare the kernel with `result_scales`".to_owned(),
        (Operand::C, _) if expected == Dtype::E4m3 => {
            ", or declare the kernel without `result_scales`".to_owned()
        }
        (_, given) if Dtype::GEMM_FACTORS.contains(&given) => {
            format!(", or declare `dtype = {given}`")
        }
        (Operand::C, Dtype::Fp32) => ", or declare `output = fp32`".to_owned(),
        _ => String::new(),
    }
}
