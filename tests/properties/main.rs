//! Property tests of plans, and of the kernels that are rendered from them, for random configurations and devices.
//!
//! A configuration has diagnostics or a plan. These files check the plans:
//!
//! - `config`: diagnostics, and round trips of configurations.
//! - `compute`: roles and estimates.
//! - `memory`: shared memory, workspace, arguments and registers.
//! - `buckets`: plans for different numbers of rows in one kernel.
//! - `epilogue`: the operands of epilogues.
//! - `exchange`: copies of copy engines.
//! - `conversions`: numbers to elements and back.
//! - `sums`: partial sums and LL packets.
//! - `schedules`: the order of tiles and the transfer of rows, which the device code computes on the host.
//! - `tile_sequence`: the order of tiles of plans of GEMMs, compared with the order of the device code.
//! - `attention`: keys, slots and puts of `ring_attention`.
//! - `nodes`: plans for several nodes.

mod attention;
mod buckets;
mod compute;
mod config;
mod configs;
mod conversions;
mod epilogue;
mod exchange;
mod host_program;
mod memory;
mod nodes;
mod schedules;
mod sums;
mod tile_sequence;

use proptest::test_runner::Config;

/// Returns the number of cases of a property: 256, or `PROPTEST_CASES`. A failure prints its configuration and writes
/// no file.
fn cases() -> Config {
    Config {
        failure_persistence: None,
        ..Config::default()
    }
}
