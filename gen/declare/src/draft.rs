//! [`Draft`]: keys and values as they are found, then a [`Declaration`].

use crate::assign::{assign, operator};
use crate::value::{Value, nearest};
use mkernel_spec::{Field, KernelConfig, KernelSpec, Op, Violation, Violations};
use std::collections::BTreeMap;

/// One mistake and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake<P> {
    /// Where.
    pub place: P,
    /// What is wrong.
    pub reason: String,
    /// What would work.
    pub help: String,
}

impl<P> Mistake<P> {
    /// The same mistake with its place said in another way.
    pub fn at<Q>(self, place: impl FnOnce(&P) -> Q) -> Mistake<Q> {
        Mistake {
            place: place(&self.place),
            reason: self.reason,
            help: self.help,
        }
    }
}

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

/// `key = value`
#[derive(Clone, Debug)]
struct Pair<P> {
    key: String,
    key_place: P,
    value: Value,
    value_place: P,
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
        let op = self.pairs().find(|pair| pair.key == Field::Op.name())?;
        operator(&op.value).ok()
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

fn field_of(key: &str) -> Option<Field> {
    Field::ALL.into_iter().find(|field| field.name() == key)
}

/// Pairs on their way into a configuration.
struct Reading<P> {
    /// The operator; none if that itself is a mistake.
    op: Option<Op>,
    config: KernelConfig,
    places: BTreeMap<Field, P>,
    mistakes: Vec<Mistake<P>>,
}

impl<P: Clone> Reading<P> {
    /// Stand-ins that are valid beside anything: fields that are missing or wrong cause no second message.
    fn new(op: Option<Op>, likely: Op) -> Self {
        Self {
            op,
            config: KernelConfig::new(8, likely.problem()),
            places: BTreeMap::new(),
            mistakes: Vec::new(),
        }
    }

    fn mistake(&mut self, place: P, reason: String, help: impl Into<String>) {
        self.mistakes.push(Mistake {
            place,
            reason,
            help: help.into(),
        });
    }

    fn take(&mut self, pair: Pair<P>) {
        let Pair {
            key,
            key_place,
            value,
            value_place,
        } = pair;
        let Some(field) = field_of(&key) else {
            let help = nearest(&key, &self.options());
            return self.mistake(key_place, format!("there is no option `{key}`"), help);
        };
        if self.places.contains_key(&field) {
            let reason = format!("`{key}` is given twice");
            return self.mistake(key_place, reason, "remove one of them");
        }
        self.places.insert(field, value_place.clone());
        if !self.config.op().takes(field) {
            // Of an operator that is not known, nobody can say.
            if let Some(op) = self.op {
                let owners = Op::ALL.into_iter().filter(|op| op.takes(field));
                let reason = format!("`{key}` is not an option of {op}");
                self.mistake(key_place, reason, owned_by(owners));
            }
        } else if let Err(help) = assign(&mut self.config, field, &value) {
            self.mistake(value_place, format!("{key}: {value} is not possible"), help);
        }
    }

    /// What may be written.
    fn options(&self) -> Vec<&'static str> {
        let takes = |field: &Field| self.op.is_none_or(|op| op.takes(*field));
        let fields = Field::ALL.into_iter().filter(takes);
        fields.map(Field::name).collect()
    }

    /// What every kernel must have: its operator, its ranks and its sizes.
    fn require(&mut self, whole: &P) {
        let dims = self.config.problem.dims();
        let sizes = dims.iter().map(|(field, _)| *field);
        let required: Vec<_> = [Field::Op, Field::World].into_iter().chain(sizes).collect();
        let missing: Vec<_> = required
            .iter()
            .filter(|field| !self.places.contains_key(field))
            .map(|field| format!("`{field}`"))
            .collect();
        if missing.is_empty() {
            return;
        }
        let verb = if missing.len() == 1 { "is" } else { "are" };
        let reason = format!("{} {verb} missing", missing.join(", "));
        let names: Vec<_> = required.into_iter().map(Field::name).collect();
        let help = format!(
            "a kernel has {}; a size that is not known yet is `dynamic`",
            enumerate(&names)
        );
        self.mistake(whole.clone(), reason, help);
    }

    fn check(self, whole: P) -> Declared<P> {
        let mut mistakes = self.mistakes;
        let places = Places {
            whole,
            fields: self.places,
        };
        match KernelSpec::validate(self.config) {
            Ok(spec) if mistakes.is_empty() => Ok(Declaration { spec, places }),
            Ok(_) => Err(mistakes),
            Err(found) => {
                mistakes.extend(places.mistakes(&found));
                Err(mistakes)
            }
        }
    }
}

/// `it is of ring_attention`
fn owned_by(owners: impl Iterator<Item = Op>) -> String {
    let names: Vec<_> = owners.map(Op::name).collect();
    format!("it is of {}", enumerate(&names))
}

/// `a, b and c`
fn enumerate(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

/// A kernel's declaration, or all that is wrong with it.
pub type Declared<P> = Result<Declaration<P>, Vec<Mistake<P>>>;

/// A checked spec that remembers where each of its fields was written.
#[derive(Clone, Debug)]
pub struct Declaration<P> {
    /// What was declared.
    pub spec: KernelSpec,
    places: Places<P>,
}

impl<P: Clone> Declaration<P> {
    /// Violations that a later step found, at their places.
    #[must_use]
    pub fn mistakes(&self, found: &Violations) -> Vec<Mistake<P>> {
        self.places.mistakes(found)
    }

    /// Says that `field` came from `place` instead.
    pub fn set_place(&mut self, field: Field, place: P) {
        self.places.fields.insert(field, place);
    }

    /// Where the kernel as a whole is declared.
    #[must_use]
    pub fn place(&self) -> &P {
        &self.places.whole
    }

    /// The same declaration with its places said in another way.
    pub fn at<Q>(self, place: impl Fn(&P) -> Q) -> Declaration<Q> {
        let Places { whole, fields } = self.places;
        let fields = fields.iter().map(|(field, p)| (*field, place(p))).collect();
        Declaration {
            spec: self.spec,
            places: Places {
                whole: place(&whole),
                fields,
            },
        }
    }
}

#[derive(Clone, Debug)]
struct Places<P> {
    whole: P,
    fields: BTreeMap<Field, P>,
}

impl<P: Clone> Places<P> {
    fn mistakes(&self, found: &Violations) -> Vec<Mistake<P>> {
        let place = |field| self.fields.get(&field).unwrap_or(&self.whole).clone();
        let mistake = |Violation {
                           field,
                           reason,
                           help,
                       }: &Violation| Mistake {
            place: place(*field),
            reason: format!("{field}: {reason}"),
            help: help.clone(),
        };
        found.iter().map(mistake).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mkernel_spec::{Dim, GemmConfig, GemmOp};

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
    fn owners_of_an_option_are_named() {
        let owners = Op::ALL.into_iter().filter(|op| *op != Op::AgGemm);
        assert_eq!(owned_by(owners), "it is of gemm_rs and gemm_ar");
    }

    #[test]
    fn violations_of_a_later_step_have_places() {
        let mut declaration = draft(&minimal()).finish("whole").expect("valid");
        let mut found = Violations::default();
        found.push(Field::N, "too wide", "halve it");
        found.push(Field::Stages, "too many", "use fewer");
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
