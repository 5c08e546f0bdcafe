//! [`ConnectionError`]: the reason why a connection between two ranks cannot be used any more.

use crate::error::ProtocolFault;

/// The reason why a connection cannot be used any more.
#[derive(Debug)]
pub(super) enum ConnectionError {
    /// The other end has closed the connection, or its process has stopped.
    Closed,
    /// The other end sent an invalid frame.
    Fault(ProtocolFault),
    /// The other end does not read.
    Deadline,
}

impl From<ProtocolFault> for ConnectionError {
    fn from(fault: ProtocolFault) -> Self {
        Self::Fault(fault)
    }
}
