//! [`KernelSpec`]: a configuration that was checked. Its only door is [`KernelSpec::validate`].

mod attention;
mod experts;
mod gemm;

use crate::config::{Dim, KernelConfig, Op, Problem, Shape};
use crate::violation::{Field, Violations};
use serde::Serialize;

pub use gemm::{DIM_STEP, MAX_DIM, MAX_ELEMS};

/// Rank counts of one node that kernels support.
pub const WORLDS: [u32; 4] = [1, 2, 4, 8];

/// What is computed, checked. Dimensions may still be dynamic.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct KernelSpec {
    config: KernelConfig,
}

impl KernelSpec {
    /// Checks a configuration.
    ///
    /// # Errors
    /// Every mistake in it, at once.
    pub fn validate(config: KernelConfig) -> Result<Self, Violations> {
        let mut found = Violations::default();
        if let Some(name) = &config.name {
            found.require(
                is_identifier(name),
                Field::Name,
                || format!("\"{name}\" is not an identifier of at most 64 characters"),
                "use letters, digits and '_', not a digit first",
            );
        }
        found.require(
            WORLDS.contains(&config.world),
            Field::World,
            || format!("{} ranks per node is not supported", config.world),
            "use 1, 2, 4 or 8",
        );
        let world = config.world;
        match &config.problem {
            Problem::Gemm(gemm) => gemm::check(gemm, world, &mut found),
            Problem::Attention(attention) => attention::check(attention, &mut found),
            Problem::Dispatch(config) => experts::check_dispatch(config, world, &mut found),
            Problem::Combine(config) => experts::check_combine(config, world, &mut found),
        }
        found.into_result(Self { config })
    }

    /// The configuration it was made from.
    #[must_use]
    pub const fn config(&self) -> &KernelConfig {
        &self.config
    }

    /// What is computed.
    #[must_use]
    pub const fn problem(&self) -> &Problem {
        &self.config.problem
    }

    /// The operator.
    #[must_use]
    pub const fn op(&self) -> Op {
        self.config.op()
    }

    /// Ranks per node.
    #[must_use]
    pub const fn world(&self) -> u32 {
        self.config.world
    }

    /// The shape, if no dimension is dynamic.
    #[must_use]
    pub fn shape(&self) -> Option<Shape> {
        self.problem().shape()
    }

    /// The dimensions whose sizes are not known.
    pub fn unknown_dims(&self) -> impl Iterator<Item = Field> {
        let dims = self.problem().dims().into_iter();
        dims.filter_map(|(field, dim)| dim.fixed().is_none().then_some(field))
    }

    /// The same kernel with every dimension known.
    ///
    /// # Errors
    /// A size that is not given, that the spec fixes otherwise, or that no kernel takes.
    pub fn specialise(&self, shape: impl Into<Shape>) -> Result<Self, Violations> {
        let (op, shape) = (self.op(), shape.into());
        let mut config = self.config.clone();
        let mut found = Violations::default();
        for (field, dim) in config.problem.dims_mut() {
            let Some(size) = shape.size(field) else {
                found.push(
                    field,
                    "the shape that was given does not have it",
                    format!("pass the shape of {op}"),
                );
                continue;
            };
            if let Some(fixed) = dim.fixed() {
                found.require(
                    fixed == size,
                    field,
                    || format!("{size} was given, but the kernel is declared for {fixed}"),
                    "pass operands of the declared size, or declare the dimension \"dynamic\"",
                );
            }
            *dim = Dim::Static(size);
        }
        found.into_result(())?;
        Self::validate(config)
    }
}

fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
        && name.len() <= 64
}
