//! [`CallError`]: why a call cannot be enqueued, apart from its operands.

/// Why a call cannot be enqueued, apart from its operands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The number of raw operands is wrong.
    #[error("{given} operands were passed, but the kernel has {expected}: {}", .names.join(", "))]
    OperandCount {
        /// The number of operands that were passed.
        given: usize,
        /// The number of operands of the kernel.
        expected: usize,
        /// The names of the kernel's operands, in order.
        names: Vec<&'static str>,
    },
    /// The stream belongs to another GPU than the communicator.
    #[error(
        "the stream belongs to GPU {given}, but the communicator uses GPU {expected}. Use a stream of \
         Communicator::context()"
    )]
    WrongDevice {
        /// The GPU of the stream.
        given: usize,
        /// The GPU of the communicator.
        expected: usize,
    },
    /// The stream is being captured, and the operands could be freed before a replay of the graph.
    #[error(
        "the stream is being captured, and nothing keeps the operands alive for replays of the graph. Use the unsafe \
         Call::capture or launch_raw, and keep the operands alive yourself"
    )]
    StreamCaptured,
    /// The call gives rows, but the kernel was made for one number of them.
    #[error(
        "the call gives rows, but kernel {id} has as many as it was prepared for. Leave them out, or declare the kernel \
         with `m = dynamic` if its operator takes rows at run time"
    )]
    RowsFixed {
        /// The name of the kernel.
        id: String,
    },
    /// The slice with the rows of the call is on another GPU.
    #[error(
        "the slice with the rows is on GPU {given}, but the communicator uses GPU {expected}. Copy it there"
    )]
    RowsWrongDevice {
        /// The GPU of the slice.
        given: usize,
        /// The GPU of the communicator.
        expected: usize,
    },
    /// The slice with the rows of the call is empty.
    #[error("the slice with the rows is empty. Pass one whose first element is the number of rows")]
    RowsEmpty,
    /// The call gives more rows than the operator was prepared for.
    #[error(
        "the call gives {rows} rows, but the operator was prepared for {most} at most. Prepare it for more"
    )]
    TooManyRows {
        /// The rows of the call.
        rows: u64,
        /// The most rows.
        most: u64,
    },
    /// [`Call::capture`](crate::Call::capture) was called for a stream that is not being captured.
    #[error("the stream is not being captured. Begin a capture first, or use Call::launch")]
    StreamNotCaptured,
}
