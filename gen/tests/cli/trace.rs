//! `trace` on simulated GPUs: results of kernels that are traced, files for Perfetto, and the summary.

use super::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// A small kernel of each operator.
const KERNELS: [(&str, &[&str]); 14] = [
    (
        "ag_gemm",
        &[
            "--m=256",
            "--n=256",
            "--k=128",
            "--b-layout=nk",
            "--transfer=sm_push",
        ],
    ),
    (
        "gemm_rs",
        &[
            "--m=512",
            "--n=512",
            "--k=128",
            "--b-layout=nk",
            "--tile-m=128",
            "--tile-n=256",
        ],
    ),
    (
        "gemm_ar",
        &["--m=..=256", "--n=512", "--k=128", "--b-layout=nk"],
    ),
    ("gemm", &["--m=256", "--n=256", "--k=256", "--b-layout=nk"]),
    (
        "ring_attention",
        &[
            "--batch=1",
            "--seq=256",
            "--heads=2",
            "--kv-heads=1",
            "--head-dim=128",
        ],
    ),
    (
        "dispatch_gemm",
        &[
            "--experts=8",
            "--top-k=2",
            "--max-tokens=16",
            "--max-rows=64",
            "--hidden=256",
            "--intermediate=128",
            "--b-layout=nk",
        ],
    ),
    (
        "moe_layer",
        &[
            "--experts=8",
            "--top-k=2",
            "--max-tokens=16",
            "--hidden=256",
            "--intermediate=128",
            "--b-layout=nk",
            "--swiglu=true",
        ],
    ),
    (
        "gemm_combine",
        &[
            "--experts=8",
            "--top-k=2",
            "--max-tokens=16",
            "--hidden=256",
            "--intermediate=128",
            "--b-layout=nk",
        ],
    ),
    (
        "combine",
        &[
            "--experts=8",
            "--top-k=2",
            "--max-tokens=16",
            "--max-rows=64",
            "--hidden=256",
        ],
    ),
    ("all_reduce", &["--m=64", "--n=1024", "--protocol=simple"]),
    ("all_gather", &["--m=64", "--n=1024"]),
    (
        "reduce_scatter",
        &["--m=64", "--n=1024", "--protocol=simple"],
    ),
    ("broadcast", &["--m=64", "--n=1024"]),
    ("all_to_all", &["--m=64", "--n=1024", "--protocol=simple"]),
];

/// Runs `command` with a kernel of two ranks, or of one rank if the operator has no other.
fn simulated(command: &[&str], (op, kernel): (&str, &[&str])) -> Output {
    let world = if op == "gemm" {
        "--world=1"
    } else {
        "--world=2"
    };
    let op = format!("--op={op}");
    let sim = ["--device=sim", "--sms=4", "--seed=5", "--calls=2"];
    run(&[command, &[&op, world], kernel, &sim].concat())
}

/// The line and the file of a trace.
fn traced(dir: &TempDir, kernel: (&str, &[&str]), more: &[&str]) -> (Value, Value) {
    let path = dir.path().join("trace.json");
    let out = format!("--out={}", path.display());
    let output = simulated(&[&["trace", "--json", &out], more].concat(), kernel);
    assert_eq!(code(&output), 0, "{}: {}", kernel.0, stderr(&output));
    let file = fs::read_to_string(path).expect("a file");
    let line = json_lines(&output).remove(0);
    (line, serde_json::from_str(&file).expect("JSON"))
}

pub fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

/// Busy time and waits are parts of the time of a role. Threads of a warp may wait for several events at a time, so the sum of
/// the waits may exceed the rest of the time.
pub fn check_summary(op: &str, line: &Value) {
    let whole = number(&line["us"]);
    let mut roles = 0;
    for rank in line["ranks"].as_array().expect("ranks") {
        for role in rank["roles"].as_array().expect("roles") {
            let (run, busy) = (number(&role["run_us"]), number(&role["busy_us"]));
            let waits = role["waits"].as_array().expect("waits");
            let waits: f64 = waits.iter().map(|wait| number(&wait["us"])).sum();
            assert!(0.0 < run && run <= whole, "{op}: {role}");
            assert!(0.0 <= busy && busy <= run, "{op}: {role}");
            assert!(busy + waits >= run - 0.01, "{op}: {role}");
            roles += 1;
        }
        let (first, last) = (&rank["first_received_us"], &rank["last_received_us"]);
        if !first.is_null() {
            assert!(
                number(first) <= number(last) && number(last) <= whole,
                "{op}: {rank}"
            );
        }
    }
    assert!(roles > 0, "{op}: {line}");
    assert_eq!(line["dropped"], 0, "{op}: {line}");
}

/// All events are in rows with names, the spans of a row nest, each span of a role is inside of the call, and each arrow has
/// two ends.
pub fn check_file(op: &str, ranks: usize, file: &Value) -> usize {
    let events = file["traceEvents"].as_array().expect("events");
    let of = |ph: &str| {
        events
            .iter()
            .filter(move |event| event["ph"] == ph)
            .collect::<Vec<_>>()
    };
    let row = |event: &Value| (event["pid"].as_u64(), event["tid"].as_u64());
    let named: BTreeSet<_> = of("M")
        .into_iter()
        .filter(|event| event["name"] == "thread_name")
        .map(row)
        .collect();
    let mut rows: BTreeMap<_, Vec<(f64, f64)>> = BTreeMap::new();
    for span in of("X") {
        let (begin, us) = (number(&span["ts"]), number(&span["dur"]));
        rows.entry(row(span)).or_default().push((begin, begin + us));
    }
    let processes: BTreeSet<_> = rows.keys().map(|(pid, _)| *pid).collect();
    assert_eq!(processes.len(), ranks, "{op}");
    for (row, mut spans) in rows {
        assert!(named.contains(&row), "{op}: {row:?} has no name");
        spans.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
        let mut open: Vec<f64> = Vec::new();
        for (begin, end) in spans {
            open.retain(|until| *until > begin + 1e-9);
            let inside = open.last().is_none_or(|until| end <= until + 1e-9);
            assert!(
                inside,
                "{op}: {row:?}: {begin}..{end} does not nest in {open:?}"
            );
            open.push(end);
        }
    }
    let ids = |ph| {
        of(ph)
            .iter()
            .map(|event| event["id"].as_u64())
            .collect::<Vec<_>>()
    };
    assert_eq!(ids("s"), ids("f"), "{op}");
    ids("s").len()
}

