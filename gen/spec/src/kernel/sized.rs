//! [`SizedSpec`]: a checked configuration whose sizes are all known.

use super::config::KernelConfig;
use super::problem::{Shape, SizedProblem};
use super::sizes::Sizes;
use super::spec::KernelSpec;
use crate::diagnostic::Diagnostics;
use serde::Serialize;
use std::ops::Deref;

/// A [`KernelSpec`] whose sizes are all known, as planners take it. If each call gives the rows, the largest number of rows is
/// known.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct SizedSpec {
    spec: KernelSpec,
    #[serde(skip)]
    problem: SizedProblem,
}

impl SizedSpec {
    /// Checks a configuration without dynamic dimensions.
    ///
    /// # Errors
    /// All mistakes in the configuration at once, or else all dimensions whose sizes are not known.
    pub fn validate(config: KernelConfig) -> Result<Self, Diagnostics> {
        KernelSpec::validate(config)?.sized()
    }

    /// Checks a configuration whose dynamic dimensions get the sizes of `sizes`, such as a [`Shape`].
    ///
    /// # Errors
    /// All mistakes in the configuration at once, and all sizes that are not given or that contradict the configuration.
    pub fn for_sizes(config: KernelConfig, sizes: impl Into<Sizes>) -> Result<Self, Diagnostics> {
        KernelSpec::for_sizes(config, &sizes.into())?.sized()
    }

    /// The spec without its name.
    #[must_use]
    pub fn without_name(mut self) -> Self {
        self.spec = self.spec.without_name();
        self
    }

    /// The sizes of all dimensions.
    #[must_use]
    pub const fn shape(&self) -> Shape {
        self.problem.shape()
    }

    /// The problem, with its sizes.
    pub(super) const fn sized_problem(&self) -> &SizedProblem {
        &self.problem
    }
}

impl Deref for SizedSpec {
    type Target = KernelSpec;

    fn deref(&self) -> &KernelSpec {
        &self.spec
    }
}

impl KernelSpec {
    /// Converts the spec to a spec with known sizes.
    ///
    /// # Errors
    /// All dimensions whose sizes are not known.
    pub fn sized(self) -> Result<SizedSpec, Diagnostics> {
        if let Some(problem) = self.problem().sized() {
            let spec = self;
            return Ok(SizedSpec { spec, problem });
        }
        let mut found = Diagnostics::default();
        for field in self.unknown_dims() {
            found.push(
                field,
                "a dynamic dimension has no plan before its size is known",
                format!("give its size, as in --{field} 4096"),
            );
        }
        Err(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Field;
    use crate::options::{Dim, Op};

    #[test]
    fn every_unknown_size_is_said_at_once() {
        let mut problem = Op::AgGemm.problem();
        for (field, dim) in problem.dims_mut() {
            if field == Field::N {
                *dim = Dim::Static(64);
            }
        }
        let found = SizedSpec::validate(KernelConfig::new(2, problem)).expect_err("two sizes");
        let fields: Vec<_> = found.iter().map(|mistake| mistake.field).collect();
        assert_eq!(fields, [Field::M, Field::K], "{found}");
    }
}
