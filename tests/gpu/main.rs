//! Tests on GPUs, against a reference in fp32, with new random data each time. They need an NVLink host and libnvrtc:
//!
//! ```text
//! cargo test --release --test gpu -- --ignored --test-threads=1 --nocapture
//! ```
//!
//! Each test runs in every world (1, 2, 4, 8 ranks) that the host's GPUs make, prints which, and fails if there is
//! none. `MKERNEL_TEST_SEED` repeats the random choices of a run that failed.

mod attention;
mod back_to_back;
mod cases;
mod collective;
mod compile;
mod correctness;
mod experts;
mod failures;
mod graphs;
mod launches;
mod lifetimes;
mod nodes;
mod operands;
mod overlap;
mod processes;
mod ranks;
mod simulator;
