//! Properties of every plan, and of the kernel that is rendered from it, for random configurations and devices.
//!
//! A configuration has diagnostics or a plan; what holds for each plan is in the files of this folder: `compute` (roles),
//! `attention` (of attention), `epilogue` (what is added to sums), `exchange` (copies), `schedules` (tiles and rows, by
//! device code), `sums` (partial sums), `memory` (shared memory, workspace, arguments), `config` (mistakes, reading and
//! writing).

mod attention;
mod compute;
mod config;
mod configs;
mod epilogue;
mod exchange;
mod host_program;
mod memory;
mod nodes;
mod schedules;
mod sums;

use proptest::test_runner::Config;

/// 256 cases of each property, or `PROPTEST_CASES`. A failure prints its configuration; no file is written.
fn cases() -> Config {
    Config {
        failure_persistence: None,
        ..Config::default()
    }
}
