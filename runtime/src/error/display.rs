//! The formats of the parts of error texts.

use super::causes::with_causes;
use super::finding::Finding;
use super::operand::OperandFault;
use mkernel_spec::abi::Operand;
use std::fmt;
use std::time::Duration;

/// The number that `cuDriverGetVersion` returns, in the form `13.0`.
pub struct Version(pub i32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// `rank 3` or `ranks 3, 5`.
pub struct Ranks<'a>(pub &'a [u32]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 { "rank " } else { "ranks " })?;
        for (i, rank) in self.0.iter().enumerate() {
            write!(f, "{}{rank}", if i > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

/// `ranks 0, 1 | ranks 2, 3`
pub struct Hosts<'a>(pub &'a [Vec<u32>]);

impl fmt::Display for Hosts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, ranks) in self.0.iter().enumerate() {
            write!(f, "{}{}", if i > 0 { " | " } else { "" }, Ranks(ranks))?;
        }
        Ok(())
    }
}

/// `on 2 hosts `, or nothing if there is one host.
pub struct OnHosts(pub u32);

impl fmt::Display for OnHosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => Ok(()),
            hosts => write!(f, "on {hosts} hosts "),
        }
    }
}

/// `RANK is "3", WORLD_SIZE is not set`
pub struct Variables<'a>(pub &'a [(&'static str, Option<String>)]);

impl fmt::Display for Variables<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, value)) in self.0.iter().enumerate() {
            f.write_str(if i > 0 { ", " } else { "" })?;
            match value {
                Some(value) => write!(f, "{name} is {value:?}")?,
                None => write!(f, "{name} is not set")?,
            }
        }
        Ok(())
    }
}

/// `rank 3 has` or `ranks 3, 5 have`.
pub struct Have<'a>(pub &'a [u32]);

impl fmt::Display for Have<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}",
            Ranks(self.0),
            if self.0.len() == 1 { "has" } else { "have" }
        )
    }
}

/// The connections that rank 0 refused; empty without refused connections.
pub struct Refused<'a>(pub &'a [String]);

impl fmt::Display for Refused<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = |i| if i > 0 { "; " } else { ". Rank 0 refused " };
        let mut refused = self.0.iter().enumerate();
        refused.try_for_each(|(i, text)| write!(f, "{}{text}", start(i)))
    }
}

/// `rank 3 is` or `ranks 3, 5 are`.
pub struct Are<'a>(pub &'a [u32]);

impl fmt::Display for Are<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}",
            Ranks(self.0),
            if self.0.len() == 1 { "is" } else { "are" }
        )
    }
}

/// The way in which a rank was lost, other than by a failure of its network.
pub struct Loss(pub bool);

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            true => "its thread has panicked",
            false => "its process has ended or is stopped",
        })
    }
}

/// The end of a wait in a kernel, and the time that the wait took.
pub struct WaitEnd {
    pub waited: Duration,
    pub aborted_by: Option<u32>,
    pub lost: Option<u32>,
}

impl fmt::Display for WaitEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waited = self.waited;
        match self.aborted_by.or(self.lost).is_some() {
            true => write!(f, "wait aborted after {waited:?}"),
            false => write!(f, "timed out after {waited:?}"),
        }
    }
}

/// The reason for the end of a wait in a kernel, or advice if only the wait's own deadline passed.
pub struct WaitOutcome {
    pub rank: u32,
    pub peer: u32,
    pub aborted_by: Option<u32>,
    pub lost: Option<u32>,
}

/// Advice for ranks that are alive and make equal calls.
const OTHER_KERNELS: &str = ". If other kernels that wait for other ranks, such as those of NCCL, run at the same time, leave \
    SMs free for them with the option max_sms";

impl fmt::Display for WaitOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.aborted_by, self.lost) {
            (_, Some(rank)) => write!(f, "Rank {rank} was lost"),
            (Some(rank), _) => write!(f, "Rank {rank} failed first; its own error has the cause"),
            (None, None) if self.peer == self.rank => {
                write!(
                    f,
                    "Check that all ranks are alive and make the same calls{OTHER_KERNELS}"
                )
            }
            (None, None) => write!(
                f,
                "Check that rank {} is alive and that all ranks make the same calls{OTHER_KERNELS}",
                self.peer
            ),
        }
    }
}

/// A line for each rank that failed.
pub struct Failures<'a>(pub &'a [(u32, String)]);

impl fmt::Display for Failures<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (rank, message)) in self.0.iter().enumerate() {
            write!(f, "{}rank {rank}: {message}", if i > 0 { "\n" } else { "" })?;
        }
        Ok(())
    }
}

/// A line for each mistake of an operand.
pub struct Faults<'a>(pub &'a [(Operand, OperandFault)]);

impl fmt::Display for Faults<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (operand, fault)) in self.0.iter().enumerate() {
            write!(
                f,
                "{}operand {}: {fault}",
                if i > 0 { "\n" } else { "" },
                operand.name()
            )?;
        }
        Ok(())
    }
}

/// The number of findings, and a paragraph for each.
pub struct Findings<'a>(pub &'a [Finding]);

impl fmt::Display for Findings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.0.len() == 1 { "" } else { "s" };
        write!(f, "{} mistake{plural}:", self.0.len())?;
        self.0
            .iter()
            .try_for_each(|finding| write!(f, "\n{finding}"))
    }
}

/// The first failure of a communicator, if it is known.
pub struct Cause<'a>(pub Option<&'a (dyn std::error::Error + 'static)>);

impl fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(cause) => write!(
                f,
                "an earlier failure on this rank ({})",
                with_causes(cause)
            ),
            None => f.write_str("a rank has aborted it, and the error of that rank has the cause"),
        }
    }
}
