//! [`Defaults`]: the options that the kernels of a TOML file share.

use super::toml_entries::{Entry, entries};
use mkernel_declare::SpannedDiagnostic;
use mkernel_spec::Op;
use std::ops::Range;
use toml::de::DeTable;

/// The options in `[defaults]`, and whether any kernel takes each of them.
pub struct Defaults<'a, 'i>(Vec<(Entry<'a, 'i>, bool)>);

impl<'a, 'i> Defaults<'a, 'i> {
    pub fn of(root: &'a DeTable<'i>) -> Self {
        let entries = root.get("defaults").map(entries).unwrap_or_default();
        Self(entries.into_iter().map(|entry| (entry, false)).collect())
    }

    /// The options of a kernel, and the defaults that it does not set and its operator takes.
    pub fn with(&mut self, of_kernel: Vec<Entry<'a, 'i>>) -> Vec<Entry<'a, 'i>> {
        let own = |name: &str| of_kernel.iter().find(|(key, _)| key.get_ref() == name);
        let default_op = self
            .0
            .iter()
            .map(|(entry, _)| entry)
            .find(|(key, _)| key.get_ref() == "op");
        let op = own("op")
            .or(default_op)
            .and_then(|(_, value)| value.get_ref().as_str());
        let op = op.and_then(|name| Op::ALL.into_iter().find(|op| op.name() == name));
        let takes = |name: &str| {
            let mut options = op.into_iter().flat_map(Op::options);
            let takes = op.is_none() || options.any(|option| option.field.name() == name);
            takes && name != "op"
        };
        let mut all = Vec::new();
        for ((key, value), is_used) in &mut self.0 {
            let name = key.get_ref().as_ref();
            let is_taken = takes(name);
            *is_used |= is_taken;
            if is_taken && own(name).is_none() {
                all.push((*key, *value));
            }
        }
        all.extend(of_kernel);
        all
    }

    /// The mistakes: defaults that no kernel takes.
    pub fn mistakes(&self, at: impl Fn(&Range<usize>) -> String) -> Vec<SpannedDiagnostic<String>> {
        let unused = self.0.iter().filter(|(_, is_used)| !is_used);
        let mistake = |((key, _), _): &(Entry<'a, 'i>, bool)| {
            let (reason, help) = match key.get_ref().as_ref() {
                "op" => (
                    "`op` has no default".to_owned(),
                    "write op in each [[kernel]]",
                ),
                name => (
                    format!("no kernel of the file takes the default `{name}`"),
                    "remove it, or write an option of the kernels",
                ),
            };
            SpannedDiagnostic {
                span: at(&key.span()),
                reason,
                help: help.to_owned(),
            }
        };
        unused.map(mistake).collect()
    }
}
