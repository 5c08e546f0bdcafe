//! [`Binder`]: assigns pairs to the fields of a configuration.

use crate::declaration::{Declaration, Declared, SpannedDiagnostic, Spans};
use mkernel_spec::{
    Diagnostics, Field, KernelConfig, KernelSpec, Op, Options, Value, WORLDS, nearest,
};
use std::collections::BTreeMap;

/// A pair `key = value` with the spans of both.
#[derive(Clone, Debug)]
pub(crate) struct Pair<S> {
    pub key: String,
    pub key_span: S,
    pub value: Value,
    pub value_span: S,
}

/// The field that is called `key`.
pub(crate) fn field_of(key: &str) -> Option<Field> {
    Field::all().into_iter().find(|field| field.name() == key)
}

/// A configuration to which pairs are assigned one by one.
pub(crate) struct Binder<S> {
    /// The operator; `None` if the operator is missing or unknown.
    op: Option<Op>,
    config: KernelConfig,
    spans: BTreeMap<Field, S>,
    world_is_optional: bool,
    pub diagnostics: Vec<SpannedDiagnostic<S>>,
}

impl<S: Clone> Binder<S> {
    /// Starts from a valid configuration of `op`, or of the `likely` operator if `op` is unknown. Fields that are
    /// missing or wrong keep these valid values, so that they cause no second message.
    pub fn new(op: Option<Op>, likely: Op, world_is_optional: bool) -> Self {
        Self {
            op,
            config: KernelConfig::new(8, likely.problem()),
            spans: BTreeMap::new(),
            world_is_optional,
            diagnostics: Vec::new(),
        }
    }

    fn error(&mut self, span: S, reason: String, help: impl Into<String>) {
        self.diagnostics.push(SpannedDiagnostic {
            span,
            reason,
            help: help.into(),
        });
    }

    /// Assigns a pair to its field, or adds an error.
    pub fn bind(&mut self, pair: Pair<S>) {
        let Pair {
            key,
            key_span,
            value,
            value_span,
        } = pair;
        let Some(field) = field_of(&key) else {
            let help = nearest(&key, &self.options());
            return self.error(key_span, format!("there is no option `{key}`"), help);
        };
        if self.spans.contains_key(&field) {
            let reason = format!("`{key}` is given twice");
            return self.error(key_span, reason, "remove one value");
        }
        self.spans.insert(field, value_span.clone());
        match self.config.assign(field, &value) {
            Ok(true) => {}
            Ok(false) => {
                // If the operator is unknown, its options are unknown too, so no option is refused.
                if let Some(op) = self.op {
                    let owners = Op::ALL.into_iter().filter(|op| op.takes(field));
                    let reason = format!("`{key}` is not an option of {op}");
                    self.error(key_span, reason, owned_by(owners));
                }
            }
            Err(help) => {
                self.error(value_span, format!("{key}: {value} is not possible"), help);
            }
        }
    }

    /// The names of the options that may be given.
    fn options(&self) -> Vec<&'static str> {
        let takes = |field: &Field| self.op.is_none_or(|op| op.takes(*field));
        let fields = Field::all().into_iter().filter(takes);
        fields.map(Field::name).collect()
    }

    /// Adds an error if the operator, the number of ranks or a size is missing.
    pub fn require(&mut self, whole: &S) {
        // Without an operator, nothing says which sizes are needed.
        let has_op = self.spans.contains_key(&Field::OP);
        let dims = self.config.problem.dims();
        let sizes = dims.iter().filter(|_| has_op).map(|(field, _)| *field);
        let world = (!self.world_is_optional).then_some(Field::WORLD);
        let required: Vec<_> = [Field::OP].into_iter().chain(world).chain(sizes).collect();
        let missing: Vec<_> = required
            .iter()
            .filter(|field| !self.spans.contains_key(field))
            .map(|field| format!("`{field}`"))
            .collect();
        if missing.is_empty() {
            return;
        }
        let verb = if missing.len() == 1 { "is" } else { "are" };
        let reason = format!("{} {verb} missing", missing.join(", "));
        let names: Vec<_> = required.into_iter().map(Field::name).collect();
        let help = match has_op {
            true => format!(
                "every kernel needs {}; write `dynamic` for a size that is given at run time",
                enumerate(&names)
            ),
            false => {
                "name the operator, as in `op = ag_gemm`; its sizes are required too".to_owned()
            }
        };
        self.error(whole.clone(), reason, help);
    }

    /// Checks the configuration. If the number of ranks is not given, the configuration must be valid for some number of ranks.
    fn validate(&self) -> Result<KernelSpec, Diagnostics> {
        if self.spans.contains_key(&Field::WORLD) || !self.world_is_optional {
            return KernelSpec::validate(self.config.clone());
        }
        let for_ranks = |local_world: &u32| {
            let world = local_world.saturating_mul(self.config.nodes);
            KernelSpec::validate(KernelConfig {
                world,
                ..self.config.clone()
            })
        };
        let [others @ .., most] = &WORLDS;
        let of_most = for_ranks(most);
        let valid = others.iter().rev().find_map(|world| for_ranks(world).ok());
        of_most.or_else(|found| valid.ok_or(found))
    }

    /// The declaration, if neither the pairs nor the configuration have an error.
    pub fn check(self, whole: S) -> Declared<S> {
        let validated = self.validate();
        let mut diagnostics = self.diagnostics;
        let spans = Spans {
            whole,
            fields: self.spans,
        };
        match validated {
            Ok(spec) if diagnostics.is_empty() => Ok(Declaration { spec, spans }),
            Ok(_) => Err(diagnostics),
            Err(found) => {
                diagnostics.extend(spans.diagnostics(&found));
                Err(diagnostics)
            }
        }
    }
}

/// `it is an option of ring_attention`
fn owned_by(owners: impl Iterator<Item = Op>) -> String {
    let names: Vec<_> = owners.map(Op::name).collect();
    format!("it is an option of {}", enumerate(&names))
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
            "it is an option of ag_gemm, gemm_rs, gemm_ar, gemm, all_reduce, all_gather, reduce_scatter, broadcast and all_to_all"
        );
        let owners = Op::ALL.into_iter().filter(|op| op.takes(Field::CAUSAL));
        assert_eq!(owned_by(owners), "it is an option of ring_attention");
    }

    #[test]
    fn every_option_is_read_and_written() {
        for op in Op::ALL {
            let plain = KernelConfig::new(8, op.problem());
            for option in op.options() {
                let value = match &option.values {
                    Values::Size | Values::Count(_) => Value::Integer(64),
                    Values::Number => Value::Fraction("0.5".to_owned()),
                    Values::Switch => Value::Boolean(option.default.as_deref() != Some("true")),
                    Values::Name => Value::Word("up".to_owned()),
                    Values::Words(words) => Value::Word(words[words.len() - 1].to_owned()),
                };
                let (field, mut config) = (option.field, plain.clone());
                assert_eq!(config.assign(field, &value), Ok(true), "{field} of {op}");
                let wrong = config.assign(field, &Value::Other("a date"));
                assert!(wrong.is_err(), "{field} of {op}");
                if field != Field::OP {
                    assert_ne!(config, plain, "{field} of {op}");
                }
                let json = serde_json::to_string(&config).expect("words and numbers");
                match serde_json::from_str::<KernelConfig>(&json) {
                    Ok(read) => assert_eq!(read, config, "{field} of {op}"),
                    Err(error) => panic!("{field} of {op}: {error} in {json}"),
                }
            }
        }
    }
}
