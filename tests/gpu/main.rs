//! Tests on the GPUs of an NVLink host. Most tests compare results on random data with a reference that a GPU computes. The
//! tests also need libnvrtc:
//!
//! ```text
//! cargo test --release --test gpu -- --ignored --test-threads=1 --nocapture
//! ```
//!
//! Each test runs in every world of 1, 2, 4 or 8 ranks that fits the GPUs of the host, and prints the worlds. It fails if the
//! host has no GPU. Each run prints its new seed. `MKERNEL_TEST_SEED` repeats a run with this seed.
//!
//! Tests without the attribute `ignore` check on a host without GPUs that the cases are possible.

mod attention;
mod back_to_back;
mod cases;
mod collective;
mod compile;
mod completion;
mod correctness;
mod experts;
mod failures;
mod graphs;
mod groups;
mod invariance;
mod launches;
mod lifetimes;
mod nodes;
mod operands;
mod overlap;
mod prepare;
mod processes;
mod quantised;
mod ranks;
mod rebuild;
mod rows;
mod runs;
mod scaled;
mod simulator;
mod symmetric;
mod trace;
