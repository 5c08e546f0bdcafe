//! A layer of experts: tokens to their experts, and the weighted sums back; several calls in a row, each with other tokens.

mod buffers;
mod calls;
mod layer;
mod recovery;
mod reference;

pub use layer::{Combining, Layer};
pub use recovery::{recovers, ways};
