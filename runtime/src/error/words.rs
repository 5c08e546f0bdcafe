//! Parts of messages.

use super::{Error, OperandFault, with_causes};
use crate::simulation::Finding;
use mkernel_spec::abi::Operand;
use std::fmt;
use std::sync::Arc;

/// `cuDriverGetVersion`'s number for people.
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

/// `on 2 hosts `, where it is not one.
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
pub struct Settings<'a>(pub &'a [(&'static str, Option<String>)]);

impl fmt::Display for Settings<'_> {
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

pub struct Refused<'a>(pub &'a [String]);

impl fmt::Display for Refused<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = |i| if i > 0 { "; " } else { "; rank 0 refused " };
        let mut refused = self.0.iter().enumerate();
        refused.try_for_each(|(i, text)| write!(f, "{}{text}", start(i)))
    }
}

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

pub struct From(pub u32);

impl fmt::Display for From {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from rank {}", self.0)
    }
}

pub struct GaveUp(pub Option<u32>, pub Option<u32>);

impl fmt::Display for GaveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.1) {
            (_, Some(rank)) => write!(f, ", until rank {rank} was lost"),
            (Some(rank), _) => write!(f, ", until rank {rank} gave up"),
            (None, None) => f.write_str("; does every rank live, and make the same calls?"),
        }
    }
}

pub struct Failures<'a>(pub &'a [(u32, String)]);

impl fmt::Display for Failures<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (rank, message)) in self.0.iter().enumerate() {
            write!(f, "{}rank {rank}: {message}", if i > 0 { "\n" } else { "" })?;
        }
        Ok(())
    }
}

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

pub struct Since<'a>(pub &'a Option<Arc<Error>>);

impl fmt::Display for Since<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(cause) => write!(
                f,
                "an earlier failure on this rank ({})",
                with_causes(cause)
            ),
            None => f.write_str("a rank gave up (its own error says why)"),
        }
    }
}
