//! The entries of TOML tables.

use mkernel_spec::Op;
use toml::Spanned;
use toml::de::{DeString, DeValue};

/// A key and its value.
pub type Entry<'a, 'i> = (&'a Spanned<DeString<'i>>, &'a Spanned<DeValue<'i>>);

/// The options of a table in the order of the file. Options may stand in the tables of their groups.
pub fn entries<'a, 'i>(table: &'a Spanned<DeValue<'i>>) -> Vec<Entry<'a, 'i>> {
    let entries = table
        .get_ref()
        .as_table()
        .into_iter()
        .flat_map(in_file_order);
    let flat = entries.flat_map(|(key, value)| match value.get_ref() {
        DeValue::Table(group) if is_group(key.get_ref().as_ref()) => in_file_order(group),
        _ => vec![(key, value)],
    });
    flat.collect()
}

/// Whether a table of this name may contain options.
fn is_group(name: &str) -> bool {
    let mut options = Op::ALL.into_iter().flat_map(Op::options);
    options.any(|option| option.group == Some(name))
}

/// The entries of a table in the order of the file. The table itself is sorted by key.
pub fn in_file_order<'a, K, V>(
    table: impl IntoIterator<Item = (&'a Spanned<K>, &'a Spanned<V>)>,
) -> Vec<(&'a Spanned<K>, &'a Spanned<V>)>
where
    K: 'a,
    V: 'a,
{
    let mut entries: Vec<_> = table.into_iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}
