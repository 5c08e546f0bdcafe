//! The schemas of TOML files, which are derived from the declarations of options and from the default device.

use mkernel_spec::{Device, Limits, Op, Values};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

const DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";

/// The schema of a file with `[[kernel]]` tables. Each operator has its own options.
pub fn kernels() -> Value {
    let operators: Vec<_> = Op::ALL.into_iter().map(operator).collect();
    json!({
        "$schema": DRAFT,
        "title": "Kernels for mkernel-gen",
        "type": "object",
        "additionalProperties": false,
        "required": ["kernel"],
        "properties": {
            "defaults": defaults(),
            "kernel": {
                "type": "array",
                "minItems": 1,
                "items": { "type": "object", "required": ["op"], "oneOf": operators },
            },
        },
    })
}

/// The schema of the options that kernels share: the options of all operators except `op`.
fn defaults() -> Value {
    let mut schemas: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for op in Op::ALL {
        let Value::Object(of_op) = operator(op)["properties"].take() else {
            continue;
        };
        for (name, schema) in of_op.into_iter().filter(|(name, _)| name != "op") {
            let known = schemas.entry(name).or_default();
            if !known.contains(&schema) {
                known.push(schema);
            }
        }
    }
    let properties: Map<_, _> = schemas
        .into_iter()
        .map(|(name, schemas)| (name, json!({ "anyOf": schemas })))
        .collect();
    json!({ "type": "object", "additionalProperties": false, "properties": properties })
}

/// The schema of a kernel of one operator. Options of a group may also be in the table of the group.
fn operator(op: Op) -> Value {
    let mut properties = Map::new();
    let mut groups: Map<String, Value> = Map::new();
    for option in op.options() {
        let name = option.field.name();
        let mut schema = values(&option.values);
        schema["description"] = option.doc.join(" ").into();
        if let Some(group) = option.group {
            groups.entry(group).or_insert_with(|| json!({}))[name] = schema.clone();
        }
        properties.insert(name.to_owned(), schema);
    }
    for (group, options) in groups {
        let table =
            json!({ "type": "object", "additionalProperties": false, "properties": options });
        properties.insert(group, table);
    }
    properties.insert("op".to_owned(), json!({ "const": op.name() }));
    json!({ "title": op.name(), "additionalProperties": false, "properties": properties })
}

fn values(values: &Values) -> Value {
    match values {
        Values::Size => json!({ "anyOf": [
            { "type": "integer", "minimum": 1 },
            { "const": "dynamic" },
            { "type": "string", "pattern": r"^\.\.=[0-9_]+$" },
        ]}),
        Values::Count(None) => json!({ "type": "integer", "minimum": 0 }),
        Values::Count(Some(Limits::Range(low, high))) => {
            json!({ "type": "integer", "minimum": low, "maximum": high })
        }
        Values::Count(Some(Limits::OneOf(counts, _))) => json!({ "enum": counts }),
        Values::Number => json!({ "type": "number" }),
        Values::Switch => json!({ "type": "boolean" }),
        Values::Name => json!({ "type": "string" }),
        Values::Words(words) => json!({ "enum": words }),
    }
}

/// The schema of a file for `--device-file`. Figures that are absent are those of the default device.
pub fn device() -> Value {
    let device = serde_json::to_value(Device::default()).unwrap_or_default();
    let mut schema = like(&device);
    schema["$schema"] = DRAFT.into();
    schema["title"] = "A device for mkernel-gen --device-file".into();
    schema
}

/// The schema of values with the types of `value`.
fn like(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let properties: Map<_, _> = fields
                .iter()
                .map(|(name, value)| (name.clone(), like(value)))
                .collect();
            json!({ "type": "object", "additionalProperties": false, "properties": properties })
        }
        Value::Array(items) => match items.first() {
            Some(first) => json!({ "type": "array", "items": like(first) }),
            None => json!({ "type": "array" }),
        },
        Value::String(_) => json!({ "type": "string" }),
        Value::Bool(_) => json!({ "type": "boolean" }),
        // TOML has no null, so a field without a value may have any.
        Value::Null => json!(true),
        Value::Number(number) if number.is_f64() => json!({ "type": "number" }),
        Value::Number(_) => json!({ "type": "integer", "minimum": 0 }),
    }
}
