//! [`KernelSpec`]: a checked configuration.

use crate::abi::MAX_RANKS;
use crate::config::{Field, KernelConfig, Op, Problem, Shape};
use crate::diagnostic::Diagnostics;
use crate::kernel::sizes::Sizes;
use crate::ops::{attention, collective, combine, dispatch, gemm};
use crate::topology::Topology;
use serde::Serialize;

/// The numbers of ranks that kernels of one node support.
pub const WORLDS: [u32; 4] = [1, 2, 4, 8];

/// The largest number of nodes. A rank's peers are numbered in 16 bits, and larger fabrics are not supported.
pub const MAX_NODES: u32 = 1024;

/// A checked configuration. Dimensions may still be dynamic.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct KernelSpec {
    config: KernelConfig,
}

impl KernelSpec {
    /// Checks a configuration.
    ///
    /// # Errors
    /// All mistakes in the configuration at once.
    pub fn validate(config: KernelConfig) -> Result<Self, Diagnostics> {
        Self::checked(config, Diagnostics::default())
    }

    /// Checks a configuration whose dynamic dimensions get the sizes of `sizes`. See [`SizedSpec::for_sizes`](super::SizedSpec::for_sizes).
    pub(super) fn for_sizes(mut config: KernelConfig, sizes: &Sizes) -> Result<Self, Diagnostics> {
        let op = config.op();
        let mut found = Diagnostics::default();
        let at_run_time = config.problem.run_time_dim();
        let dims = config.problem.dims();
        for name in sizes.names() {
            found.require(
                dims.iter().any(|(field, _)| *field == name),
                name,
                || format!("{op} has no such dimension"),
                "leave it out",
            );
        }
        for (field, dim) in config.problem.dims_mut() {
            match (sizes.size(field), dim.fixed()) {
                (None, Some(_)) if matches!(sizes, Sizes::Named(_)) => {}
                (None, None) if matches!(sizes, Sizes::Named(_)) => found.push(
                    field,
                    "the configuration leaves it dynamic, and it was not given",
                    "give it to prepare",
                ),
                (None, _) => found.push(
                    field,
                    "the shape that was given does not have it",
                    format!("pass the shape of {op}"),
                ),
                (Some(size), Some(fixed)) if size != fixed => found.push(
                    field,
                    format!("{size} was given, but the kernel is declared for {fixed}"),
                    "pass operands of the declared size, or declare the dimension \"dynamic\"",
                ),
                (Some(size), _) => *dim = dim.prepared(size, Some(field) == at_run_time),
            }
        }
        Self::checked(config, found)
    }

    /// The spec without its name.
    pub(super) fn without_name(mut self) -> Self {
        self.config.name = None;
        self
    }

    /// Checks a configuration. `found` holds the mistakes that are already known.
    fn checked(config: KernelConfig, mut found: Diagnostics) -> Result<Self, Diagnostics> {
        if let Some(name) = &config.name {
            found.require(
                is_identifier(name),
                Field::NAME,
                || format!("\"{name}\" is not an identifier of at most 64 characters"),
                "use letters, digits and '_', not a digit first",
            );
        }
        check_topology(&config, &mut found);
        config.check_limits(&mut found);
        let at_run_time = config.problem.run_time_dim();
        for (field, dim) in config.problem.dims() {
            found.require(
                !dim.is_given_at_run_time() || Some(field) == at_run_time,
                field,
                || format!("{} does not take it at each call", config.op()),
                "write the size, or dynamic to give it when the kernel is prepared",
            );
        }
        let KernelConfig { world, nodes, .. } = config;
        match &config.problem {
            Problem::Gemm(of) => gemm::check::check(of, world, nodes, &mut found),
            Problem::Attention(of) => attention::check::check(of, nodes, &mut found),
            Problem::Dispatch(of) => dispatch::check::check(of, world, nodes, &mut found),
            Problem::Combine(of) => combine::check::check(of, world, &mut found),
            Problem::Collective(of) => collective::check::check(of, world, nodes, &mut found),
        }
        found.into_result(Self { config })
    }

    /// The configuration that the spec was made from.
    #[must_use]
    pub const fn config(&self) -> &KernelConfig {
        &self.config
    }

