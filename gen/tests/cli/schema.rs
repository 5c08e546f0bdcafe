//! Lines of `--json` and TOML files match the schemas that `mkernel-gen schema` prints.

use super::*;
use jsonschema::Validator;
use std::collections::BTreeSet;
use std::fs;

const KERNEL_OF_TWO: [&str; 4] = ["--op=all_reduce", "--world=2", "--m=8", "--n=64"];

fn schema(of: &str) -> Value {
    let output = succeeds(&["schema", of]);
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn validator(schema: &Value) -> Validator {
    jsonschema::draft202012::new(schema).expect("a schema")
}

/// The fields that the schema names for a kind. `None` if lines of the kind have other fields too.
fn fields(schema: &Value, kind: &str) -> Option<BTreeSet<String>> {
    let kinds = schema["oneOf"].as_array().expect("kinds");
    let of_kind = |one: &&Value| one["properties"]["kind"]["const"] == kind;
    let reference = &kinds.iter().find(of_kind).expect("a kind")["allOf"][0]["$ref"];
    let name = reference.as_str().and_then(|path| path.rsplit('/').next());
    let of = &schema["$defs"][name.expect("a reference")];
    let names = of["properties"]
        .as_object()
        .expect("fields")
        .keys()
        .cloned();
    of["additionalProperties"]
        .is_null()
        .then(|| names.collect())
}

/// Lines of all commands, except for lines of `fetch-nvrtc`, which needs a network, and of `tune` and of kernels that
/// fail in `bench`, which need GPUs.
fn lines() -> Vec<Value> {
    let dir = TempDir::new().expect("temporary folder");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let device = file(&dir, "device.toml", "backend = 'host_cxx'\nsm_count = 4\n");
    let device = format!("--device-file={}", device.display());
    let wrong = file(&dir, "wrong.toml", "[[kernel]]\nop = 'gemv'\n");
    let results = format!("{}\n", super::bench::measured("node-1", 1, 15.0));
    let results = format!("--from={}", file(&dir, "results.jsonl", &results).display());
    let [bundle, merged, man] = ["bundle", "merged", "man"].map(path);
    let of_two = |args: &[&str]| -> Vec<String> {
        let words = args.iter().chain(&KERNEL_OF_TWO);
        words.map(|word| (*word).to_owned()).collect()
    };
    let plain = |args: &[&str]| args.iter().map(|word| (*word).to_owned()).collect();
    let trace = format!("--out={}", path("trace.json"));
    let commands: [Vec<String>; 23] = [
        of_two(&["check"]),
        plain(&["check", "--crate", &fixture("user_crate")]),
        plain(&["check", &wrong.display().to_string()]),
        plain(&["check", "/nowhere.toml"]),
        of_two(&["plan"]),
        of_two(&["plan", "--scaling"]),
        plain(&[
            "simulate",
            "--op=all_reduce",
            "--m=8",
            "--n=64",
            "--nodes=2",
        ]),
        of_two(&["render"]),
        of_two(&["bundle", "add", &bundle, &device]),
        plain(&["bundle", "merge", &bundle, "--out", &merged]),
        plain(&["bundle", "verify", &bundle]),
        plain(&["list", &bundle]),
        of_two(&["run", "--device=sim", "--calls=1", "--sms=2"]),
        of_two(&["run", "--device=sim", "--sms=2", "--gb-per-s=1"]),
        of_two(&["trace", "--device=sim", "--sms=2", &trace]),
        plain(&["bench", &results]),
        plain(&["launch", "--nproc=1", "sh", "-c", "echo a; exit 3"]),
        plain(&["fabric-test", "--ranks=2", "--nodes=2", "--bytes=64"]),
        plain(&["nic-check", "--device=sim", "--checks=rails,idle"]),
        plain(&["doctor"]),
        plain(&["man", "--out", &man]),
        plain(&["topology"]),
        plain(&["clean", "--dry-run"]),
    ];
    let mut lines = Vec::new();
    for command in commands {
        let mut program = mkernel_gen(&dir.path().join("cache"));
        program
            .arg("--json")
            .args(&command)
            .env_remove("MKERNEL_DEVICE");
        lines.extend(json_lines(&program.output().expect("mkernel-gen starts")));
    }
    lines
}

#[test]
fn lines_of_all_commands_match_the_schema() {
    let schema = schema("lines");
    let validator = validator(&schema);
    let mut seen = BTreeSet::new();
    for line in lines() {
        if let Err(error) = validator.validate(&line) {
            panic!("{error}: {line}");
        }
        let kind = line["kind"].as_str().expect("a kind");
        if let Some(known) = fields(&schema, kind) {
            let own = ["kind", "schema"];
            let found = line.as_object().expect("an object").keys();
            let other: Vec<_> = found
                .filter(|name| !known.contains(*name) && !own.contains(&name.as_str()))
                .collect();
            assert!(other.is_empty(), "{kind}: the schema lacks {other:?}");
        }
        seen.insert(kind.to_owned());
    }
    let kinds = schema["oneOf"].as_array().expect("kinds").iter();
    let kinds = kinds.map(|one| one["properties"]["kind"]["const"].as_str().expect("a kind"));
    let missing: Vec<_> = kinds.filter(|kind| !seen.contains(*kind)).collect();
    assert_eq!(
        missing,
        ["timing failure", "nvrtc", "tune"],
        "no command has printed these kinds"
    );
}

#[test]
fn lines_that_lack_a_field_or_have_another_kind_do_not_match() {
    let validator = validator(&schema("lines"));
    let output = run(&[&["check", "--json"], &KERNEL_OF_TWO[..]].concat());
    let line = json_lines(&output).remove(0);
    assert!(validator.is_valid(&line), "{line}");
    for (field, value) in [("kind", "plan"), ("ok", "yes"), ("schema", "1")] {
        let mut wrong = line.clone();
        wrong[field] = value.into();
        assert!(!validator.is_valid(&wrong), "{wrong}");
    }
    let mut wrong = line;
    wrong.as_object_mut().expect("an object").remove("label");
    assert!(!validator.is_valid(&wrong), "{wrong}");
}

fn toml_value(text: &str) -> Value {
    toml::from_str(text).expect("TOML")
}

#[test]
fn toml_files_match_their_schemas() {
    let kernels = validator(&schema("kernels"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut count = 0;
    for folder in ["examples", "tests/configs"] {
        for entry in fs::read_dir(root.join(folder)).expect("a folder") {
            let path = entry.expect("a file").path();
            if path
                .extension()
                .is_some_and(|extension| extension == "toml")
            {
                let text = fs::read_to_string(&path).expect("a file");
                // A configuration of a test may be a kernel alone.
                let text = match text.contains("[[kernel]]") {
                    true => toml_value(&text),
                    false => serde_json::json!({ "kernel": [toml_value(&text)] }),
                };
                if let Err(error) = kernels.validate(&text) {
                    panic!("{}: {error}", path.display());
                }
                count += 1;
            }
        }
    }
    assert!(count > 50, "only {count} files");
    let fine = "[[kernel]]\nop = 'ag_gemm'\nworld = 2\nm = '..=64'\nn = 8\nk = 'dynamic'\n";
    assert!(kernels.is_valid(&toml_value(fine)));
    let shared = |option: &str| toml_value(&format!("[defaults]\n{option}\n{fine}"));
    assert!(kernels.is_valid(&shared("dtype = 'fp16'")));
    assert!(!kernels.is_valid(&shared("op = 'gemm'")) && !kernels.is_valid(&shared("wrld = 2")));
    for wrong in [
        "heads = 2",
        "bias = 1",
        "m = 0",
        "dtype = 'fp64'",
        "tuning = { heads = 2 }",
    ] {
        let text = format!("[[kernel]]\nop = 'ag_gemm'\n{wrong}\n");
        assert!(!kernels.is_valid(&toml_value(&text)), "{wrong}");
    }
    let device = validator(&schema("device"));
    assert!(device.is_valid(&toml_value("backend = 'host_cxx'\nsm_count = 4\n")));
    for wrong in ["sm_count = 'four'", "sms = 4"] {
        assert!(!device.is_valid(&toml_value(wrong)), "{wrong}");
    }
}
