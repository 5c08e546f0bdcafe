//! [`Draft`]: keys and values as they are found, then a [`Declaration`].

use crate::value::{Value, assign, nearest};
use mkernel_spec::{
    BLayout, Dim, Epilogue, Field, KernelConfig, KernelSpec, Op, Tuning, Violation, Violations,
};
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

/// Keys and values found so far; `P` says where.
#[derive(Clone, Debug)]
pub struct Draft<P> {
    config: KernelConfig,
    places: BTreeMap<Field, P>,
    mistakes: Vec<Mistake<P>>,
}

/// What every kernel must have.
const REQUIRED: [Field; 5] = [Field::Op, Field::World, Field::M, Field::N, Field::K];

impl<P: Clone> Default for Draft<P> {
    fn default() -> Self {
        // Stand-ins that are valid beside anything: fields that are missing or wrong cause no second message.
        let config = KernelConfig {
            name: None,
            op: Op::AgGemm,
            world: 8,
            m: Dim::DYNAMIC,
            n: Dim::DYNAMIC,
            k: Dim::DYNAMIC,
            b_layout: BLayout::default(),
            epilogue: Epilogue::default(),
            tuning: Tuning::default(),
        };
        Self {
            config,
            places: BTreeMap::new(),
            mistakes: Vec::new(),
        }
    }
}

impl<P: Clone> Draft<P> {
    /// Takes `key = value`.
    pub fn set(&mut self, key: &str, key_place: P, value: &Value, value_place: P) {
        let Some(field) = Field::ALL.into_iter().find(|field| field.name() == key) else {
            let known = Field::ALL.map(Field::name);
            let help = nearest(key, &known);
            return self.mistake(key_place, format!("there is no option `{key}`"), help);
        };
        if self.places.contains_key(&field) {
            let reason = format!("`{key}` is given twice");
            return self.mistake(key_place, reason, "remove one of them");
        }
        self.places.insert(field, value_place.clone());
        if let Err(help) = assign(&mut self.config, field, value) {
            self.mistake(value_place, format!("{key}: {value} is not possible"), help);
        }
    }

    /// Records a mistake that the door itself has found.
    pub fn mistake(&mut self, place: P, reason: impl Into<String>, help: impl Into<String>) {
        self.mistakes.push(Mistake {
            place,
            reason: reason.into(),
            help: help.into(),
        });
    }

    /// Checks the whole; `whole` is the place of what is not there.
    ///
    /// # Errors
    /// Every mistake, at once, in the order of their discovery.
    pub fn finish(mut self, whole: P) -> Declared<P> {
        let missing: Vec<_> = REQUIRED
            .into_iter()
            .filter(|field| !self.places.contains_key(field))
            .map(|field| format!("`{field}`"))
            .collect();
        if !missing.is_empty() {
            let verb = if missing.len() == 1 { "is" } else { "are" };
            self.mistake(
                whole.clone(),
                format!("{} {verb} missing", missing.join(", ")),
                "a kernel has op, world, m, n and k; a size that is not known yet is `dynamic`",
            );
        }
        let places = Places {
            whole,
            fields: self.places,
        };
        match KernelSpec::validate(self.config) {
            Ok(spec) if self.mistakes.is_empty() => Ok(Declaration { spec, places }),
            Ok(_) => Err(self.mistakes),
            Err(found) => {
                self.mistakes.extend(places.mistakes(&found));
                Err(self.mistakes)
            }
        }
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

    fn draft(pairs: &[(&'static str, Value)]) -> Draft<&'static str> {
        let mut draft = Draft::default();
        for &(key, ref value) in pairs {
            draft.set(key, key, value, key);
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
        assert_eq!(spec.config().m, Dim::DYNAMIC);
        assert_eq!(spec.config().n, Dim::Static(1024));
        assert_eq!(spec.config().tuning, Tuning::default());
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