    /// The problem.
    #[must_use]
    pub const fn problem(&self) -> &Problem {
        &self.config.problem
    }

    /// The operator.
    #[must_use]
    pub fn op(&self) -> Op {
        self.config.op()
    }

    /// The number of all ranks.
    #[must_use]
    pub const fn world(&self) -> u32 {
        self.config.world
    }

    /// The distribution of the ranks over nodes.
    #[must_use]
    pub const fn topology(&self) -> Topology {
        let nodes = self.config.nodes;
        Topology {
            nodes,
            local_world: self.config.world / nodes,
        }
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
}

/// Checks ranks and nodes.
fn check_topology(config: &KernelConfig, found: &mut Diagnostics) {
    let KernelConfig { world, nodes, .. } = *config;
    if nodes == 1 {
        found.require(
            WORLDS.contains(&world),
            Field::WORLD,
            || format!("{world} ranks per node is not supported"),
            "use 1, 2, 4 or 8",
        );
        return;
    }
    if !(1..=MAX_NODES).contains(&nodes) {
        let reason = format!("{nodes} is not in 1..={MAX_NODES}");
        found.push(Field::NODES, reason, "use as many nodes as there are hosts");
        return;
    }
    let most = MAX_RANKS as u32;
    found.require(
        world.is_multiple_of(nodes) && (1..=most).contains(&(world / nodes)),
        Field::WORLD,
        || format!("{world} ranks cannot be {nodes} nodes of 1 to {most} ranks each"),
        format!("use {nodes} times 1 to {most}"),
    );
}

fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
        && name.len() <= 64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{CollectiveConfig, CollectiveOp, CollectiveShape, Dim};
    use crate::kernel::SizedSpec;

    /// A kernel that is declared for up to some number of rows also takes fewer rows.
    #[test]
    fn a_bound_stays_a_bound() {
        for m in [Dim::Dynamic, Dim::UpTo(8192)] {
            let config = CollectiveConfig {
                m,
                n: Dim::Dynamic,
                ..CollectiveConfig::new(CollectiveOp::AllReduce)
            };
            let shape = CollectiveShape { m: 8192, n: 64 };
            let known = SizedSpec::for_sizes(KernelConfig::new(2, config), shape).expect("valid");
            let dims: Vec<Dim> = known.problem().dims().into_iter().map(|d| d.1).collect();
            assert_eq!(dims, [Dim::UpTo(8192), Dim::Static(64)], "{m:?}");
        }
    }

    #[test]
    fn sizes_that_the_configuration_fixes_need_not_be_given() {
        let config = CollectiveConfig {
            n: Dim::Static(64),
            ..CollectiveConfig::new(CollectiveOp::AllReduce)
        };
        let config = KernelConfig::new(2, config);
        let named = |sizes: Sizes| SizedSpec::for_sizes(config.clone(), sizes);
        let whole = SizedSpec::for_sizes(config.clone(), CollectiveShape { m: 8, n: 64 });
        assert_eq!(named([(Field::M, 8)].into()), whole);
        assert_eq!(named([(Field::M, 8), (Field::N, 64)].into()), whole);

        let fields = |sizes: Sizes| -> Vec<Field> {
            let found = named(sizes).expect_err("a mistake");
            found.iter().map(|mistake| mistake.field).collect()
        };
        assert_eq!(fields([].into()), [Field::M], "nobody gives it");
        let wrong = [(Field::M, 8), (Field::N, 128), (Field::K, 64)];
        assert_eq!(fields(wrong.into()), [Field::K, Field::N]);
    }

    #[test]
    fn mistakes_and_wrong_sizes_come_at_once() {
        let config = CollectiveConfig {
            n: Dim::Static(64),
            ..CollectiveConfig::new(CollectiveOp::AllReduce)
        };
        let shape = CollectiveShape { m: 8, n: 128 };
        let found = SizedSpec::for_sizes(KernelConfig::new(3, config), shape);
        let found = found.expect_err("two mistakes");
        let fields: Vec<_> = found.iter().map(|mistake| mistake.field).collect();
        assert_eq!(fields, [Field::N, Field::WORLD], "{found}");
    }
}
