//! [`OperandDoc`]: an operand as the generated code and its documentation describe it.

use mkernel_spec::Dtype;
use mkernel_spec::abi::Operand;

/// An operand of a declared kernel.
#[derive(Clone, Debug)]
pub struct OperandDoc {
    pub operand: Operand,
    pub dtype: Dtype,
    /// Whether the kernel writes the operand.
    pub written: bool,
    /// The shape on each rank, such as `[⌈M/8⌉, 4096]`.
    pub shape: String,
    /// A note about the operand; empty if there is no note.
    pub note: String,
}

impl OperandDoc {
    /// An operand, which the kernel writes if the operand is a result.
    pub fn new(operand: Operand, dtype: Dtype, shape: String) -> Self {
        Self {
            operand,
            dtype,
            written: operand.is_result(),
            shape,
            note: String::new(),
        }
    }

    pub fn written(mut self) -> Self {
        self.written = true;
        self
    }

    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// A one-line description: the shape, the elements, the access, and the note.
    pub fn summary(&self) -> String {
        let access = if self.written { "written" } else { "read" };
        let note = match self.note.as_str() {
            "" => String::new(),
            note => format!("; {note}"),
        };
        format!("`{}`, {}, {access}{note}", self.shape, self.dtype)
    }
}
