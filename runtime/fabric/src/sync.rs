//! The atomics of [`command_ring`](crate::command_ring) and [`control`](crate::control). `tests/loom.rs` replaces these atomics
//! by loom's atomics.

pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
