//! [`CallError`]: the reason why a call cannot be enqueued, other than its operands.

/// The reason why a call cannot be enqueued, other than its operands.
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
    /// The stream does not belong to the communicator's GPU.
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
    /// [`Communicator::rebuild`](crate::Communicator::rebuild) was called for a group, for a communicator that the other ranks
    /// have rebuilt without this rank, or for a communicator that was rebuilt before.
    #[error(
        "the communicator cannot be rebuilt: it is a group of Communicator::split, or was rebuilt before. Rebuild the \
         communicator that was split, or the last result of Communicator::rebuild. A rank that the others went on without \
         can only start again"
    )]
    NotRebuildable,
    /// The stream is being captured, and the operands could be freed before a replay of the graph.
    #[error(
        "the stream is being captured, and nothing keeps the operands alive for replays of the graph. Use the unsafe \
         Call::capture or launch_raw, and keep the operands alive yourself"
    )]
    StreamCaptured,
    /// [`Communicator::capture`](crate::Communicator::capture) was called for the default stream of a GPU.
    #[error(
        "the default stream of a GPU cannot be captured. Pass a stream of Communicator::context().new_stream()"
    )]
    DefaultStreamCaptured,
    /// The call gives rows, but the kernel was made for one number of rows.
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
        "the call gives {rows} rows{}, but the operator was prepared for {most} at most. Give a number from 0 to {most}, or \
         prepare it for more",
        if_negative(*.rows)
    )]
    TooManyRows {
        /// The rows of the call.
        rows: u64,
        /// The most rows that the operator takes.
        most: u64,
    },
    /// [`Call::capture`](crate::Call::capture) was called for a stream that is not being captured.
    #[error("the stream is not being captured. Begin a capture first, or use Call::launch")]
    StreamNotCaptured,
    /// [`Communicator::synchronize`](crate::Communicator::synchronize) or
    /// [`Communicator::completion`](crate::Communicator::completion) was called for a stream that is being captured.
    #[error(
        "the stream is being captured, so its work does not run and cannot be waited for. End the capture, launch the graph, and \
         wait for the stream of that launch"
    )]
    WaitInCapture,
    /// [`Operator::trace`](crate::Operator::trace) was called for an operator whose kernel records no trace.
    #[error(
        "kernel {id} records no trace. Prepare it with `traced = true`, and make a call before you read its trace"
    )]
    NotTraced {
        /// The name of the kernel.
        id: String,
    },
    /// Tensors of a library have a shape, a type or a place that the call does not take. Crates on top of this one, such as
    /// `mkernel-candle`, return this.
    #[error("{0}")]
    Tensors(String),
}

/// Describes `rows` as a signed number if its 32-bit or 64-bit pattern is negative, which is the likely reason for so large a
/// number. Returns an empty text otherwise.
fn if_negative(rows: u64) -> String {
    let signed = u32::try_from(rows).map_or(rows as i64, |rows| i64::from(rows as i32));
    match signed < 0 {
        true => format!(" ({signed} as a signed number)"),
        false => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_negative_number_are_shown_as_negative() {
        let text = |rows| CallError::TooManyRows { rows, most: 12 }.to_string();
        for (rows, shown) in [
            (13, "gives 13 rows, but"),
            (i32::MAX as u64, "gives 2147483647 rows, but"),
            (1 << 40, "gives 1099511627776 rows, but"),
            (
                u32::MAX.into(),
                "gives 4294967295 rows (-1 as a signed number), but",
            ),
            (
                -7_i64 as u64,
                "gives 18446744073709551609 rows (-7 as a signed number), but",
            ),
        ] {
            let text = text(rows);
            assert!(text.contains(shown), "{shown:?} in {text:?}");
            assert!(text.contains("Give a number from 0 to 12"), "{text}");
        }
    }
}
