//! TOML files with `[[kernel]]` tables.

use mkernel_declare::{Declared, Parser, SpannedDiagnostic};
use mkernel_spec::{Op, Value};
use std::ops::Range;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The kernels that the `[[kernel]]` tables of `text` declare, and the errors outside of these tables. Spans are
/// `file:line:column`.
pub fn read(path: &Path, text: &str) -> (Vec<Declared<String>>, Vec<SpannedDiagnostic<String>>) {
    let starts = line_starts(text);
    let at = |span: &Range<usize>| location(path, text, &starts, span.start);
    let (root, errors) = DeTable::parse_recoverable(text);
    let mut diagnostics: Vec<_> = errors
        .iter()
        .map(|error| SpannedDiagnostic {
            span: at(&error.span().unwrap_or_default()),
            reason: error.message().to_owned(),
            help: "this is not TOML".to_owned(),
        })
        .collect();
    if !diagnostics.is_empty() {
        return (Vec::new(), diagnostics); // The part that was recovered may lack keys that the file has.
    }
    let mut kernels = Vec::new();
    for (key, value) in in_file_order(root.get_ref()) {
        match (key.get_ref().as_ref(), value.get_ref()) {
            ("kernel", DeValue::Array(tables)) if tables.iter().all(|t| t.get_ref().is_table()) => {
                for table in tables.iter() {
                    kernels.push(read_kernel(table, &at).finish(at(&table.span())));
                }
            }
            (name, _) => diagnostics.push(SpannedDiagnostic {
                span: at(&key.span()),
                reason: format!("`{name}` is not a list of [[kernel]] tables"),
                help: "begin each kernel with a line [[kernel]]".to_owned(),
            }),
        }
    }
    if kernels.is_empty() && diagnostics.is_empty() {
        diagnostics.push(SpannedDiagnostic {
            span: path.display().to_string(),
            reason: "no kernel is declared".to_owned(),
            help: "begin each kernel with a line [[kernel]]".to_owned(),
        });
    }
    (kernels, diagnostics)
}

fn read_kernel(table: &Spanned<DeValue>, at: &impl Fn(&Range<usize>) -> String) -> Parser<String> {
    let mut parser = Parser::default();
    let Some(entries) = table.get_ref().as_table() else {
        return parser; // Not reached: the caller has checked this.
    };
    for (key, value) in in_file_order(entries) {
        match value.get_ref() {
            DeValue::Table(group) if is_group(key.get_ref().as_ref()) => {
                for (key, value) in in_file_order(group) {
                    set(&mut parser, key, value, at);
                }
            }
            _ => set(&mut parser, key, value, at),
        }
    }
    parser
}

/// Whether a table of this name may contain options.
fn is_group(name: &str) -> bool {
    let mut options = Op::ALL.into_iter().flat_map(Op::options);
    options.any(|option| option.group == Some(name))
}

fn set(
    parser: &mut Parser<String>,
    key: &Spanned<impl AsRef<str>>,
    value: &Spanned<DeValue>,
    at: &impl Fn(&Range<usize>) -> String,
) {
    let read = match value.get_ref() {
        DeValue::String(word) => Value::Word(word.to_string()),
        DeValue::Integer(integer) => i128::from_str_radix(integer.as_str(), integer.radix())
            .map_or(
                Value::Other("an integer of more than 127 bits"),
                Value::Integer,
            ),
        DeValue::Float(number) => Value::Fraction(number.as_str().to_owned()),
        DeValue::Boolean(value) => Value::Boolean(*value),
        DeValue::Datetime(_) => Value::Other("a date"),
        DeValue::Array(_) => Value::Other("an array"),
        DeValue::Table(_) => Value::Other("a table"),
    };
    parser.set(
        key.get_ref().as_ref(),
        at(&key.span()),
        read,
        at(&value.span()),
    );
}

