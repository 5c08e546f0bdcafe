//! The atomics of [`command_ring`](crate::command_ring) and [`proxy`](crate::proxy). `tests/loom.rs` puts loom's in their place.

pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
