//! [`ProcessorFault`]: an instruction of a kernel that the host's processor refused to execute.

/// The reason why the processor refused an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum ProcessorFault {
    Memory,
    Arithmetic,
    Instruction,
}

impl ProcessorFault {
    /// Returns the kind and the text of the finding.
    pub fn describe(self) -> (&'static str, &'static str) {
        match self {
            Self::Memory => (
                "plain access",
                "an access without a primitive to memory of a GPU, or to unmapped memory",
            ),
            Self::Arithmetic => (
                "arithmetic",
                "an integer was divided by zero, or the quotient does not fit its type",
            ),
            Self::Instruction => (
                "undefined behaviour",
                "the kernel reached code that the compiler considers unreachable without undefined behaviour",
            ),
        }
    }
}