/// The entries of a table in the order of the file. The table itself is sorted by key.
fn in_file_order<'a, K, V>(
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

/// The offsets of all lines. A file may have thousands of kernels, so lines are not counted again for each span.
fn line_starts(text: &str) -> Vec<usize> {
    let breaks = text.match_indices('\n').map(|(at, _)| at + 1);
    [0].into_iter().chain(breaks).collect()
}

fn location(path: &Path, text: &str, starts: &[usize], offset: usize) -> String {
    let offset = text.floor_char_boundary(offset);
    let line = starts.partition_point(|start| *start <= offset);
    let column = text[starts[line - 1]..offset].chars().count() + 1;
    format!("{}:{line}:{column}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(text: &str) -> Vec<String> {
        let (kernels, mut diagnostics) = read(Path::new("f.toml"), text);
        diagnostics.extend(kernels.into_iter().filter_map(Result::err).flatten());
        diagnostics
            .iter()
            .map(|m| format!("{}: {}", m.span, m.reason))
            .collect()
    }

    #[test]
    fn tuning_stands_flat_or_in_its_table() {
        for tuning in [
            "tile_m = 128",
            "tuning = { tile_m = 128 }",
            "[kernel.tuning]\ntile_m = 128",
        ] {
            let text = format!(
                "[[kernel]]\nop = 'ag_gemm'\nworld = 8\nm = 'dynamic'\nn = 0x400\nk = 8192\n{tuning}"
            );
            let (kernels, diagnostics) = read(Path::new("f.toml"), &text);
            assert!(diagnostics.is_empty());
            let spec = &kernels[0].as_ref().expect("valid").spec;
            let gemm = spec.problem().gemm().expect("a GEMM");
            assert_eq!(gemm.tuning.tile_m, Some(128));
        }
    }

    #[test]
    fn an_epilogue_stands_flat_or_in_its_table() {
        for epilogue in [
            "bias = true\nactivation = 'silu'",
            "epilogue = { bias = true, activation = 'silu' }",
            "[kernel.epilogue]\nactivation = 'silu'\nbias = true",
        ] {
            let text = format!(
                "[[kernel]]\nop = 'gemm_ar'\nworld = 8\nm = 8\nn = 1024\nk = 8192\n{epilogue}"
            );
            let (kernels, diagnostics) = read(Path::new("f.toml"), &text);
            assert!(diagnostics.is_empty());
            let spec = &kernels[0].as_ref().expect("valid").spec;
            let gemm = spec.problem().gemm().expect("a GEMM");
            assert_eq!(gemm.suffix(), "_bias_silu");
        }
    }

    #[test]
    fn mistakes_of_all_kernels_have_line_and_column() {
        let text = "
[[kernel]]
op = 'ag_gemm'
world = 3
m = 1
n = 9
k = 1.5

[[kernel]]
op = 'gemv'
tuning = { stages = -1, q = true }

[other]
";
        assert_eq!(
            reasons(text),
            [
                "f.toml:13:2: `other` is not a list of [[kernel]] tables",
                "f.toml:7:5: k: 1.5 is not possible",
                "f.toml:4:9: world: 3 ranks per node is not supported",
                "f.toml:6:5: n: 9 is not a multiple of 8 (TMA row strides are multiples of 16 bytes)",
                "f.toml:10:6: op: `gemv` is not possible",
                "f.toml:11:21: stages: -1 is not possible",
                "f.toml:11:25: there is no option `q`",
                "f.toml:9:1: `world`, `m`, `n`, `k` are missing",
            ]
        );
    }

    #[test]
    fn files_without_kernels() {
        assert_eq!(reasons(""), ["f.toml: no kernel is declared"]);
        assert_eq!(
            reasons("[kernel]\nop = 'ag_gemm'"),
            ["f.toml:1:2: `kernel` is not a list of [[kernel]] tables"]
        );
        assert_eq!(reasons("a = \nb = ]").len(), 2);
    }
}
