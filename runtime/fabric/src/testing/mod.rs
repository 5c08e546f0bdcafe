//! Support for tests of transports and of the proxy, and the [`conformance`] tests that every transport has to pass.
//!
//! Tests of this crate, integration tests and benchmarks use this module. Everything here panics where the fabric misbehaves,
//! as tests do.

mod buffer;
pub mod conformance;
mod delayed_copy;
mod peers;
mod posted_writes;
mod raw;
mod subject;
mod traffic;

pub use buffer::{Buffer, pattern};
pub use delayed_copy::{DelayedCopyEngine, SourceTable};
pub use peers::{peer_connect_infos, peer_id, share_endpoint_region, share_region};
pub use posted_writes::PostedCopyEngine;
pub use subject::{EmulatedSubject, Subject, pipes};
pub use traffic::{Traffic, TrafficNode, TrafficRun};