/// The operators whose flags have names that both sides know.
const WITH_ARROWS: [&str; 4] = ["ag_gemm", "gemm_rs", "all_reduce", "reduce_scatter"];

#[test]
fn each_operator_has_a_trace_that_adds_up() {
    let dir = TempDir::new().expect("temporary folder");
    let schema = run(&["schema", "trace"]);
    let schema: Value = serde_json::from_slice(&schema.stdout).expect("JSON");
    let validator = jsonschema::draft202012::new(&schema).expect("a schema");
    for kernel in KERNELS {
        let op = kernel.0;
        let (line, file) = traced(&dir, kernel, &[]);
        if let Err(error) = validator.validate(&file) {
            panic!("{op}: {error}");
        }
        check_summary(op, &line);
        let ranks = line["ranks"].as_array().expect("ranks").len();
        let arrows = check_file(op, ranks, &file);
        assert!(
            arrows > 0 || !WITH_ARROWS.contains(&op),
            "{op} has no arrows"
        );
        let id = line["id"].as_str().expect("an id");
        assert!(id.ends_with("_traced"), "{id}");
    }
}

#[test]
fn kernels_that_are_traced_have_right_results() {
    // The other kernels have the same stamps.
    for kernel in KERNELS.into_iter().step_by(3) {
        let output = simulated(&["run", "--traced"], kernel);
        assert_eq!(
            code(&output),
            0,
            "{}: {}{}",
            kernel.0,
            stdout(&output),
            stderr(&output)
        );
        assert!(stdout(&output).contains("_traced"), "{}", stdout(&output));
    }
}

#[test]
fn events_without_room_are_counted() {
    let dir = TempDir::new().expect("temporary folder");
    let kernel = KERNELS[0];
    let (all, _) = traced(&dir, kernel, &[]);
    let (few, file) = traced(&dir, kernel, &["--events=2"]);
    assert_eq!(all["dropped"], 0);
    assert!(
        few["dropped"].as_u64().is_some_and(|dropped| dropped > 0),
        "{few}"
    );
    assert_eq!(file["otherData"]["dropped"], few["dropped"]);
    let out = format!("--out={}", dir.path().join("trace.json").display());
    let output = simulated(&["trace", "--events=2", &out], kernel);
    expect_parts(stdout(&output), &["give more --events"]);
}

#[test]
fn mistakes_have_a_way_out() {
    let kernel = ["--op=all_reduce", "--world=2", "--n=64"];
    let cases: [(&[&str], &str); 5] = [
        (
            &["--m=8", "--device=tpu"],
            "possible values: auto, gpu, sim",
        ),
        (&["--m=8,16", "--device=sim"], "one kernel of one size"),
        (&["--m=8", "--device=sim", "--events=1"], "2..=65536"),
        (&["--m=8", "--device=sim", "--protocol=trace"], "use one of"),
        (
            &["--m=8", "--device=sim", "--out=/nowhere/trace.json"],
            "cannot write /nowhere/trace.json",
        ),
    ];
    for (args, part) in cases {
        let output = run(&[&["trace"], &kernel[..], args].concat());
        assert_ne!(code(&output), 0, "{args:?}");
        assert!(
            stderr(&output).contains(part),
            "{part:?} in {}",
            stderr(&output)
        );
    }
}

/// Perfetto's own parser reads a trace without an error, and finds its rows, spans and arrows. It needs Python with the
/// package `perfetto` and the program `trace_processor_shell`, which the package loads from the network:
///
/// ```sh
/// pip install perfetto && cargo test -p mkernel-gen --test cli -- --ignored perfetto
/// ```
#[test]
#[ignore = "needs the Python package perfetto, which loads a program from the network"]
fn perfetto_reads_a_trace() {
    let dir = TempDir::new().expect("temporary folder");
    let (_, file) = traced(&dir, KERNELS[1], &[]);
    let arrows = check_file("gemm_rs", 2, &file);
    let script = "import sys\n\
        from perfetto.trace_processor import TraceProcessor\n\
        tp = TraceProcessor(trace=sys.argv[1])\n\
        def count(sql): return next(iter(tp.query('select count(*) as n from ' + sql))).n\n\
        print(count('slice where dur > 0'), count('flow'), count(\"stats where severity = 'error' and value > 0\"))";
    let output = Command::new("python3")
        .args(["-c", script])
        .arg(dir.path().join("trace.json"))
        .output()
        .expect("python3 starts");
    let text = stdout(&output);
    let numbers: Vec<usize> = text
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let [slices, flows, errors] = numbers[..] else {
        panic!("{text}{}", stderr(&output));
    };
    assert!(slices > 0 && errors == 0, "{text}");
    assert_eq!(flows, arrows, "{text}");
}
