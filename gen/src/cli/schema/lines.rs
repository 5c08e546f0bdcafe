//! The schema of lines of `--json`, which is derived from the structs that are printed.

use crate::cli::bench::{FailedLine, Measurement};
use crate::cli::build::BuiltLine;
use crate::cli::bundle::{MergedLine, VerifiedLine};
use crate::cli::check::Checked;
use crate::cli::completions::PageLine;
use crate::cli::doctor::FindingLine;
use crate::cli::error_line::ErrorLine;
use crate::cli::fabric_test::Row;
use crate::cli::fetch::Fetched;
use crate::cli::launch::OutputLine;
use crate::cli::nic_check::CheckLine;
use crate::cli::output::{Line, SCHEMA};
use crate::cli::plan::{Planned, Scaled};
use crate::cli::render::Rendered;
use crate::cli::run::{OutcomeLine, Summary};
use crate::cli::simulate::Simulated;
use crate::cli::store::{CleanedLine, Listed};
use crate::cli::topology::Shown;
use crate::cli::trace::{TraceFile, TraceLine};
use crate::cli::tune::TunedLine;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

/// The schema of one line. The field `kind` names the command and the sort of line.
pub fn schema() -> Value {
    let mut types = SchemaSettings::draft2020_12()
        .for_serialize()
        .into_generator();
    let kinds = [
        kind::<BuiltLine>(&mut types),
        kind::<CheckLine>(&mut types),
        kind::<Checked>(&mut types),
        kind::<CleanedLine>(&mut types),
        kind::<ErrorLine>(&mut types),
        kind::<FailedLine>(&mut types),
        kind::<Fetched>(&mut types),
        kind::<FindingLine>(&mut types),
        kind::<Listed>(&mut types),
        kind::<Measurement>(&mut types),
        kind::<MergedLine>(&mut types),
        kind::<OutcomeLine>(&mut types),
        kind::<OutputLine>(&mut types),
        kind::<PageLine>(&mut types),
        kind::<Planned>(&mut types),
        kind::<Rendered>(&mut types),
        kind::<Row>(&mut types),
        kind::<Scaled>(&mut types),
        kind::<Shown>(&mut types),
        kind::<Simulated>(&mut types),
        kind::<Summary>(&mut types),
        kind::<TraceLine>(&mut types),
        kind::<TunedLine>(&mut types),
        kind::<VerifiedLine>(&mut types),
    ];
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": format!("A line of mkernel-gen --json, schema {SCHEMA}"),
        "description": "Later versions of mkernel-gen may add fields and kinds. A change of `schema` takes fields away or changes their meaning.",
        "type": "object",
        "oneOf": kinds,
        "$defs": types.take_definitions(true),
    })
}

/// The schema of a file of `mkernel-gen trace`.
pub fn trace() -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    settings
        .into_generator()
        .into_root_schema_for::<TraceFile>()
        .to_value()
}

fn kind<T: Line>(types: &mut SchemaGenerator) -> Value {
    let fields = types.subschema_for::<T>();
    json!({
        "properties": { "kind": { "const": T::KIND }, "schema": { "const": SCHEMA } },
        "required": ["kind", "schema"],
        "allOf": [fields],
    })
}
