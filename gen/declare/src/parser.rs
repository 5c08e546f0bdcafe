//! [`Parser`]: collects the keys and values of a kernel and turns them into a [`Declaration`](crate::Declaration).

use crate::binder::{Binder, Pair, field_of};
use crate::declaration::{Declared, SpannedDiagnostic};
use mkernel_spec::{Field, Op, Value};

/// The keys and values of a kernel that were found so far. `S` is the type of their spans.
///
/// Pairs are interpreted in [`Parser::finish`], since the operator determines which options are valid and may be the
/// last pair.
#[derive(Clone, Debug)]
pub struct Parser<S> {
    found: Vec<Found<S>>,
    /// Whether the number of ranks may be left to the communicator.
    world_is_optional: bool,
}

/// A pair, or an error that was found instead of one.
#[derive(Clone, Debug)]
enum Found<S> {
    Pair(Pair<S>),
    Diagnostic(SpannedDiagnostic<S>),
}

impl<S> Default for Parser<S> {
    fn default() -> Self {
        Self {
            found: Vec::new(),
            world_is_optional: false,
        }
    }
}

impl<S: Clone> Parser<S> {
    /// Allows a kernel without a number of ranks. The kernel is checked for all numbers of ranks that a node can have.
    #[must_use]
    pub fn with_optional_world(mut self) -> Self {
        self.world_is_optional = true;
        self
    }

    /// Adds the pair `key = value`.
    pub fn set(&mut self, key: &str, key_span: S, value: Value, value_span: S) {
        self.found.push(Found::Pair(Pair {
            key: key.to_owned(),
            key_span,
            value,
            value_span,
        }));
    }

    /// Adds an error that the caller has found.
    pub fn error(&mut self, span: S, reason: impl Into<String>, help: impl Into<String>) {
        self.found.push(Found::Diagnostic(SpannedDiagnostic {
            span,
            reason: reason.into(),
            help: help.into(),
        }));
    }

    /// Checks the kernel. Errors about missing options have the span `whole`.
    ///
    /// # Errors
    /// All errors, in the order in which they were found.
    pub fn finish(self, whole: S) -> Declared<S> {
        let op = self.op();
        let likely = op.unwrap_or_else(|| self.likely_op());
        let mut binder = Binder::new(op, likely, self.world_is_optional);
        for found in self.found {
            match found {
                Found::Pair(pair) => binder.bind(pair),
                Found::Diagnostic(diagnostic) => binder.diagnostics.push(diagnostic),
            }
        }
        binder.require(&whole);
        binder.check(whole)
    }

    fn pairs(&self) -> impl Iterator<Item = &Pair<S>> {
        self.found.iter().filter_map(|found| match found {
            Found::Pair(pair) => Some(pair),
            Found::Diagnostic(_) => None,
        })
    }

    /// The operator, if a known one is given.
    fn op(&self) -> Option<Op> {
        let op = self.pairs().find(|pair| pair.key == Field::OP.name())?;
        match &op.value {
            Value::Word(name) => Op::from_name(name),
            _ => None,
        }
    }

