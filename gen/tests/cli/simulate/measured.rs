//! Simulated times beside the times of benches/README.md, over emulated NICs.

use super::{Path, TempDir, Value, file, us};
use std::fmt::Write as _;

/// The time in which an emulated NIC copies a message: a message and its acknowledgement take 21 to 33 µs there and back, of which 4 µs
/// are the modelled latency and 5 µs the pick-up of two commands (benches/README.md, "Emulated NICs").
const EMULATED_COPY_US: f64 = 9.0;
/// The largest error of a row that names no other, in percent.
const WITHIN: f64 = 10.0;

fn flags(kernel: &Value) -> Vec<String> {
    let fields = kernel.as_object().expect("a table").iter();
    let flag = |(name, value): (&String, &Value)| {
        let value = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        format!("--{}={value}", name.replace('_', "-"))
    };
    fields.map(flag).collect()
}

#[test]
fn times_are_close_to_measured_times() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/multinode.toml");
    let text = std::fs::read_to_string(path).expect("the measured times");
    let all: Value = toml::from_str(&text).expect("TOML");
    let dir = TempDir::new().expect("temporary folder");
    // The memory of an H100 SXM; all other rates are equal to those of the H200.
    let h100 = file(
        &dir,
        "h100.toml",
        "name = 'NVIDIA H100'\nmemory_gb_s = 2994.0\n",
    );
    let (mut table, mut wrong, mut close) = (String::new(), Vec::new(), 0);
    let rows = all["measured"].as_array().expect("rows");
    for row in rows {
        let number = |name: &str| {
            row[name]
                .as_f64()
                .unwrap_or_else(|| panic!("{name} of {row}"))
        };
        let mut args = flags(&row["kernel"]);
        args.push(format!("--nodes={}", row["nodes"]));
        args.push(format!("--gpus-per-node={}", row["gpus_per_node"]));
        args.push(format!("--nic-us={}", number("nic_us") + EMULATED_COPY_US));
        if row["gpu"] == "H100" {
            args.push(format!("--device-file={}", h100.display()));
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let (simulated, measured) = (us(&args), number("us"));
        let error = 100.0 * (simulated / measured - 1.0);
        let within = row["within"].as_f64().unwrap_or(WITHIN);
        let _ = writeln!(
            table,
            "{:52} {measured:8.1} {simulated:8.1} {error:+6.1} %  {}",
            row["of"].as_str().unwrap_or_default(),
            row["kernel"]
        );
        close += usize::from(error.abs() <= WITHIN);
        let has_reason = row["reason"].is_string() == row["within"].is_number();
        if error.abs() > within || !has_reason {
            wrong.push(format!("{row}: {error:+.1} %"));
        }
    }
    println!("{table}{close} of {} within {WITHIN} %", rows.len());
    assert!(wrong.is_empty(), "{table}\n{}", wrong.join("\n"));
    assert!(close * 5 >= rows.len() * 4, "{table}");
}
