//! [`Declaration`]: a checked kernel with the spans of its fields, or [`SpannedDiagnostic`]s.

use mkernel_spec::{Diagnostic, Diagnostics, Field, KernelSpec};
use std::collections::BTreeMap;

/// An error in a declaration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpannedDiagnostic<S> {
    /// The position of the error.
    pub span: S,
    /// A description of the error.
    pub reason: String,
    /// A text that would be valid instead.
    pub help: String,
}

impl<S> SpannedDiagnostic<S> {
    /// Converts the span with `convert`.
    pub fn map_span<T>(self, convert: impl FnOnce(&S) -> T) -> SpannedDiagnostic<T> {
        SpannedDiagnostic {
            span: convert(&self.span),
            reason: self.reason,
            help: self.help,
        }
    }
}

/// A kernel's declaration, or all errors in it.
pub type Declared<S> = Result<Declaration<S>, Vec<SpannedDiagnostic<S>>>;

/// A checked spec with the spans of its fields.
#[derive(Clone, Debug)]
pub struct Declaration<S> {
    /// The kernel that is declared.
    pub spec: KernelSpec,
    pub(crate) spans: Spans<S>,
}

impl<S: Clone> Declaration<S> {
    /// Gives diagnostics that a later step has found the spans of their fields.
    #[must_use]
    pub fn diagnostics(&self, found: &Diagnostics) -> Vec<SpannedDiagnostic<S>> {
        self.spans.diagnostics(found)
    }

    /// Whether `field` is given. If the number of ranks is not given, the spec has a number of ranks for which it is valid.
    #[must_use]
    pub fn gives(&self, field: Field) -> bool {
        self.spans.fields.contains_key(&field)
    }

    /// Replaces the span of `field`.
    pub fn set_span(&mut self, field: Field, span: S) {
        self.spans.fields.insert(field, span);
    }

    /// The span of the kernel as a whole.
    #[must_use]
    pub fn span(&self) -> &S {
        &self.spans.whole
    }

    /// Converts all spans with `convert`.
    pub fn map_spans<T>(self, convert: impl Fn(&S) -> T) -> Declaration<T> {
        let Spans { whole, fields } = self.spans;
        let fields = fields
            .iter()
            .map(|(field, s)| (*field, convert(s)))
            .collect();
        Declaration {
            spec: self.spec,
            spans: Spans {
                whole: convert(&whole),
                fields,
            },
        }
    }
}

/// The spans of a kernel and of its fields.
#[derive(Clone, Debug)]
pub(crate) struct Spans<S> {
    pub whole: S,
    pub fields: BTreeMap<Field, S>,
}

impl<S: Clone> Spans<S> {
    pub fn diagnostics(&self, found: &Diagnostics) -> Vec<SpannedDiagnostic<S>> {
        let span = |field| self.fields.get(&field).unwrap_or(&self.whole).clone();
        let diagnostic = |Diagnostic {
                              field,
                              reason,
                              help,
                          }: &Diagnostic| SpannedDiagnostic {
            span: span(*field),
            reason: format!("{field}: {reason}"),
            help: help.clone(),
        };
        found.iter().map(diagnostic).collect()
    }
}
