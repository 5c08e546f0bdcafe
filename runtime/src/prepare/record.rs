//! The file of `MKERNEL_RECORD`: the kernels that a program prepares, as `mkernel-gen build` reads them.

use crate::env;
use crate::error::Error;
use mkernel_spec::{Field, KernelConfig};
use serde_json::Value;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::path::Path;

/// Adds a kernel to the file that the user wants, if the user wants one and the file lacks the kernel. The sizes of `config` are
/// known.
///
/// # Errors
/// [`Error::Environment`] if the file cannot be read or written.
pub(super) fn record(config: &KernelConfig, name: Option<&str>) -> Result<(), Error> {
    let Some(path) = env::record() else {
        return Ok(());
    };
    let named = KernelConfig {
        name: name.map(str::to_owned),
        ..config.clone()
    };
    add(&path, &table(&named)).map_err(|_| env::wrong_record(&path))
}

/// Appends a table to the file, unless the file has it. The text is one write, so that processes that share the file do not
/// mix their tables.
fn add(path: &Path, table: &str) -> io::Result<()> {
    let options = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .clone();
    let mut file = options.open(path)?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    match text.contains(table) {
        true => Ok(()),
        false if text.is_empty() || text.ends_with('\n') => file.write_all(table.as_bytes()),
        false => file.write_all(format!("\n{table}").as_bytes()),
    }
}

/// Returns the table `[[kernel]]` of a configuration. An empty line ends the table, so that no table is the beginning of
/// another table.
fn table(config: &KernelConfig) -> String {
    let json = serde_json::to_value(config).unwrap_or_default();
    let options = json.as_object().into_iter().flatten();
    let mut lines: Vec<_> = options
        .filter_map(|(name, value)| Some((name, toml(value)?)))
        .collect();
    let first = [Field::NAME, Field::OP].map(Field::name);
    lines.sort_by_key(|(name, _)| {
        first
            .iter()
            .position(|of| of == name)
            .unwrap_or(first.len())
    });
    let lines: String = lines
        .iter()
        .map(|(name, value)| format!("{name} = {value}\n"))
        .collect();
    format!("[[kernel]]\n{lines}\n")
}

/// Returns a value as TOML. Strings and numbers of JSON are also valid in TOML. An absent value and an empty group have
/// no text.
fn toml(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::Object(group) => {
            let options = group.iter();
            let options =
                options.filter_map(|(name, value)| Some(format!("{name} = {}", toml(value)?)));
            let options: Vec<_> = options.collect();
            (!options.is_empty()).then(|| format!("{{ {} }}", options.join(", ")))
        }
        value => Some(value.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mkernel_spec::{BLayout, Dim, Epilogue, Eps, GemmConfig, GemmOp, Norm, Op, Tuning};
    use serde::Deserialize;

    #[derive(Deserialize)]
    struct File {
        kernel: Vec<KernelConfig>,
    }

    fn read(text: &str) -> Vec<KernelConfig> {
        let file: File = toml::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"));
        file.kernel
    }

    #[test]
    fn a_table_has_the_whole_configuration() {
        let mut gemm = GemmConfig {
            m: Dim::UpTo(64),
            n: Dim::Static(128),
            k: Dim::Static(72),
            b_layout: BLayout::Nk,
            ..GemmConfig::new(GemmOp::GemmAr)
        };
        gemm.epilogue = Epilogue {
            residual: true,
            norm: Norm::Rms,
            eps: Eps::new(1e-5),
            ..gemm.epilogue
        };
        gemm.tuning = Tuning {
            tile_m: Some(64),
            ..gemm.tuning
        };
        let config = KernelConfig {
            name: Some("Down".to_owned()),
            ..KernelConfig::new(4, gemm)
        };
        let text = table(&config);
        assert!(
            text.starts_with("[[kernel]]\nname = \"Down\"\nop = \"gemm_ar\"\n"),
            "{text}"
        );
        assert!(text.contains("\nm = \"..=64\"\n"), "{text}");
        assert_eq!(read(&text), [config]);
    }

    #[test]
    fn a_table_has_options_of_its_operator_only() {
        for op in Op::ALL {
            let mut config = KernelConfig::new(2, op.problem());
            for (_, dim) in config.problem.dims_mut() {
                *dim = Dim::Static(64);
            }
            let text = table(&config);
            assert_eq!(read(&text), [config]);
            let root: toml::Table = text.parse().expect("TOML");
            let kernel = root["kernel"][0].as_table().expect("a table");
            let groups = kernel.values().filter_map(toml::Value::as_table).flatten();
            let flat = kernel.iter().filter(|(_, value)| !value.is_table());
            for (name, _) in groups.chain(flat) {
                let options = op.options();
                let takes = options.iter().any(|option| option.field.name() == name);
                assert!(takes, "{op}: {name}");
            }
        }
    }

    #[test]
    fn a_file_has_each_kernel_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("kernels.toml");
        let tables = ["[[kernel]]\nn = 8\n\n", "[[kernel]]\nn = 8\nm = 1\n\n"];
        for table in [tables[1], tables[0], tables[0], tables[1]] {
            add(&path, table).expect("written");
        }
        let text = std::fs::read_to_string(&path).expect("a file");
        assert_eq!(text, [tables[1], tables[0]].concat());
        std::fs::write(&path, "# mine").expect("written");
        add(&path, tables[0]).expect("written");
        let text = std::fs::read_to_string(&path).expect("a file");
        assert_eq!(text, format!("# mine\n{}", tables[0]));
        assert!(add(folder.path(), tables[0]).is_err());
    }
}
