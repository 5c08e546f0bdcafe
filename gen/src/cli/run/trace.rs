//! Converts the events of a simulation from JSON to text.

use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;

#[derive(Deserialize)]
struct Timeline {
    #[serde(rename = "traceEvents")]
    events: Vec<Event>,
}

/// The fields of an event of the Trace Event Format that the text shows.
#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    name: String,
    #[serde(default)]
    ph: String,
    #[serde(default)]
    pid: u64,
    #[serde(default)]
    tid: u64,
    /// The start in µs.
    #[serde(default)]
    ts: f64,
    /// The duration in µs.
    #[serde(default)]
    dur: Option<f64>,
    #[serde(default)]
    args: BTreeMap<String, Value>,
}

/// A line for each event in the order of time, with its start, duration, rank, thread and name.
pub fn readable(timeline: &str) -> Result<String, serde_json::Error> {
    let Timeline { mut events } = serde_json::from_str(timeline)?;
    let mut names = BTreeMap::new();
    for event in events.iter().filter(|event| event.ph == "M") {
        let of = match event.name.as_str() {
            "process_name" => (event.pid, None),
            "thread_name" => (event.pid, Some(event.tid)),
            _ => continue,
        };
        let name = event.args.get("name").and_then(Value::as_str);
        names.insert(of, name.unwrap_or_default().to_owned());
    }
    events.retain(|event| event.ph != "M");
    events.sort_by(|a, b| a.ts.total_cmp(&b.ts));
    // The simulator keeps all waits, and the last changes of flags.
    let mut text = "    begin µs       µs  rank, thread, event\n".to_owned();
    for event in &events {
        // A process is a rank.
        let rank = names.get(&(event.pid, None)).cloned();
        let rank = rank.unwrap_or_else(|| format!("rank {}", event.pid));
        let thread = names.get(&(event.pid, Some(event.tid)));
        let thread = thread.map_or(String::new(), |thread| format!("  {thread}"));
        let took = match (event.ph.as_str(), event.dur) {
            (_, Some(us)) => format!("{us:.3}"),
            ("B", _) => "begin".to_owned(),
            ("E", _) => "end".to_owned(),
            _ => String::new(),
        };
        // Writing to a String never fails.
        let _ = write!(
            text,
            "{:>12.3} {took:>10}  {rank}{thread}  {}",
            event.ts, event.name
        );
        for (key, value) in &event.args {
            let _ = write!(text, "  {key}={value}");
        }
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::readable;

    #[test]
    fn events_are_lines_in_the_order_of_time() {
        let json = r#"{"traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "GPU 1"}},
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "CTA 0 load"}},
            {"ph": "X", "name": "wait", "pid": 1, "tid": 2, "ts": 5, "dur": 1.5, "args": {"peer": 0}},
            {"ph": "i", "name": "flag", "pid": 0, "tid": 0, "ts": 2}
        ], "displayTimeUnit": "ns"}"#;
        assert_eq!(
            readable(json).expect("JSON"),
            "    begin µs       µs  rank, thread, event\n       2.000             rank 0  flag\n       5.000      1.500  GPU 1  CTA 0 load  wait  peer=0\n"
        );
        assert!(readable("").is_err());
    }
}
