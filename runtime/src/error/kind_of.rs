//! [`Error::kind`].

use super::kind::ErrorKind;
use super::{DeviceError, Error};

impl Error {
    /// Returns the kind of this error.
    ///
    /// ```
    /// use mkernel::{Communicator, ErrorKind, Simulation};
    ///
    /// let options = Simulation { skew: 101, ..Simulation::default() };
    /// let error = Communicator::simulated(&options).expect_err("100 at most");
    /// assert_eq!(error.kind(), ErrorKind::Setup);
    /// ```
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Config(_) | Self::Cluster(_) | Self::Kernel(_) => ErrorKind::Configuration,
            Self::Operands(_) | Self::Call(_) | Self::ContributionTooLong { .. } => {
                ErrorKind::Operands
            }
            Self::Routing { .. } => ErrorKind::Values,
            Self::Device(DeviceError::HeapMemory { .. } | DeviceError::HeapExtents { .. }) => {
                ErrorKind::System
            }
            Self::Device(_) | Self::Environment(_) | Self::Simulator(_) => ErrorKind::Setup,
            Self::Rendezvous(_) | Self::RanksMissing { .. } => ErrorKind::Rendezvous,
            Self::Mismatch { .. }
            | Self::Protocol { .. }
            | Self::RowOfTwoTokens(_)
            | Self::DifferentRows { .. }
            | Self::DifferentPlaces { .. }
            | Self::DifferentOffsets { .. } => ErrorKind::Mismatch,
            Self::RankLeft { .. }
            | Self::LeftWithoutCall { .. }
            | Self::RankLost { .. }
            | Self::RanksFailed { .. } => ErrorKind::RankLost,
            Self::Timeout { .. } | Self::StillBusy { .. } => ErrorKind::Timeout,
            Self::Network(_) | Self::Fabric(_) => ErrorKind::Network,
            Self::Build { .. } => ErrorKind::Build,
            Self::Overlap { .. } => ErrorKind::Overlap,
            Self::Aborted { .. } => ErrorKind::Aborted,
            Self::Cuda { .. } | Self::OpenFiles { .. } | Self::Os { .. } => ErrorKind::System,
            Self::Simulation { .. } => ErrorKind::Simulation,
        }
    }
}
