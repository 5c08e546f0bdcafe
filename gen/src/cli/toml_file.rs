//! TOML files with `[[kernel]]` tables, and options that kernels share in the table `[defaults]`.

use super::toml_defaults::Defaults;
use super::toml_entries::{entries, in_file_order};
use mkernel_declare::{Declared, Parser, SpannedDiagnostic};
use mkernel_spec::Value;
use std::collections::{HashMap, HashSet, hash_map};
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
    let mut defaults = Defaults::of(root.get_ref());
    for (key, value) in in_file_order(root.get_ref()) {
        match (key.get_ref().as_ref(), value.get_ref()) {
            ("kernel", DeValue::Array(tables)) if tables.iter().all(|t| t.get_ref().is_table()) => {
                for table in tables.iter() {
                    let entries = defaults.with(entries(table));
                    let mut parser = Parser::default();
                    for (key, value) in entries {
                        set(&mut parser, key, value, &at);
                    }
                    kernels.push(parser.finish(at(&table.span())));
                }
            }
            ("defaults", DeValue::Table(_)) => {}
            (name, _) => diagnostics.push(SpannedDiagnostic {
                span: at(&key.span()),
                reason: format!("`{name}` is not a list of [[kernel]] tables"),
                help: "begin each kernel with a line [[kernel]], and shared options with a line [defaults]".to_owned(),
            }),
        }
    }
    diagnostics.extend(defaults.mistakes(at));
    leave_out_repeated(&mut kernels);
    diagnostics.extend(equal_names(&kernels));
    if kernels.is_empty() && diagnostics.is_empty() {
        diagnostics.push(SpannedDiagnostic {
            span: path.display().to_string(),
            reason: "no kernel is declared".to_owned(),
            help: "begin each kernel with a line [[kernel]]".to_owned(),
        });
    }
    (kernels, diagnostics)
}

/// Leaves out mistakes of kernels that an earlier kernel has too: mistakes in defaults.
fn leave_out_repeated(kernels: &mut Vec<Declared<String>>) {
    let mut known = HashSet::new();
    kernels.retain_mut(|kernel| {
        let Err(mistakes) = kernel else {
            return true;
        };
        mistakes.retain(|mistake| known.insert((mistake.span.clone(), mistake.reason.clone())));
        !mistakes.is_empty()
    });
}

/// The mistakes of kernels that have the name of an earlier kernel.
fn equal_names(kernels: &[Declared<String>]) -> Vec<SpannedDiagnostic<String>> {
    let named = kernels.iter().flatten().filter_map(|kernel| {
        let name = kernel.spec.config().name.as_deref()?;
        Some((name, kernel))
    });
    let mut first = HashMap::new();
    let mut found = Vec::new();
    for (name, kernel) in named {
        let span = kernel.span();
        match first.entry(name) {
            hash_map::Entry::Vacant(entry) => {
                entry.insert(span);
            }
            hash_map::Entry::Occupied(earlier) => found.push(SpannedDiagnostic {
                span: span.clone(),
                reason: format!("the kernel at {} has the name `{name}` too", earlier.get()),
                help: "give each kernel of a file another name".to_owned(),
            }),
        }
    }
    found
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
    fn kernels_share_defaults_that_their_operators_take() {
        let text = "
[defaults]
world = 4
n = 1024
b_layout = 'nk'
epilogue = { activation = 'silu' }

[[kernel]]
op = 'gemm_ar'
m = 64
k = 512

[[kernel]]
op = 'gemm_rs'
m = 64
k = 512
world = 2
activation = 'none'

[[kernel]]
op = 'all_gather'
m = 64
";
        assert_eq!(reasons(text), [""; 0]);
        let (kernels, _) = read(Path::new("f.toml"), text);
        let configs = kernels.iter().flatten().map(|kernel| kernel.spec.config());
        let worlds: Vec<_> = configs.map(|config| config.world).collect();
        assert_eq!(worlds, [4, 2, 4]);
        let gemms = kernels
            .iter()
            .flatten()
            .filter_map(|kernel| kernel.spec.problem().gemm());
        let suffixes: Vec<_> = gemms
            .map(|gemm| (gemm.b_layout.name(), gemm.suffix()))
            .collect();
        assert_eq!(
            suffixes,
            [("nk", "_silu".to_owned()), ("nk", String::new())]
        );
    }

    #[test]
    fn mistakes_of_defaults_are_named_once() {
        let kernel = "[[kernel]]\nop = 'gemm'\nm = 8\nn = 8\nk = 8\n";
        let text =
            format!("[defaults]\nop = 'gemm'\nworld = 3\nwrld = 8\nhidden = 8\n{kernel}{kernel}");
        assert_eq!(
            reasons(&text),
            [
                "f.toml:2:1: `op` has no default",
                "f.toml:4:1: no kernel of the file takes the default `wrld`",
                "f.toml:5:1: no kernel of the file takes the default `hidden`",
                "f.toml:3:9: world: 3 ranks per node is not supported",
            ]
        );
    }

    #[test]
    fn kernels_have_different_names() {
        let kernel = |m: u32| {
            format!("[[kernel]]\nname = 'up'\nop = 'gemm'\nworld = 1\nm = {m}\nn = 8\nk = 8\n")
        };
        assert_eq!(
            reasons(&(kernel(8) + &kernel(16))),
            ["f.toml:8:1: the kernel at f.toml:1:1 has the name `up` too"]
        );
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
