//! [`Draft`]: keys and values as they are found, then a [`Declaration`](crate::Declaration).

use crate::declaration::{Declared, Mistake};
use crate::reading::{Pair, Reading, field_of};
use crate::value::Value;
use mkernel_spec::{Field, Op};

/// Keys and values found so far; `P` says where. They mean nothing before all are there: the operator, wherever it is
/// written, decides which there can be.
#[derive(Clone, Debug)]
pub struct Draft<P> {
    found: Vec<Found<P>>,
}

/// In the order of discovery.
#[derive(Clone, Debug)]
enum Found<P> {
    Pair(Pair<P>),
    Mistake(Mistake<P>),
}

impl<P> Default for Draft<P> {
    fn default() -> Self {
        Self { found: Vec::new() }
    }
}

impl<P: Clone> Draft<P> {
    /// Takes `key = value`.
    pub fn set(&mut self, key: &str, key_place: P, value: Value, value_place: P) {
        self.found.push(Found::Pair(Pair {
            key: key.to_owned(),
            key_place,
            value,
            value_place,
        }));
    }

    /// Records a mistake that the door itself has found.
    pub fn mistake(&mut self, place: P, reason: impl Into<String>, help: impl Into<String>) {
        self.found.push(Found::Mistake(Mistake {
            place,
            reason: reason.into(),
            help: help.into(),
        }));
    }

    /// Checks the whole; `whole` is the place of what is not there.
    ///
    /// # Errors
    /// Every mistake, at once, in the order of their discovery.
    pub fn finish(self, whole: P) -> Declared<P> {
        let op = self.op();
        let mut reading = Reading::new(op, op.unwrap_or_else(|| self.likely_op()));
        for found in self.found {
            match found {
                Found::Pair(pair) => reading.take(pair),
                Found::Mistake(mistake) => reading.mistakes.push(mistake),
            }
        }
        reading.require(&whole);
        reading.check(whole)
    }

    fn pairs(&self) -> impl Iterator<Item = &Pair<P>> {
        self.found.iter().filter_map(|found| match found {
            Found::Pair(pair) => Some(pair),
            Found::Mistake(_) => None,
        })
    }

    /// The operator, if one is given that there is.
    fn op(&self) -> Option<Op> {
        let op = self.pairs().find(|pair| pair.key == Field::OP.name())?;
        match &op.value {
            Value::Word(name) => Op::from_name(name),
            _ => None,
        }
    }

    /// The first operator that takes as many of the options as any does.
    fn likely_op(&self) -> Op {
        let others = |op: &Op| {
            let fields = self.pairs().filter_map(|pair| field_of(&pair.key));
            fields.filter(|field| !op.takes(*field)).count()
        };
        Op::ALL.into_iter().min_by_key(others).unwrap_or(Op::AgGemm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mkernel_spec::{Diagnostics, Dim, GemmConfig, GemmOp, KernelConfig};

    fn draft(pairs: &[(&'static str, Value)]) -> Draft<&'static str> {
        let mut draft = Draft::default();
        for &(key, ref value) in pairs {
            draft.set(key, key, value.clone(), key);
        }
        draft
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

    fn reasons(draft: Draft<&'static str>) -> Vec<(&'static str, String)> {
        let mistakes = draft.finish("whole").expect_err("mistakes");
        mistakes
            .into_iter()
            .map(|m| (m.place, format!("{}; {}", m.reason, m.help)))
            .collect()
    }

    #[test]
    fn a_minimal_kernel() {
        let spec = draft(&minimal()).finish("whole").expect("valid").spec;
        let expected = GemmConfig {
            n: Dim::Static(1024),
            k: Dim::Static(8192),
            ..GemmConfig::new(GemmOp::AgGemm)
        };
        assert_eq!(*spec.config(), KernelConfig::new(8, expected));
    }

    #[test]
    fn everything_wrong_is_said_at_once() {
        let mut pairs = minimal();
        pairs.extend([
            ("tile_q", Value::Integer(128)),
            ("m", Value::Integer(7)),
            ("stages", Value::Word("four".into())),
            ("tile_m", Value::Integer(100)),
            ("transfer", Value::Word("copy_engin".into())),
            ("comm_ctas", Value::Integer(-1)),
        ]);
        let found = reasons(draft(&pairs));
        let places: Vec<_> = found.iter().map(|(place, _)| *place).collect();
        assert_eq!(
            places,
            ["tile_q", "m", "stages", "transfer", "comm_ctas", "tile_m"]
        );
        assert_eq!(
            found[0].1,
            "there is no option `tile_q`; did you mean `tile_m` or `tile_n`?"
        );
        assert_eq!(found[1].1, "`m` is given twice; remove one of them");
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
    fn what_is_missing_is_said_once_for_the_whole() {
        let found = reasons(draft(&minimal()[..3]));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, "whole");
        assert!(
            found[0].1.starts_with("`n`, `k` are missing"),
            "{}",
            found[0].1
        );
    }

    #[test]
    fn an_unknown_operator_hides_nothing_else() {
        let mut pairs = minimal();
        pairs[0].1 = Value::Word("ag_gem".into());
        pairs.extend([("shots", Value::Integer(-1)), ("n", Value::Integer(8))]);
        let found = reasons(draft(&pairs));
        let places: Vec<_> = found.iter().map(|(place, _)| *place).collect();
        assert_eq!(places, ["op", "shots", "n"]);
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
        let spec = draft(&pairs).finish("whole").expect("valid").spec;
        assert_eq!(spec.op(), Op::GemmAr);
        assert_eq!(spec.shape(), None);
    }

    #[test]
    fn violations_of_a_later_step_have_places() {
        let mut declaration = draft(&minimal()).finish("whole").expect("valid");
        let mut found = Diagnostics::default();
        found.push(Field::N, "too wide", "halve it");
        found.push(Field::STAGES, "too many", "use fewer");
        found.push(Field::M, "too long", "halve it");
        declaration.set_place(Field::M, "--m");
        let places: Vec<_> = declaration
            .mistakes(&found)
            .into_iter()
            .map(|m| m.place)
            .collect();
        assert_eq!(places, ["n", "whole", "--m"]);
    }
}
