//! The options in Markdown, for the book and the documentation of `#[fused_kernel]`.

use crate::options::op::Op;
use crate::options::option::OptionSpec;
use crate::options::values::{Limits, Values};
use std::fmt;

/// The options of one struct, displayed as a table.
#[derive(Clone, Debug)]
pub struct OptionTable {
    /// The name of the struct.
    pub of: &'static str,
    /// The operators that take the options.
    pub ops: Vec<Op>,
    /// The options, in the order of the struct's fields.
    pub options: Vec<OptionSpec>,
}

impl OptionTable {
    /// The tables of all structs, the table for all operators first.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut tables: Vec<Self> = Vec::new();
        for (op, option) in Op::ALL
            .into_iter()
            .flat_map(|op| op.options().into_iter().map(move |o| (op, o)))
        {
            let known = tables.iter().position(|table| table.of == option.of);
            let index = known.unwrap_or_else(|| {
                tables.push(Self {
                    of: option.of,
                    ops: Vec::new(),
                    options: Vec::new(),
                });
                tables.len() - 1
            });
            let Self { ops, options, .. } = &mut tables[index];
            if !ops.contains(&op) {
                ops.push(op);
            }
            if !options.contains(&option) {
                options.push(option);
            }
        }
        tables
    }

    /// The title of the table, such as `ring_attention`: the operators that take the options.
    #[must_use]
    pub fn title(&self) -> String {
        if self.ops.len() == Op::ALL.len() {
            return "every operator".to_owned();
        }
        let names: Vec<_> = self.ops.iter().map(|op| format!("`{op}`")).collect();
        names.join(", ")
    }
}

impl fmt::Display for OptionTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| option | values | |\n|---|---|---|")?;
        for option in &self.options {
            let (values, doc) = (values(option), option.doc.join(" "));
            writeln!(f, "| `{}` | {values} | {doc} |", option.field)?;
        }
        Ok(())
    }
}

/// The possible values of an option, and its default value.
fn values(option: &OptionSpec) -> String {
    let default = option.default.as_deref();
    let words = |words: &[&str]| {
        let word = |word: &&str| match default == Some(*word) {
            true => format!("`{word}` (default)"),
            false => format!("`{word}`"),
        };
        words.iter().map(word).collect::<Vec<_>>().join(", ")
    };
    match &option.values {
        Values::Size => "size".to_owned(),
        Values::Count(None) => "integer".to_owned(),
        Values::Count(Some(Limits::Range(low, high))) => format!("{low} to {high}"),
        Values::Count(Some(Limits::OneOf(counts, _))) => {
            let counts: Vec<_> = counts.iter().map(u32::to_string).collect();
            counts.join(", ")
        }
        Values::Number => format!("number (default {})", default.unwrap_or("none")),
        Values::Switch => words(&["true", "false"]),
        Values::Name => "identifier".to_owned(),
        Values::Words(all) => words(all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnostic::Field;
    use std::collections::BTreeSet;

    #[test]
    fn every_option_is_described_in_one_row() {
        let tables = OptionTable::all();
        let options = tables.iter().flat_map(|table| &table.options);
        for option in options.clone() {
            let OptionSpec { field, doc, .. } = option;
            assert!(doc[0].ends_with('.'), "{field}: {doc:?}");
            let cells = |c: char| c == '|' || c == '\n';
            assert!(!doc.concat().contains(cells), "{field}: {doc:?}");
        }
        let described: BTreeSet<_> = options.map(|option| option.field).collect();
        assert!(described.into_iter().eq(BTreeSet::from_iter(Field::all())));
        let names: BTreeSet<_> = tables.iter().map(|table| table.of).collect();
        assert_eq!(names.len(), tables.len());
    }
}
