//! [`OperatorId`]: the number and name of an operator in errors, and [`OperatorCalls`]: the calls of an operator that ranks
//! have begun.

use super::display::Ranks;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// An operator of a communicator, as in `operator 1 (ag_gemm UpProjection)`.
///
/// Operators are numbered from 1 as they are created, and equal operators have one number. The name is the name of the declared
/// type, or the option `name`, or else the id of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorId(Arc<(u32, String)>);

impl OperatorId {
    pub(crate) fn new(number: u32, name: impl Into<String>) -> Self {
        Self(Arc::new((number, name.into())))
    }

    /// Returns whether this value has clones.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Returns the number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.0.0
    }

    /// Returns the name. It is empty if the operator does not exist any more.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.1
    }
}

impl fmt::Display for OperatorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "operator {}", self.number())?;
        match self.name() {
            "" => Ok(()),
            name => write!(f, " ({name})"),
        }
    }
}

/// A call that was running when another call began: its operator and its number. The operator's number is 0 if the running call
/// is unknown.
pub struct RunningCall<'a>(pub &'a OperatorId, pub u32);

impl fmt::Display for RunningCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.number() {
            0 => f.write_str("another call"),
            _ => write!(f, "call {} of {}", self.1, self.0),
        }
    }
}

/// The number of calls of an operator that each rank has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OperatorCalls {
    /// The operator.
    pub operator: OperatorId,
    /// Pairs of a rank and the number of calls that it has begun, by rank. Ranks whose calls this process cannot see are
    /// absent.
    pub begun: Vec<(u32, u32)>,
}

impl OperatorCalls {
    /// Returns whether ranks have begun different numbers of calls.
    pub(crate) fn differ(&self) -> bool {
        let mut counts = self.begun.iter().map(|(_, calls)| calls);
        let first = counts.next();
        counts.any(|calls| Some(calls) != first)
    }

    /// Returns the number of calls that `rank` has begun.
    pub(crate) fn of(&self, rank: u32) -> Option<u32> {
        let found = self.begun.iter().find(|(other, _)| *other == rank);
        found.map(|(_, calls)| *calls)
    }
}

/// `Operator 1 (ag_gemm Up): call 2 on ranks 0, 2; none on rank 1`.
impl fmt::Display for OperatorCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranks_by_calls: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (rank, calls) in &self.begun {
            ranks_by_calls.entry(*calls).or_default().push(*rank);
        }
        let mut groups: Vec<(u32, Vec<u32>)> = ranks_by_calls.into_iter().collect();
        groups.sort_by_key(|(_, ranks)| ranks[0]);
        write!(f, "O{}: ", &self.operator.to_string()[1..])?;
        for (i, (calls, ranks)) in groups.iter().enumerate() {
            f.write_str(if i > 0 { "; " } else { "" })?;
            match calls {
                0 => write!(f, "none on {}", Ranks(ranks))?,
                calls => write!(f, "call {calls} on {}", Ranks(ranks))?,
            }
        }
        Ok(())
    }
}

/// A sentence, followed by a space, about operators with different numbers of calls on different ranks. Empty if there are no
/// such operators.
pub(super) struct DifferentCalls<'a>(pub &'a [OperatorCalls]);

impl fmt::Display for DifferentCalls<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        f.write_str("The ranks have begun different calls. ")?;
        self.0.iter().try_for_each(|calls| write!(f, "{calls}. "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_ranks_are_grouped() {
        let calls = |number, name: &str, begun: &[u32]| OperatorCalls {
            operator: OperatorId::new(number, name),
            begun: (0..).zip(begun.iter().copied()).collect(),
        };
        let all = [
            calls(1, "ag_gemm Up", &[2, 0, 2, 1]),
            calls(12, "", &[0, 1, 1, 1]),
        ];
        assert!(all.iter().all(OperatorCalls::differ));
        assert!(!calls(3, "same", &[5, 5]).differ());
        assert_eq!(
            DifferentCalls(&all).to_string(),
            "The ranks have begun different calls. Operator 1 (ag_gemm Up): call 2 on ranks 0, 2; none on rank 1; call 1 on rank 3. Operator 12: none on rank 0; call 1 on ranks 1, 2, 3. "
        );
        assert_eq!(DifferentCalls(&[]).to_string(), "");
        assert_eq!((all[0].of(3), all[0].of(4)), (Some(1), None));
    }
}