    /// The operator that lacks the fewest given options, or the first of several such operators.
    fn likely_op(&self) -> Op {
        let unknown_options = |op: &Op| {
            let fields = self.pairs().filter_map(|pair| field_of(&pair.key));
            fields.filter(|field| !op.takes(*field)).count()
        };
        Op::ALL
            .into_iter()
            .min_by_key(unknown_options)
            .unwrap_or(Op::AgGemm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mkernel_spec::{Diagnostics, Dim, GemmConfig, GemmOp, KernelConfig};

    fn parser(pairs: &[(&'static str, Value)]) -> Parser<&'static str> {
        let mut parser = Parser::default();
        for &(key, ref value) in pairs {
            parser.set(key, key, value.clone(), key);
        }
        parser
    }

    fn minimal() -> Vec<(&'static str, Value)> {
        vec![
            ("op", Value::Word("ag_gemm".into())),
            ("world", Value::Integer(8)),
            ("m", Value::Word("dynamic".into())),
            ("n", Value::Integer(1024)),
            ("k", Value::Integer(8192)),
        ]
    }

    fn reasons(parser: Parser<&'static str>) -> Vec<(&'static str, String)> {
        let diagnostics = parser.finish("whole").expect_err("diagnostics");
        diagnostics
            .into_iter()
            .map(|m| (m.span, format!("{}; {}", m.reason, m.help)))
            .collect()
    }

    #[test]
    fn a_minimal_kernel() {
        let spec = parser(&minimal()).finish("whole").expect("valid").spec;
        let expected = GemmConfig {
            n: Dim::Static(1024),
            k: Dim::Static(8192),
            ..GemmConfig::new(GemmOp::AgGemm)
        };
        assert_eq!(*spec.config(), KernelConfig::new(8, expected));
    }

    #[test]
    fn all_errors_are_reported_at_once() {
        let mut pairs = minimal();
        pairs.extend([
            ("tile_q", Value::Integer(128)),
            ("m", Value::Integer(7)),
            ("stages", Value::Word("four".into())),
            ("tile_m", Value::Integer(100)),
            ("transfer", Value::Word("copy_engin".into())),
            ("comm_ctas", Value::Integer(-1)),
        ]);
        let found = reasons(parser(&pairs));
        let spans: Vec<_> = found.iter().map(|(span, _)| *span).collect();
        assert_eq!(
            spans,
            ["tile_q", "m", "stages", "transfer", "comm_ctas", "tile_m"]
        );
        assert_eq!(
            found[0].1,
            "there is no option `tile_q`; did you mean `tile_m` or `tile_n`?"
        );
        assert_eq!(found[1].1, "`m` is given twice; remove one value");
        assert_eq!(
            found[2].1,
            "stages: `four` is not possible; write an integer, as a plain number"
        );
        assert_eq!(
            found[3].1,
            "transfer: `copy_engin` is not possible; did you mean `copy_engine`?"
        );
        assert_eq!(
            found[4].1,
            "comm_ctas: -1 is not possible; write an integer from 0 to 4294967295"
        );
    }

    #[test]
    fn missing_options_are_one_error_of_the_whole() {
        let found = reasons(parser(&minimal()[..3]));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, "whole");
        assert!(
            found[0].1.starts_with("`n`, `k` are missing"),
            "{}",
            found[0].1
        );
    }

    #[test]
    fn an_unknown_operator_hides_no_other_error() {
        let mut pairs = minimal();
        pairs[0].1 = Value::Word("ag_gem".into());
        pairs.extend([("shots", Value::Integer(-1)), ("n", Value::Integer(8))]);
        let found = reasons(parser(&pairs));
        let spans: Vec<_> = found.iter().map(|(span, _)| *span).collect();
        assert_eq!(spans, ["op", "shots", "n"]);
        assert_eq!(
            found[0].1,
            "op: `ag_gem` is not possible; did you mean `ag_gemm`?"
        );
    }

    #[test]
    fn the_operator_may_come_last() {
        let mut pairs = minimal();
        pairs[0].1 = Value::Word("gemm_ar".into());
        pairs.push(("shots", Value::Integer(1)));
        pairs.rotate_left(1);
        let spec = parser(&pairs).finish("whole").expect("valid").spec;
        assert_eq!(spec.op(), Op::GemmAr);
        assert_eq!(spec.shape(), None);
    }

    #[test]
    fn violations_of_a_later_step_have_spans() {
        let mut declaration = parser(&minimal()).finish("whole").expect("valid");
        let mut found = Diagnostics::default();
        found.push(Field::N, "too wide", "halve it");
        found.push(Field::STAGES, "too many", "use fewer");
        found.push(Field::M, "too long", "halve it");
        declaration.set_span(Field::M, "--m");
        let spans: Vec<_> = declaration
            .diagnostics(&found)
            .into_iter()
            .map(|m| m.span)
            .collect();
        assert_eq!(spans, ["n", "whole", "--m"]);
    }
}
