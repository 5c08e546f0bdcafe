//! [`Reading`]: pairs of an operator's options into its configuration.

use crate::declaration::{Declaration, Declared, Mistake, Places};
use crate::value::{Value, nearest};
use mkernel_spec::{Field, KernelConfig, KernelSpec, Op, Options};
use std::collections::BTreeMap;

/// `key = value`
#[derive(Clone, Debug)]
pub(crate) struct Pair<P> {
    pub key: String,
    pub key_place: P,
    pub value: Value,
    pub value_place: P,
}

pub(crate) fn field_of(key: &str) -> Option<Field> {
    Field::all().into_iter().find(|field| field.name() == key)
}

/// Pairs on their way into a configuration.
pub(crate) struct Reading<P> {
    /// The operator; none if that itself is a mistake.
    op: Option<Op>,
    config: KernelConfig,
    places: BTreeMap<Field, P>,
    pub mistakes: Vec<Mistake<P>>,
}

impl<P: Clone> Reading<P> {
    /// Stand-ins that are valid beside anything: fields that are missing or wrong cause no second message.
    pub fn new(op: Option<Op>, likely: Op) -> Self {
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

    pub fn take(&mut self, pair: Pair<P>) {
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
        match self.config.assign(field, &value) {
            Ok(true) => {}
            Ok(false) => {
                // Of an operator that is not known, nobody can say.
                if let Some(op) = self.op {
                    let owners = Op::ALL.into_iter().filter(|op| op.takes(field));
                    let reason = format!("`{key}` is not an option of {op}");
                    self.mistake(key_place, reason, owned_by(owners));
                }
            }
            Err(help) => {
                self.mistake(value_place, format!("{key}: {value} is not possible"), help);
            }
        }
    }

    /// What may be written.
    fn options(&self) -> Vec<&'static str> {
        let takes = |field: &Field| self.op.is_none_or(|op| op.takes(*field));
        let fields = Field::all().into_iter().filter(takes);
        fields.map(Field::name).collect()
    }

    /// What every kernel must have: its operator, its ranks and its sizes.
    pub fn require(&mut self, whole: &P) {
        let dims = self.config.problem.dims();
        let sizes = dims.iter().map(|(field, _)| *field);
        let required: Vec<_> = [Field::OP, Field::WORLD].into_iter().chain(sizes).collect();
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

    pub fn check(self, whole: P) -> Declared<P> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use mkernel_spec::Values;

    #[test]
    fn owners_of_an_option_are_named() {
        let owners = Op::ALL.into_iter().filter(|op| op.takes(Field::SHOTS));
        assert_eq!(
            owned_by(owners),
            "it is of ag_gemm, gemm_rs, gemm_ar, all_reduce, all_gather and reduce_scatter"
        );
        let owners = Op::ALL.into_iter().filter(|op| op.takes(Field::CAUSAL));
        assert_eq!(owned_by(owners), "it is of ring_attention");
    }

    #[test]
    fn every_option_is_read_and_written() {
        for op in Op::ALL {
            let plain = KernelConfig::new(8, op.problem());
            for option in op.options() {
                let value = match &option.values {
                    Values::Size | Values::Count(_) => Value::Integer(64),
                    Values::Number => Value::Fraction("0.5".to_owned()),
                    Values::Switch => Value::Boolean(true),
                    Values::Name => Value::Word("up".to_owned()),
                    Values::Words(words) => Value::Word(words[words.len() - 1].to_owned()),
                };
                let (field, mut config) = (option.field, plain.clone());
                assert_eq!(config.assign(field, &value), Ok(true), "{field} of {op}");
                let wrong = config.assign(field, &Value::Other("a date"));
                assert!(wrong.is_err(), "{field} of {op}");
                if field != Field::OP {
                    assert_ne!(config, plain, "{field} of {op}");
                    let name = format!("{field}: ");
                    assert_ne!(config.literal(), plain.literal(), "{field} of {op}");
                    assert!(config.literal().contains(&name), "{}", config.literal());
                }
            }
        }
    }
}
