//! `mkernel-gen schema`: the JSON Schemas of lines of `--json` and of TOML files.

mod lines;
mod toml_files;

use super::failure::Failure;
use super::output::print;

/// Arguments of `mkernel-gen schema`.
#[derive(Debug, clap::Args)]
pub struct ShowSchema {
    /// The data that the schema describes
    #[arg(value_enum, default_value_t = Data::Lines)]
    of: Data,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Data {
    /// A line that a command prints with --json
    Lines,
    /// A TOML file with [[kernel]] tables
    Kernels,
    /// A TOML file for --device-file
    Device,
    /// A file that `trace` writes
    Trace,
}

impl ShowSchema {
    /// Prints the schema.
    pub fn run(&self) -> Result<(), Failure> {
        let schema = match self.of {
            Data::Lines => lines::schema(),
            Data::Kernels => toml_files::kernels(),
            Data::Device => toml_files::device(),
            Data::Trace => lines::trace(),
        };
        let text = serde_json::to_string_pretty(&schema);
        print(&(text.map_err(|error| Failure::Output(error.into()))? + "\n"))
    }
}
