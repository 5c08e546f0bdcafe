//! [`OperatorNames`]: the operators of a communicator by number, for errors.

use crate::error::OperatorId;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The operators of a communicator by number. Operators whose names have no other users are removed.
#[derive(Default)]
pub(crate) struct OperatorNames(Mutex<State>);

#[derive(Default)]
struct State {
    /// The number of operators that were created so far.
    created: u32,
    known: Vec<OperatorId>,
}

impl OperatorNames {
    /// Names a new operator. The operator gets the next number, counted from 1. All ranks create operators in one order.
    pub fn add(&self, name: &str) -> OperatorId {
        let mut state = self.lock();
        state.created += 1;
        let operator = OperatorId::new(state.created, name);
        state.known.retain(OperatorId::is_shared);
        state.known.push(operator.clone());
        operator
    }

    /// Returns the operator with this number, without a name if the operator does not exist any more.
    pub fn find(&self, number: u32) -> OperatorId {
        let state = self.lock();
        let mut known = state.known.iter();
        let found = known.find(|operator| operator.number() == number);
        found
            .cloned()
            .unwrap_or_else(|| OperatorId::new(number, ""))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every statement leaves the guarded value consistent, so a poisoned lock can still be used.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_have_names_as_long_as_they_exist() {
        let names = OperatorNames::default();
        let (first, second) = (names.add("one"), names.add("two"));
        assert_eq!((first.number(), second.number()), (1, 2));
        drop(first);
        assert_eq!(names.add("three").to_string(), "operator 3 (three)");
        assert_eq!(names.find(1).to_string(), "operator 1");
        assert_eq!(names.find(2), second);
    }
}
