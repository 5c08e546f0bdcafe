//! The atomics of [`command_ring`](crate::command_ring) and [`control`](crate::control). `tests/loom.rs` replaces
//! them by those of loom.

pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
