//! [`Declaration`]: a checked kernel that remembers where its fields were written, or [`Mistake`]s.

use mkernel_spec::{Diagnostic, Diagnostics, Field, KernelSpec};
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

/// A kernel's declaration, or all that is wrong with it.
pub type Declared<P> = Result<Declaration<P>, Vec<Mistake<P>>>;

/// A checked spec that remembers where each of its fields was written.
#[derive(Clone, Debug)]
pub struct Declaration<P> {
    /// What was declared.
    pub spec: KernelSpec,
    pub(crate) places: Places<P>,
}

impl<P: Clone> Declaration<P> {
    /// Diagnostics that a later step found, at their places.
    #[must_use]
    pub fn mistakes(&self, found: &Diagnostics) -> Vec<Mistake<P>> {
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

/// Where fields were written.
#[derive(Clone, Debug)]
pub(crate) struct Places<P> {
    pub whole: P,
    pub fields: BTreeMap<Field, P>,
}

impl<P: Clone> Places<P> {
    pub fn mistakes(&self, found: &Diagnostics) -> Vec<Mistake<P>> {
        let place = |field| self.fields.get(&field).unwrap_or(&self.whole).clone();
        let mistake = |Diagnostic {
                           field,
                           reason,
                           help,
                       }: &Diagnostic| Mistake {
            place: place(*field),
            reason: format!("{field}: {reason}"),
            help: help.clone(),
        };
        found.iter().map(mistake).collect()
    }
}
